//! A request to a model, tensor function or workflow, in one form for all callers and all executing
//! nodes.

use crate::intermediates::Handle;
use std::time::Instant;
use weir_inference::Tensor;
use weir_scheduler::InputsOn;
use weir_types::NodeId;

/// The inputs of a run and the outputs that it has to return.
pub struct InferenceJob {
    /// The inputs by name.
    pub inputs: Vec<(String, Handle)>,
    /// The requested outputs; `None`: all.
    pub wanted: Option<Vec<String>>,
    /// Set for a step of a run whose steps are placed individually.
    pub step: Option<StepJob>,
}

/// Additional terms for an individually placed step.
pub struct StepJob {
    /// The outputs that only other steps read: they may stay on the node that computes them.
    pub handed_on: Vec<String>,
    /// The subset of `handed_on` that only models read: these outputs may stay on the device that
    /// computes them, if the device belongs to the requesting node.
    pub for_models: Vec<String>,
    /// The time until which outputs that stay must be kept: the end of the run.
    pub until: Instant,
}

impl InferenceJob {
    /// A job for a client's request.
    pub fn of_client(inputs: Vec<(String, Tensor)>, wanted: Option<Vec<String>>) -> Self {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name, Handle::Here(tensor))).collect();
        Self { inputs, wanted, step: None }
    }

    /// The number of items: the first dimension of the first input.
    pub fn batch(&self) -> u32 {
        self.inputs.iter().find_map(|(_, handle)| handle.shape().dimensions().first().copied()).unwrap_or(1)
    }

    /// The bytes of input per node; `here` is this node.
    pub fn inputs_on(&self, here: NodeId) -> Vec<InputsOn> {
        let mut inputs: Vec<InputsOn> = Vec::new();
        for (_, handle) in &self.inputs {
            let node = handle.node(here);
            let bytes = handle.bytes();
            match inputs.iter_mut().find(|input| input.node == node) {
                Some(input) => input.bytes = input.bytes.saturating_add(bytes),
                None => inputs.push(InputsOn { node, bytes }),
            }
        }
        inputs
    }

    /// The outputs that may stay on the node that computes them.
    pub fn handed_on(&self) -> &[String] {
        self.step.as_ref().map_or(&[], |step| &step.handed_on)
    }
}
