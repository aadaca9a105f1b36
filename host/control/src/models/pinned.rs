//! A model pinned in a device's memory, with the CPU as a fallback for runs that the device does
//! not support.

use super::trial::CountedRun;
use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use std::sync::Arc;
use weir_cluster::{LocalPlacement, Placements, UseRecorder};
use weir_inference::{Completion, InferenceError, Meter, ModelKey, Pin, RunRequest};
use weir_sandbox::OpenError;
use weir_telemetry::{ModelColdStart, Trace};
use weir_types::api::EventKind;
use weir_types::{ModelId, Platform, Signature};

/// Keeps a model in a device's memory until dropped, and runs it. Cheap to clone.
#[derive(Clone)]
pub struct ModelPin {
    pin: Pin,
    ran_on: RanOn,
    around: Arc<Around>,
    /// The version that the runs count for; `None` for models that guests load.
    counted: Option<Arc<ModelEntry>>,
    cold_start: Option<ModelColdStart>,
}

/// The device on which a model ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RanOn {
    /// The device's name.
    pub device: Arc<str>,
    /// Why it was not the device that the scheduler chose; `None` if it was.
    pub instead: Option<Arc<str>>,
}

/// The node's context for a pinned model.
struct Around {
    models: Arc<Models>,
    placements: Arc<Placements>,
    device: Arc<NodeDevice>,
    /// The recorder of the call's use of the device; `None` if the call was not placed there.
    recorder: Option<Arc<UseRecorder>>,
    /// The fallback for unsupported runs; `None` if there is none.
    beside: Option<Beside>,
}

/// The CPU of the same node.
pub(super) struct Beside {
    pub(super) entry: Arc<ModelEntry>,
    pub(super) cpu: Arc<NodeDevice>,
    /// The platform of the device for which the CPU is the fallback.
    pub(super) instead_of: Platform,
    pub(super) placement: LocalPlacement,
    pub(super) trace: Trace,
}

impl ModelPin {
    pub(super) fn new(
        pin: Pin,
        ran_on: RanOn,
        device: &Arc<NodeDevice>,
        (models, placements): (&Arc<Models>, &Arc<Placements>),
        beside: Option<Beside>,
        recorder: Option<Arc<UseRecorder>>,
    ) -> Self {
        let models = models.clone();
        let placements = placements.clone();
        let device = device.clone();
        let around = Arc::new(Around { models, placements, device, recorder, beside });
        Self { pin, ran_on, around, counted: None, cold_start: None }
    }

    /// Does not count the runs for a canary.
    #[must_use]
    pub fn uncounted(self) -> Self {
        Self { counted: None, ..self }
    }

    /// Counts the runs for a version while its model has a canary.
    pub(super) fn counted_for(self, entry: &Arc<ModelEntry>) -> Self {
        Self { counted: Some(entry.clone()), ..self }
    }

    pub(super) fn with_cold_start(self, cold_start: Option<ModelColdStart>) -> Self {
        Self { cold_start, ..self }
    }

    /// The load that the call has waited for; `None` if the model was in the device's memory.
    pub fn cold_start(&self) -> Option<ModelColdStart> {
        self.cold_start
    }

    /// The pinned model, for measuring it on the device where it was placed.
    pub fn pin(&self) -> &Pin {
        &self.pin
    }

    /// The device that holds the model.
    pub fn device(&self) -> &NodeDevice {
        &self.around.device
    }

    /// The model's inputs and outputs.
    pub fn signature(&self) -> &Signature {
        self.pin.signature()
    }

    /// Starts a run. The run is in the device's queue when this returns. Dropping the future
    /// withdraws or stops the run. A run that the device does not support, for example because of
    /// its input shapes, falls back to the CPU.
    pub fn run(
        &self,
        mut request: RunRequest,
    ) -> impl Future<Output = Result<(Completion, RanOn), InferenceError>> + Send + use<> {
        let around = self.around.clone();
        let ran_on = self.ran_on.clone();
        let again = around.beside.is_some().then(|| request.clone());
        if let Some(recorder) = &around.recorder {
            let meter = request.meter.take().unwrap_or_else(|| self.pin.meter().clone());
            request.meter = Some(Meter::observed(&meter, recorder.request()));
        }
        let key = self.pin.key().clone();
        let counted = self.counted.as_ref().map(CountedRun::begin);
        let run = self.pin.run(request);
        async move {
            let ended = around.finish(run.await, &key, again, ran_on).await;
            if let Some(counted) = counted {
                counted.ended(ended.as_ref().map(|(completion, _)| completion));
            }
            ended
        }
    }
}

impl Around {
    /// Handles the end of a run, which falls back to the CPU if the device does not support it.
    async fn finish(
        &self,
        ended: Result<Completion, InferenceError>,
        key: &ModelKey,
        again: Option<RunRequest>,
        ran_on: RanOn,
    ) -> Result<(Completion, RanOn), InferenceError> {
        if ended.as_ref().is_err_and(InferenceError::is_device_loss) {
            // Before the caller can try again.
            self.models.note_health(self.device.ordinal, &self.placements);
        }
        if let Err(error @ (InferenceError::WorkerLost(_) | InferenceError::Quarantined { .. })) = &ended {
            self.note_worker_lost(key, error);
        }
        if let (Ok(_), Some(beside)) = (&ended, &self.beside) {
            beside.entry.refusals.note_completed(beside.instead_of);
        }
        if let (Err(InferenceError::Unsupported(why)), Some(beside), Some(request)) =
            (&ended, &self.beside, again)
        {
            beside.entry.note_unsupported(beside.instead_of, why);
            return self.run_beside(beside, request, &ran_on, why).await;
        }
        ended.map(|completion| (completion, ran_on))
    }

    /// Records that a model has lost its worker process, and its quarantine if that has begun.
    fn note_worker_lost(&self, key: &ModelKey, error: &InferenceError) {
        let ModelId { name, version, .. } = &key.id;
        if let InferenceError::WorkerLost(why) = error {
            let text = format!("the worker process of model {name}:{version} has ended: {why}");
            self.models.note_model(EventKind::Fault, &key.id, text);
        }
        if let Some(why) = self.device.cache.backend().quarantine(key) {
            let text = format!("model {name}:{version} is quarantined: {why}");
            self.models.note_model(EventKind::Quarantined, &key.id, text);
        }
    }

    async fn run_beside(
        &self,
        Beside { entry, cpu, placement, trace, .. }: &Beside,
        request: RunRequest,
        ran_on: &RanOn,
        why: &str,
    ) -> Result<(Completion, RanOn), InferenceError> {
        let instead = self.models.instead(entry, &ran_on.device, why);
        let pinned = self.models.pin_on(entry, cpu, *placement, &self.placements, trace).await;
        let completion = pinned.map_err(plain)?.0.run(request).await?;
        Ok((completion, RanOn { device: cpu.name.clone(), instead: Some(instead) }))
    }
}

/// Converts the error to an error of the enclosing run.
fn plain(error: OpenError) -> InferenceError {
    match error {
        OpenError::Inference(error) => error,
        OpenError::NotGranted(text) | OpenError::NotFound(text) => InferenceError::Unavailable(text.into()),
    }
}
