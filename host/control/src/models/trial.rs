//! Counts the runs of a model for the comparison of its canary with the active version.
//!
//! Each node counts the runs on its own devices, requested by clients, functions and steps of
//! workflows. A call of a function is not counted: it may run a model many times or not at all, and
//! may fail for other reasons.

use super::ModelEntry;
use super::head::ModelRoles;
use crate::canary::{CallOutcome, TrialSlot};
use http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::{Completion, InferenceError};
use weir_sandbox::OpenError;
use weir_telemetry::ModelCanaryMetrics;
use weir_types::{ErrorCode, Version};

/// The trial of a model's canary, if it has one, with the metrics of the runs.
pub struct ModelTrial {
    /// The counts on this node.
    pub slot: TrialSlot,
    metrics: ModelCanaryMetrics,
}

impl ModelTrial {
    pub(super) fn new(metrics: ModelCanaryMetrics) -> Self {
        Self { slot: TrialSlot::default(), metrics }
    }

    pub(super) fn set(&self, roles: ModelRoles) {
        let canary = roles.canary.filter(|_| roles.active.is_some());
        self.slot.set(canary, roles.active.unwrap_or(Version(0)));
    }

    fn count(&self, version: Version, outcome: CallOutcome) {
        if self.slot.count(version, outcome) {
            self.metrics.count(version, outcome == CallOutcome::Failed);
        }
    }
}

impl ModelEntry {
    /// Counts a run that failed before the model was loaded, such as for lack of a device with room.
    pub fn count_unstarted(&self, code: ErrorCode) {
        if let Some(CallOutcome::Failed) = CallOutcome::new(Some(code), StatusCode::OK, Duration::ZERO) {
            self.trial.count(self.record.version, CallOutcome::Failed);
        }
    }
}

/// One run of a model. A run that is dropped counts as one whose client waited until then.
pub(super) struct CountedRun {
    /// `None` if the run is not counted, or was counted already.
    entry: Option<Arc<ModelEntry>>,
    started: Instant,
}

impl CountedRun {
    /// Begins a run. Costs the read of a flag if the model has no canary.
    pub(super) fn begin(entry: &Arc<ModelEntry>) -> Self {
        let entry = entry.trial.slot.is_on().then(|| entry.clone());
        Self { entry, started: Instant::now() }
    }

    /// Ends the wait for a model in device memory: a success is no run yet.
    pub(super) fn opened<T>(mut self, opened: &Result<T, OpenError>) {
        match opened {
            Ok(_) | Err(OpenError::NotFound(_) | OpenError::NotGranted(_)) => self.entry = None,
            Err(OpenError::Inference(error)) => self.end(Some(call_code(error)), Duration::ZERO),
        }
    }

    /// Ends the run.
    pub(super) fn ended(mut self, ended: Result<&Completion, &InferenceError>) {
        match ended {
            Ok(completion) => self.end(None, completion.run_time),
            Err(error) => self.end(Some(call_code(error)), self.started.elapsed()),
        }
    }

    fn end(&mut self, failed: Option<ErrorCode>, ran: Duration) {
        if let Some(entry) = self.entry.take()
            && let Some(outcome) = CallOutcome::new(failed, StatusCode::OK, ran)
        {
            entry.trial.count(entry.record.version, outcome);
        }
    }
}

impl Drop for CountedRun {
    fn drop(&mut self) {
        self.end(Some(ErrorCode::Cancelled), self.started.elapsed());
    }
}

/// The error code of a call that failed because of a run.
pub fn call_code(error: &InferenceError) -> ErrorCode {
    match error {
        // The model's owner must fix this error; the node is not at fault.
        InferenceError::Run(_) | InferenceError::Unsupported(_) => ErrorCode::ModelError,
        other => other.code(),
    }
}
