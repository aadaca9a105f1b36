//! An inference that runs on another node: on the node that it is placed on, or on a third node if
//! the first fails to run it.

use super::anywhere::Ran;
use super::job::Job;
use super::passing::{Passed, Passing};
use super::{Away, Dispatch};
use crate::gateway::{Read, Written};
use crate::instance::{Fault, RequestBody};
use std::time::Instant;
use weir_types::{InvocationId, Name, TenantId, Version};

/// The target and the terms of a remote inference.
pub(super) struct About {
    pub(super) tenant: TenantId,
    pub(super) name: Name,
    pub(super) version: Version,
    pub(super) id: InvocationId,
    pub(super) deadline: Instant,
    pub(super) priority: u32,
    /// Whether a second run does no harm.
    pub(super) may_run_twice: bool,
    pub(super) answer_bytes_max: u64,
}

/// An inference to forward to the node that it is placed on, and to further nodes if that one does
/// not run it.
pub(super) struct Remote<'a> {
    dispatch: &'a Dispatch,
    about: About,
    written: Written,
    /// The time until which the executing node keeps outputs that stay there.
    left_until: Instant,
    is_step: bool,
    lost_at: Option<String>,
}

impl<'a> Remote<'a> {
    /// Encodes the request.
    pub(super) fn new(dispatch: &'a Dispatch, about: About, job: &Job) -> Result<Self, Fault> {
        let Job { inputs, wanted, step } = job;
        let outputs = (wanted.as_deref(), job.handed_on());
        let what = (&about.name, about.version);
        let written = Written::new(&dispatch.arena, what, about.priority, inputs, outputs)?;
        let left_until = step.as_ref().map_or(about.deadline, |step| step.until);
        Ok(Self { dispatch, about, written, left_until, is_step: step.is_some(), lost_at: None })
    }

    /// Runs the inference on the node at the other end of `away`.
    pub(super) async fn run<Held: Send + 'static>(
        &mut self,
        away: &Away,
        held: Held,
    ) -> Result<Passed<Ran>, Fault> {
        let About { ref tenant, version, id, deadline, may_run_twice, answer_bytes_max, .. } = self.about;
        let Dispatch { intermediates, metrics, .. } = self.dispatch;
        let mut passing = Passing {
            dispatch: self.dispatch,
            call: self.written.call(),
            id,
            tenant,
            version,
            deadline,
            left_until: self.left_until,
            is_step: self.is_step,
            may_run_twice,
            lost_at: self.lost_at.take(),
        };
        let mut body = Some(RequestBody::Whole(self.written.body()));
        metrics.intermediates.sent_bytes.inc_by(self.written.tensor_bytes());
        let answered = passing.on(away, held, &mut body).await;
        self.lost_at = passing.lost_at;
        Ok(match answered? {
            Passed::Answered(response) => {
                let read = Written::read(intermediates, tenant, response, answer_bytes_max);
                let Read { completion, left, ran_on } = read.await?;
                let bytes = completion.outputs.iter().map(|(_, tensor)| tensor.data().len() as u64).sum();
                metrics.intermediates.received_bytes.inc_by(bytes);
                Passed::Answered(Ran { completion, left, is_elsewhere: true, ran_on })
            }
            Passed::Here(granted) => Passed::Here(granted),
            Passed::Again => Passed::Again,
        })
    }
}
