//! Steps that run a model. Outputs for other models stay in device memory if those models run
//! there: see [`DeviceTensor`].
//!
//! [`DeviceTensor`]: weir_inference::DeviceTensor

use super::super::inference::{fault_of, not_opened};
use super::steps::{Handles, NamedTensors, Steps, handles};
use crate::intermediates::stay;
use std::sync::Arc;
use std::time::Instant;
use weir_call::Fault;
use weir_control::models::ModelEntry;
use weir_inference::{Completion, Meter, RunRequest};
use weir_telemetry::{Phase, Times};

impl Steps {
    /// Runs a model on tensors in host memory.
    pub(super) async fn model(
        &self,
        entry: &Arc<ModelEntry>,
        inputs: NamedTensors,
        outputs: Vec<String>,
    ) -> Result<NamedTensors, Fault> {
        let request = RunRequest { inputs, ..self.request(entry, outputs) };
        self.run_model(entry, request).await.map(|completion| completion.outputs)
    }

    /// Runs a model on tensors in host or device memory. The outputs named in `may_stay` may remain
    /// on the device.
    pub(super) async fn model_placed(
        &self,
        entry: &Arc<ModelEntry>,
        inputs: Handles,
        outputs: Vec<String>,
        may_stay: Vec<String>,
    ) -> Result<Handles, Fault> {
        let mut request = RunRequest { may_stay, ..self.request(entry, outputs) };
        request.give(self.dispatch.intermediates.on_node(inputs).await?);
        let Completion { outputs, stayed, .. } = self.run_model(entry, request).await?;
        let mut given = handles(outputs);
        given.extend(stay(stayed));
        Ok(given)
    }

    /// The meter that counts the device time of a step; `None`: the model's own meter.
    pub(super) fn meter(&self, entry: &ModelEntry) -> Option<Meter> {
        self.caller.as_ref().map(|caller| entry.meters.of_function(&caller.id.name))
    }

    fn request(&self, entry: &ModelEntry, outputs: Vec<String>) -> RunRequest {
        RunRequest {
            outputs: Some(outputs),
            deadline: Some(self.deadline),
            priority: self.priority,
            meter: self.meter(entry),
            ..RunRequest::default()
        }
    }

    async fn run_model(&self, entry: &Arc<ModelEntry>, request: RunRequest) -> Result<Completion, Fault> {
        let started = Instant::now();
        let batch = request.batch();
        let serving = entry.served.begin(started);
        let pinned =
            self.dispatch.models.pin(entry, self.placement, &self.dispatch.placements, &self.trace).await;
        let ran = match pinned {
            Ok(pin) => {
                let running = Instant::now();
                let run = self.trace.during(Phase::ModelRun, pin.run(request));
                let completion =
                    run.await.map(|(completion, _)| completion).map_err(|error| fault_of(&error));
                self.dispatch.metrics.phase(Phase::ModelRun, running.elapsed());
                completion
            }
            Err(error) => Err(not_opened(error)),
        };
        match ran {
            Ok(completion) => {
                serving.done(Times::from_completion(batch, &completion));
                Ok(completion)
            }
            Err(fault) => {
                serving.failed(fault.code);
                Err(fault)
            }
        }
    }
}
