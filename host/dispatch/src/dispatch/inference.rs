//! Stand-alone inferences of models on this node, without function or sandbox.

use super::account::GaugeGuard;
use super::admission::{Admission, ForwardPermits};
use super::{CallCtx, Dispatch, ModelTarget, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::Fault;
use weir_call::until;
use weir_cluster::Placement;
use weir_control::devices::NodeDevice;
use weir_control::models::{ModelEntry, ModelPin, RanOn, call_code};
use weir_inference::{Completion, InferenceError, Pin, RunRequest};
use weir_sandbox::OpenError;
use weir_telemetry::Phase;
use weir_types::ErrorCode;

/// A model in device memory, with the placement of the inference.
pub struct ReadyModel {
    pin: ModelPin,
    permits: ForwardPermits,
    /// The time that the inference waited for the model.
    queue_time: Duration,
}

impl ReadyModel {
    /// The pinned model, for measuring it on the device where it was placed.
    pub fn pin(&self) -> &Pin {
        self.pin.pin()
    }

    /// The device that holds the model.
    pub fn device(&self) -> &NodeDevice {
        self.pin.device()
    }
}

impl Dispatch {
    /// Loads the model of an admitted call into device memory, until the deadline.
    pub(super) async fn ready_model(
        &self,
        call: &CallCtx,
        entry: &Arc<ModelEntry>,
        Admission { placement, permits, queueing, .. }: Admission,
    ) -> Result<ReadyModel, Fault> {
        let queued = queueing.since;
        queueing.end(&self.metrics);
        let ready = until(call.deadline, async {
            let pin = self.models.pin(entry, placement, &self.placements, &call.trace).await;
            Ok(ReadyModel { pin: pin.map_err(not_opened)?, permits, queue_time: queued.elapsed() })
        });
        ready.await.unwrap_or_else(|| Err(ModelTarget::start_timeout()))
    }

    /// Loads a model into this node's device memory, to measure it here or ahead of its
    /// inferences. Waits until the deadline.
    pub async fn load_here(&self, call: &mut CallCtx, model: ModelTarget) -> Result<ReadyModel, Fault> {
        if !self.has_devices() {
            let text = "this node has no device (devices = \"none\"); send the request to a node with devices, which `weir status` lists";
            return Err(Fault::new(ErrorCode::NoDevice, text));
        }
        let entry = model.entry.clone();
        let target = Target::Model(model);
        let mut admitted = self.admit(call, &target, 1).await?;
        if let Placement::Remote(elsewhere) = admitted {
            // The request was for this node, so a placement on another node ends before the model
            // is loaded here.
            drop(elsewhere);
            call.granted = Some(self.grant_here(vec![entry.source.id().clone()]));
            admitted = self.admit(call, &target, 1).await?;
        }
        match admitted {
            Placement::Local(admission) => self.ready_model(call, &entry, admission).await,
            Placement::Remote(_) => Err(Fault::new(ErrorCode::Unavailable, "the model was placed elsewhere")),
        }
    }

    /// Runs the model on `request` and returns the device that it ran on. Dropping the future
    /// withdraws or stops the run.
    pub(super) async fn infer(
        &self,
        call: &CallCtx,
        ready: ReadyModel,
        request: RunRequest,
    ) -> Result<(Completion, RanOn), Fault> {
        let _running = GaugeGuard::new(&self.metrics.calls.running);
        let started = Instant::now();
        let run = call.trace.during(Phase::ModelRun, ready.pin.run(request));
        let ran = run.await.map_err(|error| fault_of(&error));
        ready.permits.ended(ran.is_ok());
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
    Fault::new(call_code(error), error.to_string())
}
