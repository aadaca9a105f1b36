//! Reference interpreter of graphs on the CPU. Devices must agree with it, and constant folding
//! uses it.
//!
//! Written for readability, not for speed. Floats are `f32`, rounded to the type of their value
//! when stored; sums are in `f64`; each instruction of an elementwise program rounds to `f32`.
//! Integers are `i64` and wrap to the type of their value. `f64` values of a model are stored as
//! `f32`, as on a device.

mod attention;
mod conv;
mod copy;
mod distance;
mod elementwise;
mod matmul;
mod numbers;
mod resize;
mod rows;
mod tensor;

pub use distance::{distance, spread};
pub(crate) use elementwise::float;
pub(crate) use numbers::activate;
pub use tensor::{ReferenceData, ReferenceTensor};

use crate::TensorType;
use crate::ir::{Graph, Op, Scalar, ValueId, ValueSource};
use std::sync::Arc;

/// Reason why a graph did not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The number of inputs differs from the graph's.
    #[error("{given} inputs are given; the graph has {wanted}")]
    Inputs {
        /// Number of given inputs.
        given: usize,
        /// Number of the graph's inputs.
        wanted: usize,
    },
    /// An input has another type or shape than the graph's.
    #[error("input {name:?} is {given}, not {wanted}")]
    Input {
        /// Name of the input.
        name: String,
        /// Type of the given input.
        given: TensorType,
        /// Type that the graph was made for.
        wanted: TensorType,
    },
    /// A weight's bytes are missing, or have the wrong length.
    #[error("weight {0} is missing")]
    Weight(u32),
    /// The node or value of this name cannot be computed, because the graph is invalid:
    /// [`Graph::check`] reports the reason.
    #[error("node {0:?} cannot be run")]
    Node(String),
}

/// Run `graph` on `inputs`, which are in the order of [`Graph::inputs`], and return its outputs in
/// the order of [`Graph::outputs`].
///
/// `weight` returns the model's weight at an index, as the file has it.
pub fn run(
    graph: &Graph,
    inputs: &[ReferenceTensor],
    weight: &dyn Fn(u32) -> Option<ReferenceTensor>,
) -> Result<Vec<ReferenceTensor>, ReferenceError> {
    if inputs.len() != graph.inputs.len() {
        return Err(ReferenceError::Inputs { given: inputs.len(), wanted: graph.inputs.len() });
    }
    let mut memory =
        ReferenceMemory { graph, values: vec![None; graph.values.len()], readers: readers(graph), weight };
    for (port, input) in graph.inputs.iter().zip(inputs) {
        let wanted = &graph.value(port.value).tensor;
        if input.tensor() != wanted {
            let name = port.name.clone();
            let given = input.tensor().clone();
            let wanted = wanted.clone();
            return Err(ReferenceError::Input { name, given, wanted });
        }
        memory.values[port.value.0 as usize] = Some(input.clone());
    }
    for node in &graph.nodes {
        let operands: Vec<Option<ReferenceTensor>> =
            node.inputs.iter().map(|id| id.map(|id| memory.get(id)).transpose()).collect::<Result<_, _>>()?;
        let types: Vec<Option<&TensorType>> =
            node.outputs.iter().map(|id| id.map(|id| &graph.value(id).tensor)).collect();
        let made =
            run_op(&node.op, &operands, &types).ok_or_else(|| ReferenceError::Node(node.name.clone()))?;
        for (id, tensor) in node.outputs.iter().zip(made) {
            if let Some(id) = id {
                memory.values[id.0 as usize] = tensor;
            }
        }
        node.inputs.iter().flatten().for_each(|id| memory.read(*id));
    }
    graph.outputs.iter().map(|port| memory.get(port.value)).collect()
}

/// Computed values that are still needed.
struct ReferenceMemory<'a> {
    graph: &'a Graph,
    values: Vec<Option<ReferenceTensor>>,
    /// Number of remaining reads of each buffer.
    readers: Vec<usize>,
    weight: &'a dyn Fn(u32) -> Option<ReferenceTensor>,
}

fn readers(graph: &Graph) -> Vec<usize> {
    let mut readers = vec![0; graph.values.len()];
    let outputs = graph.outputs.iter().map(|port| port.value);
    for id in graph.nodes.iter().flat_map(|node| node.inputs.iter().copied().flatten()).chain(outputs) {
        readers[graph.buffer(id).0 as usize] += 1;
    }
    readers
}

impl ReferenceMemory<'_> {
    fn get(&self, id: ValueId) -> Result<ReferenceTensor, ReferenceError> {
        let value = self.graph.value(id);
        let buffer = self.graph.value(self.graph.buffer(id));
        let held = self.values[self.graph.buffer(id).0 as usize].clone();
        let tensor = match (&buffer.source, held) {
            (_, Some(held)) => Some(held),
            (ValueSource::Constant(bytes), None) => ReferenceTensor::from_bytes(buffer.tensor.clone(), bytes),
            (ValueSource::Weight(index), None) => {
                let tensor = (self.weight)(*index).ok_or(ReferenceError::Weight(*index))?;
                tensor.in_elements(buffer.tensor.element_type())
            }
            _ => None,
        };
        tensor
            .and_then(|tensor| tensor.reshaped(value.tensor.dims()))
            .ok_or_else(|| ReferenceError::Node(value.name.clone()))
    }

    /// Record a read, and free the buffer after its last one.
    fn read(&mut self, id: ValueId) {
        let buffer = self.graph.buffer(id).0 as usize;
        self.readers[buffer] -= 1;
        if self.readers[buffer] == 0 {
            self.values[buffer] = None;
        }
    }
}

/// Run one operation on whole tensors; `None` if operands are missing or do not fit.
pub(crate) fn run_op(
    op: &Op,
    operands: &[Option<ReferenceTensor>],
    types: &[Option<&TensorType>],
) -> Option<Vec<Option<ReferenceTensor>>> {
    let operand = |place: usize| operands.get(place).and_then(Option::as_ref);
    let first = (*types.first()?)?;
    let one = |tensor: ReferenceTensor| Some(vec![Some(tensor)]);
    match op {
        Op::Conv(conv) => one(conv::conv(conv, &operand, first)?),
        Op::Pool(pool) => one(conv::pool(pool, operand(0)?, first)?),
        Op::Lrn(lrn) => one(conv::lrn(lrn, operand(0)?, first)?),
        Op::Resize(resize) => one(resize::resize(resize, operand(0)?, first)?),
        Op::MatMul(matmul) => one(matmul::matmul(matmul, &operand, first)?),
        Op::Attention(attention) => one(attention::attention(attention, &operand, first)?),
        Op::Elementwise(elementwise) => one(elementwise::elementwise(elementwise, operands, first)?),
        Op::Copy(copy) => one(copy::copy(copy, operands, first)?),
        Op::Fill(scalar) => one(fill(*scalar, first)),
        Op::Gather(gather) => one(copy::gather(gather, operand(0)?, operand(1)?, first)?),
        Op::GatherElements(gather) => one(copy::gather_elements(gather, operand(0)?, operand(1)?, first)?),
        Op::Reduce(reduce) => one(rows::reduce(reduce, operand(0)?, first)?),
        Op::Softmax(softmax) => one(rows::softmax(softmax, operand(0)?, operand(1), first)?),
        Op::LayerNorm(norm) => rows::layer_norm(norm, &operand, types),
        Op::ArgReduce(reduce) => one(rows::arg_reduce(reduce, operand(0)?, first)?),
        Op::TopK(top) => rows::top_k(top, operand(0)?, types),
        Op::CumSum(sum) => one(rows::cum_sum(sum, operand(0)?, first)?),
    }
}

fn fill(scalar: Scalar, tensor: &TensorType) -> ReferenceTensor {
    let elements = tensor.elements();
    match scalar {
        Scalar::Float(number) => ReferenceTensor::floats(tensor.clone(), vec![number; elements]),
        Scalar::Integer(number) => ReferenceTensor::integers(tensor.clone(), vec![number; elements]),
    }
}

/// Elements of an optional float operand.
fn floats(tensor: Option<&ReferenceTensor>) -> Option<Arc<Vec<f32>>> {
    match tensor?.data() {
        ReferenceData::Floats(floats) => Some(floats.clone()),
        ReferenceData::Integers(_) => None,
    }
}
