//! Batched runs of a model.

use super::super::resident::Pin;
use super::{ModelRun, with_session};
use crate::batching::{JoinedJobs, SuccessfulRun, join};
use crate::error::InferenceError;
use crate::interrupt::{HookGuard, Interrupt, StopReason};
use crate::request::Execution;
use crate::tensor::Tensor;
use crate::threads::{Lane, QueueEntry, error_of};
use crate::value::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tracing::{debug, warn};

/// Runs several requests as one batch. Requests without an outcome afterwards must run alone.
pub(super) fn run_together(lane: &Lane, members: &mut [&mut QueueEntry<ModelRun>]) {
    let (Some(batcher), Some(first)) = (&lane.batcher, members.first()) else { return };
    let pin = first.job.pin.clone();
    let class = first.fit.as_ref().map(|fit| fit.class.clone());
    let started = Instant::now();
    let together = Arc::new(Interrupt::default());
    let outcome = {
        let guards = watch(members, &together);
        let outcome = run_joined(&pin, members, &together);
        drop(guards);
        outcome
    };
    let run_time = started.elapsed();
    let own = match outcome {
        Ok(Some(parted)) => Some(parted),
        Ok(None) => {
            warn!(model = %pin.id(), "batch outputs do not match the batch's items, batching disabled for the model");
            batcher.give_up();
            None
        }
        // The interrupt ended the run; the batch itself did not fail.
        Err(_) if together.reason().is_some() => None,
        Err(error) => {
            debug!(model = %pin.id(), requests = members.len(), %error, "batch failed, retrying its requests one by one");
            let items = members.iter().map(|member| member.job.job.batch()).sum();
            batcher.failed(class.as_deref().unwrap_or_default(), items);
            None
        }
    };
    for member in members.iter_mut() {
        member.job.outcome = member.interrupt.reason().map(|reason| Err(error_of(reason)));
    }
    let Some((Parted { joined, was_cold }, own)) = own else { return };
    if !was_cold {
        pin.shared().profiles.ran(pin.key(), joined.items(), run_time);
        let items = members.iter().map(|member| member.job.job.batch()).collect();
        batcher.ran(&SuccessfulRun { class: &class.unwrap_or_default(), items, time: run_time });
    }
    let mut execution = Some(Execution {
        requests: u32::try_from(joined.len()).unwrap_or(u32::MAX),
        items: joined.items(),
        input_bytes: joined.input_bytes,
        padding_bytes: joined.padding_bytes,
    });
    for (member, outputs) in members.iter_mut().zip(own) {
        if member.job.outcome.is_none() {
            let outputs = outputs.into_iter().map(Value::Host).collect();
            let completion = member.job.complete(outputs, started, run_time, execution.take());
            member.job.outcome = Some(Ok(completion));
        }
    }
}

/// Answers each member as soon as it is stopped, and stops the run when all members are stopped.
fn watch<'a>(members: &'a [&mut QueueEntry<ModelRun>], together: &Arc<Interrupt>) -> Vec<HookGuard<'a>> {
    let left = Arc::new(AtomicUsize::new(members.len()));
    let hook = |member: &'a &mut QueueEntry<ModelRun>| {
        let left = left.clone();
        let together = together.clone();
        let reply = member.job.reply.clone();
        let interrupt = Arc::downgrade(&member.interrupt);
        member.interrupt.hook(move || {
            let reason =
                interrupt.upgrade().and_then(|interrupt| interrupt.reason()).unwrap_or(StopReason::Cancelled);
            reply.send(Err(error_of(reason)));
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                together.fire(reason);
            }
        })
    };
    members.iter().map(hook).collect()
}

/// A finished batch.
struct Parted {
    joined: JoinedJobs,
    was_cold: bool,
}

/// The batch with the outputs of each member; `None` if the outputs cannot be split.
type SplitOutputs = Option<(Parted, Vec<Vec<Tensor>>)>;

fn run_joined(
    pin: &Pin,
    members: &[&mut QueueEntry<ModelRun>],
    interrupt: &Interrupt,
) -> Result<SplitOutputs, InferenceError> {
    let resident = pin.resident();
    let arena = &pin.shared().arena.tenant(&pin.id().tenant);
    let Some(batcher) = &resident.lane.batcher else { return Ok(None) };
    // A batch goes through host memory: its inputs are contiguous, and so are its outputs.
    let jobs = members.iter().map(|member| member.job.job.to_host()).collect::<Result<Vec<_>, _>>()?;
    let joined = join(batcher.rules(), &jobs.iter().collect::<Vec<_>>(), 0, arena)?;
    let bearers: Vec<_> = members.iter().map(|member| (&*member.job.meter, member.job.job.batch())).collect();
    let (outputs, was_cold) = with_session(pin, &resident.pool(), &bearers, interrupt, |session| {
        Ok((session.run(&joined.job, interrupt)?, session.was_cold()))
    })?;
    let own = joined.part(&outputs, pin.signature(), arena)?;
    Ok(own.map(|own| (Parted { joined, was_cold }, own)))
}
