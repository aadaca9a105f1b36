//! One inference of a model by itself, from admission to its outputs: no function around it, and no sandbox.

use super::account::Counted;
use super::{Dispatch, placement};
use crate::instance::Fault;
use crate::models::{ModelEntry, OpenError};
use crate::telemetry::{Phase, Trace};
use crate::until::until;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;
use weir_inference::{Completion, InferenceError, Pin, RunRequest};
use weir_types::{ErrorCode, InvocationId};

/// What the gateway knows about an inference.
pub(crate) struct Inference {
    pub(crate) id: InvocationId,
    pub(crate) entry: Arc<ModelEntry>,
    pub(crate) trace: Trace,
    pub(crate) deadline: Instant,
    pub(crate) priority: u32,
}

impl Dispatch {
    /// Run the model on `request`, placed and loaded as a function's would be. Dropping the future withdraws or stops the run.
    pub(crate) async fn infer(
        &self,
        inference: &Inference,
        request: RunRequest,
    ) -> Result<Completion, Fault> {
        let queued = Instant::now();
        let (pin, _placed) = self.ready(inference, request.batch()).await?;
        let waited = queued.elapsed();
        let _running = Counted::new(&self.metrics.running);
        let started = Instant::now();
        let run = pin.run(request).instrument(inference.trace.phase(Phase::ModelRun));
        let completion = run.await.map_err(|error| fault_of(&error));
        self.metrics.phase(Phase::ModelRun, started.elapsed());
        completion.map(|completion| Completion { queue_time: waited + completion.queue_time, ..completion })
    }

    /// Bring the model into device memory, as an inference would, and let go of it.
    pub(crate) async fn warm(&self, inference: &Inference) -> Result<(), Fault> {
        self.ready(inference, 1).await.map(drop)
    }

    /// Wait for a placement and for the model, until the deadline.
    async fn ready(&self, inference: &Inference, batch: u32) -> Result<(Pin, placement::Placed), Fault> {
        let Inference { entry, trace, .. } = inference;
        let waiting = Counted::new(&self.metrics.queued);
        let ready = until(inference.deadline, async {
            let queued = Instant::now();
            let placing = self.placements.place_inference(inference, batch);
            let placed = placing.instrument(trace.phase(Phase::Queue)).await?;
            self.metrics.phase(Phase::Queue, queued.elapsed());
            drop(waiting);
            let pin = self.models.pin(entry, &self.placements, trace).await.map_err(not_opened)?;
            Ok((pin, placed))
        });
        ready.await.unwrap_or_else(|| {
            let text = "the deadline passed before the model was ready (timeout, infer_time_ms_max)";
            Err(Fault::new(ErrorCode::DeadlineExceeded, text))
        })
    }
}

fn not_opened(error: OpenError) -> Fault {
    match error {
        OpenError::NotGranted(text) => Fault::new(ErrorCode::NotGranted, text),
        OpenError::NotFound(text) => Fault::new(ErrorCode::ModelNotFound, text),
        OpenError::Inference(error) => fault_of(&error),
    }
}

fn fault_of(error: &InferenceError) -> Fault {
    let code = match error {
        // Its owner's to mend, and not the node's fault.
        InferenceError::Run(_) => ErrorCode::ModelError,
        other => other.code(),
    };
    Fault::new(code, error.to_string())
}
