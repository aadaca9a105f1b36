//! Trial of a request: whether requests of its class can be batched.

use super::ModelRun;
use crate::batching::{self, TrialVerdict};
use crate::interrupt::Interrupt;
use crate::threads::Lane;
use tracing::info;

/// A running trial. Reports its verdict on drop.
pub(super) struct OpenTrial {
    lane: Lane,
    verdict: TrialVerdict,
}

impl OpenTrial {
    /// If the run panics, the trial has failed.
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, verdict: TrialVerdict::Failed }
    }

    /// Tries whether requests like `run`, which must have succeeded, can be batched.
    pub(super) fn run(mut self, run: &ModelRun, interrupt: &Interrupt) {
        self.verdict = try_out(run, interrupt).unwrap_or(TrialVerdict::Unclear);
    }
}

impl Drop for OpenTrial {
    fn drop(&mut self) {
        let Some(batcher) = &self.lane.batcher else { return };
        batcher.tried(self.verdict);
    }
}

fn try_out(run: &ModelRun, interrupt: &Interrupt) -> Option<TrialVerdict> {
    if !matches!(run.outcome, Some(Ok(_))) {
        return None;
    }
    let batcher = run.pin.resident().lane.batcher.as_ref()?;
    let signature = run.pin.signature();
    let arena = &run.pin.shared().arena.tenant(&run.pin.id().tenant);
    // The trial is charged to the model's owner, who benefits, instead of the caller of this
    // request.
    let meter = &run.pin.resident().source.meter;
    let trial = run.with_session(meter, interrupt, |session| {
        let job = run.job.to_host()?;
        Ok(batching::try_out(batcher.rules(), signature, &job, session, (arena, interrupt)))
    });
    let verdict = trial.ok()?;
    match verdict {
        TrialVerdict::Same => {
            info!(model = %run.pin.id(), "batching enabled: a trial batch returned the same results as single runs");
        }
        TrialVerdict::Differs => {
            info!(model = %run.pin.id(), "batching disabled: a trial batch changed results (set batching.mode = on to batch anyway)");
        }
        TrialVerdict::Failed | TrialVerdict::Unclear => {}
    }
    Some(verdict)
}
