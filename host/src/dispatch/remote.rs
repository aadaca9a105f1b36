//! An inference that another node runs: the one that it is placed on, and another if that one does not run it.

use super::passing::{Passed, Passing};
use super::{Away, Dispatch};
use crate::gateway::Written;
use crate::instance::{Fault, RequestBody};
use crate::models::RanOn;
use std::time::Instant;
use weir_inference::{Completion, Tensor};
use weir_types::{InvocationId, Name, TenantId, Version};

/// An inference on its way to another node, and to others if that one does not run it.
pub(super) struct Remote<'a> {
    dispatch: &'a Dispatch,
    tenant: &'a TenantId,
    version: Version,
    id: InvocationId,
    deadline: Instant,
    may_run_twice: bool,
    answer_bytes_max: u64,
    written: Written,
    was_lost: bool,
}

impl<'a> Remote<'a> {
    /// Write down what is asked: of which version, as which call, with what, and whether it may run twice with how large an answer.
    pub(super) fn new(
        dispatch: &'a Dispatch,
        (tenant, name, version): (&'a TenantId, &Name, Version),
        (id, deadline, priority): (InvocationId, Instant, u32),
        (inputs, wanted): (&[(String, Tensor)], Option<&[String]>),
        (may_run_twice, answer_bytes_max): (bool, u64),
    ) -> Result<Self, Fault> {
        let written = Written::new(&dispatch.arena, (name, version), priority, inputs, wanted)?;
        Ok(Self {
            dispatch,
            tenant,
            version,
            id,
            deadline,
            may_run_twice,
            answer_bytes_max,
            written,
            was_lost: false,
        })
    }

    /// Have the node at the other end of `away` run it.
    pub(super) async fn run<Held: Send + 'static>(
        &mut self,
        away: &Away,
        held: Held,
    ) -> Result<Passed<(Completion, Option<RanOn>)>, Fault> {
        let mut passing = Passing {
            dispatch: self.dispatch,
            call: self.written.call(),
            id: self.id,
            tenant: self.tenant,
            version: self.version,
            deadline: self.deadline,
            may_run_twice: self.may_run_twice,
            was_lost: self.was_lost,
        };
        let mut body = Some(RequestBody::Whole(self.written.body()));
        let answered = passing.on(away, held, &mut body).await;
        self.was_lost = passing.was_lost;
        Ok(match answered? {
            Passed::Answered(response) => {
                let read = Written::read(&self.dispatch.arena, response, self.answer_bytes_max);
                Passed::Answered(read.await?)
            }
            Passed::Here(granted) => Passed::Here(granted),
            Passed::Again => Passed::Again,
        })
    }
}
