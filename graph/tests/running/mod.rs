//! Running graphs in tests.

use weir_graph::reference::{self, Tensor};
use weir_graph::{Graph, Model, WeightData};

/// Run a graph of a model.
pub(crate) fn run(model: &Model, graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let weight = |index: u32| {
        let weight = model.weights().get(index as usize)?;
        match &weight.data {
            WeightData::Bytes(bytes) => {
                let stored = weight.tensor.with_elements(weight.stored_as).ok()?;
                Tensor::from_bytes(stored, bytes)
            }
            WeightData::Elsewhere(_) => None,
        }
    };
    reference::run(graph, inputs, &weight).unwrap()
}

/// The largest difference between elements, by the size of what is expected where that is over 1.
pub(crate) fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .map(
            |(a, b)| {
                if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / b.abs().max(1.0) }
            },
        )
        .fold(0.0, |worst, now| if now > worst || now.is_nan() { now } else { worst })
}
