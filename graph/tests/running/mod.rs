//! Helper that runs graphs in tests.

use weir_graph::reference::{self, ReferenceTensor};
use weir_graph::{Graph, OnnxModel, WeightData};

/// Run a graph of a model.
pub(crate) fn run(model: &OnnxModel, graph: &Graph, inputs: &[ReferenceTensor]) -> Vec<ReferenceTensor> {
    let weight = |index: u32| {
        let weight = model.weights().get(index as usize)?;
        match &weight.data {
            WeightData::Bytes(bytes) => {
                let stored = weight.tensor.with_elements(weight.stored_as).ok()?;
                ReferenceTensor::from_bytes(stored, bytes)
            }
            WeightData::Elsewhere(_) => None,
        }
    };
    reference::run(graph, inputs, &weight).unwrap()
}
