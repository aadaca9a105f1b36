//! One stand-alone inference of a model, from admission to outputs, without function or sandbox.

use super::Dispatch;
use super::account::Counted;
use super::placement::{self, Away, Place, Spot};
use crate::cluster::wire::Granted;
use crate::devices::NodeDevice;
use crate::instance::Fault;
use crate::models::{ModelEntry, ModelPin, OpenError, RanOn};
use crate::objective::Objective;
use crate::telemetry::{Phase, Trace};
use crate::until::until;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use weir_inference::{Completion, InferenceError, Pin, RunRequest};
use weir_scheduler::InputsOn;
use weir_types::{ErrorCode, InvocationId};

/// An inference as the gateway describes it.
pub(crate) struct Inference {
    pub(crate) id: InvocationId,
    pub(crate) entry: Arc<ModelEntry>,
    /// The objective to meet. Empty for a step of a workflow: the workflow has the objective.
    pub(crate) objective: Objective,
    pub(crate) trace: Trace,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    pub(crate) priority: u32,
    /// The input bytes per node, for placement; empty to ignore the transfer of inputs.
    pub(crate) inputs: Vec<InputsOn>,
    /// The grant that a forwarding node sent along; `None`: ask the scheduler.
    pub(crate) granted: Option<Granted>,
}

/// The node on which an inference is to run.
pub(crate) enum InferenceTurn {
    Here(Ready),
    There(Away, placement::Placed),
}

/// A model in device memory, with the placement of the inference.
pub(crate) struct Ready {
    pin: ModelPin,
    _placed: placement::Placed,
    /// The time that the inference waited for the model.
    queue_time: Duration,
}

impl Ready {
    /// The pinned model, for measuring it on the device where it was placed.
    pub(crate) fn pin(&self) -> &Pin {
        self.pin.pin()
    }

    /// The device that holds the model.
    pub(crate) fn device(&self) -> &NodeDevice {
        self.pin.device()
    }
}

impl Dispatch {
    /// Requests a placement and, if that is on this node, loads the model into device memory. Waits
    /// until the deadline.
    pub(crate) async fn ready(&self, inference: &Inference, batch: u32) -> Result<InferenceTurn, Fault> {
        self.ready_as(inference, batch, false).await
    }

    async fn ready_as(
        &self,
        inference: &Inference,
        batch: u32,
        is_measured: bool,
    ) -> Result<InferenceTurn, Fault> {
        let Inference { entry, trace, .. } = inference;
        let waiting = Counted::new(&self.metrics.queued);
        let ready = until(inference.deadline, async {
            let queued = Instant::now();
            let placing = async {
                if is_measured {
                    return self.placements.place_measuring(inference).await;
                }
                self.placements.place_inference(inference, batch, &self.models).await
            };
            let (place, placed) = placing.instrument(trace.phase(Phase::Queue)).await?;
            self.metrics.phase(Phase::Queue, queued.elapsed());
            drop(waiting);
            let device = match place {
                Place::Here(device) => device,
                Place::There(away) => return Ok(InferenceTurn::There(away, placed)),
            };
            let spot = Spot { invocation: inference.id, device };
            let pin = self.models.pin(entry, spot, &self.placements, trace).await.map_err(not_opened)?;
            Ok(InferenceTurn::Here(Ready { pin, _placed: placed, queue_time: queued.elapsed() }))
        });
        ready.await.unwrap_or_else(|| {
            let text = "the deadline passed before the model was ready (timeout, infer_time_ms_max)";
            Err(Fault::new(ErrorCode::DeadlineExceeded, text))
        })
    }

    /// Loads the model into this node's device memory, to measure it here. Waits until the
    /// deadline.
    pub(crate) async fn ready_to_measure(&self, inference: &mut Inference) -> Result<Ready, Fault> {
        if let InferenceTurn::Here(ready) = self.ready_as(inference, 1, true).await? {
            return Ok(ready);
        }
        // The request was for this node, so another placement by the cluster is ignored.
        let models = vec![inference.entry.source.id().clone()];
        let device = self.models.device_for(&models);
        inference.granted = Some(self.placements.grant_here(models, device));
        match self.ready_as(inference, 1, true).await? {
            InferenceTurn::Here(ready) => Ok(ready),
            InferenceTurn::There(..) => {
                Err(Fault::new(ErrorCode::Unavailable, "the model was placed elsewhere"))
            }
        }
    }

    /// Runs the model on `request` and returns the device that it ran on. Dropping the future
    /// withdraws or stops the run.
    pub(crate) async fn infer(
        &self,
        inference: &Inference,
        ready: Ready,
        request: RunRequest,
    ) -> Result<(Completion, RanOn), Fault> {
        let _running = Counted::new(&self.metrics.running);
        let started = Instant::now();
        let run = ready.pin.run(request).instrument(inference.trace.phase(Phase::ModelRun));
        let ran = run.await.map_err(|error| fault_of(&error));
        self.metrics.phase(Phase::ModelRun, started.elapsed());
        let (completion, ran_on) = ran?;
        let queue_time = ready.queue_time + completion.queue_time;
        Ok((Completion { queue_time, ..completion }, ran_on))
    }
}

pub(super) fn not_opened(error: OpenError) -> Fault {
    match error {
        OpenError::NotGranted(text) => Fault::new(ErrorCode::NotGranted, text),
        OpenError::NotFound(text) => Fault::new(ErrorCode::ModelNotFound, text),
        OpenError::Inference(error) => fault_of(&error),
    }
}

pub(super) fn fault_of(error: &InferenceError) -> Fault {
    let code = match error {
        // For the model's owner to fix; not the node's fault.
        InferenceError::Run(_) | InferenceError::Unsupported(_) => ErrorCode::ModelError,
        other => other.code(),
    };
    Fault::new(code, error.to_string())
}
