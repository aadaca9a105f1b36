//! What is asked of a model, tensor function or workflow: the same thing wherever it comes from and wherever it runs.

use crate::intermediates::Handle;
use std::time::Instant;
use weir_inference::Tensor;
use weir_scheduler::InputsOn;
use weir_types::NodeId;

/// What to run something on, and what for.
pub(crate) struct Job {
    pub(crate) inputs: Vec<(String, Handle)>,
    /// The outputs; none for all there are.
    pub(crate) wanted: Option<Vec<String>>,
    /// The step that it is, of a run whose steps are placed by themselves.
    pub(crate) step: Option<StepJob>,
}

/// What goes for such a step besides.
pub(crate) struct StepJob {
    /// The outputs that only other steps read: they may stay where they are made.
    pub(crate) handed_on: Vec<String>,
    /// Those of them that only models read: where a device of the asked node gives them, they may stay there.
    pub(crate) for_models: Vec<String>,
    /// Until when they have to: the end of the run.
    pub(crate) until: Instant,
}

impl Job {
    /// What a client has asked for.
    pub(crate) fn of_client(inputs: Vec<(String, Tensor)>, wanted: Option<Vec<String>>) -> Self {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name, Handle::Here(tensor))).collect();
        Self { inputs, wanted, step: None }
    }

    /// Items that it works on: the first dimension of the first input.
    pub(crate) fn batch(&self) -> u32 {
        self.inputs.iter().find_map(|(_, handle)| handle.shape().dimensions().first().copied()).unwrap_or(1)
    }

    /// Where its inputs lie, of which `here` is this node.
    pub(crate) fn inputs_on(&self, here: NodeId) -> Vec<InputsOn> {
        let mut inputs: Vec<InputsOn> = Vec::new();
        for (_, handle) in &self.inputs {
            let (node, bytes) = (handle.node(here), handle.bytes());
            match inputs.iter_mut().find(|input| input.node == node) {
                Some(input) => input.bytes = input.bytes.saturating_add(bytes),
                None => inputs.push(InputsOn { node, bytes }),
            }
        }
        inputs
    }

    /// The outputs that may stay where they are made.
    pub(crate) fn handed_on(&self) -> &[String] {
        self.step.as_ref().map_or(&[], |step| &step.handed_on)
    }
}
