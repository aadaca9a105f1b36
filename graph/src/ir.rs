//! Graph of device operations: a model whose shapes are known.
//!
//! A [`Graph`] is plain data. Its values are contiguous, row-major buffers, or views of buffers.
//! Each buffer is the output of one node, an input, or a constant. Nodes are in execution order.
//! One node is one [`Op`], and usually one kernel.

mod attention;
mod check;
mod conv;
mod copy;
mod elementwise;
mod matmul;
mod op;
mod rows;

pub use attention::{Attention, HEAD_DIM_MAX, Heads};
pub use check::CheckError;
pub use conv::{
    CHANNELS_MULTIPLE, Conv, Coordinates, ImageLayout, Lrn, Nearest, PoolKind, Pooling, Resize, ResizeMode,
};
pub use copy::{BlockLayout, Copy, CopyPart, Gather, GatherElements};
pub use elementwise::{
    Activation, Binary, Elementwise, ElementwiseProgram, INPUTS_MAX, INSTRUCTIONS_MAX, Instruction,
    NumberType, ProgramError, STACK_MAX, Scalar, Unary,
};
pub use matmul::{BiasAxis, MatMul, Matrix};
pub use op::Op;
pub use rows::{ArgReduce, CumSum, LayerNorm, Mask, Reduce, ReduceKind, Softmax, TopK};

use crate::TensorType;
use bytes::Bytes;

/// Largest number of dimensions that an operation iterates over.
pub const DIMS_MAX: usize = 6;

/// A value of one graph: an index into [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// Device operations in execution order, and the values between them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    /// All inputs, constants and results of nodes.
    pub values: Vec<GraphValue>,
    /// Operations in execution order.
    pub nodes: Vec<GraphNode>,
    /// Number of leading nodes that depend on no input. Their outputs can be kept between runs.
    pub prologue_len: usize,
    /// Values that each run receives, in the order of the model's signature, including inputs that
    /// are not read.
    pub inputs: Vec<GraphPort>,
    /// Values that each run returns, in the order of the model's signature.
    pub outputs: Vec<GraphPort>,
}

/// A named input or output of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphPort {
    /// The name in the signature.
    pub name: String,
    /// The value. Two outputs may share a value, and an output may be an input, a constant or a
    /// view.
    pub value: ValueId,
}

/// A buffer, or a view of one.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphValue {
    /// Name in the model, for messages only; not unique.
    pub name: String,
    /// Element type and dimensions.
    pub tensor: TensorType,
    /// Origin of the bytes.
    pub source: ValueSource,
}

/// Origin of a value's bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum ValueSource {
    /// Input of each run.
    Input,
    /// One of the model's weights: an index into [`Model::weights`](crate::OnnxModel::weights). The
    /// elements have the type in which the model stores the weight.
    Weight(u32),
    /// Little-endian elements, computed when the graph was made or written in the model's graph.
    Constant(Bytes),
    /// Output of a node.
    Node {
        /// Index into [`Graph::nodes`].
        node: u32,
        /// Index into [`GraphNode::outputs`].
        output: u32,
    },
    /// The bytes of another value, which is not a view, under other dimensions.
    View(ValueId),
}

/// One operation on values.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphNode {
    /// Name of the ONNX node that it was made from (the last one, if several), for messages and
    /// traces.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// Operands, at the indices that the operation defines. An omitted optional operand is `None`.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs, each written completely. An unused output is `None`; the first is always present.
    pub outputs: Vec<Option<ValueId>>,
}

impl GraphNode {
    /// The operand at `place`.
    #[must_use]
    pub fn input(&self, place: usize) -> Option<ValueId> {
        self.inputs.get(place).copied().flatten()
    }

    /// The output at `place`.
    #[must_use]
    pub fn output(&self, place: usize) -> Option<ValueId> {
        self.outputs.get(place).copied().flatten()
    }
}

impl Graph {
    /// The value at an id.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &GraphValue {
        &self.values[id.0 as usize]
    }

    /// The value that holds the bytes of `id`: the viewed value if `id` is a view, otherwise `id`.
    #[must_use]
    pub fn buffer(&self, id: ValueId) -> ValueId {
        match self.value(id).source {
            ValueSource::View(of) => of,
            _ => id,
        }
    }

    /// Index of the node that makes the bytes of `id`, if a node makes them.
    #[must_use]
    pub fn maker(&self, id: ValueId) -> Option<usize> {
        match self.value(self.buffer(id)).source {
            ValueSource::Node { node, .. } => Some(node as usize),
            _ => None,
        }
    }

    /// Ids of all values.
    pub fn ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..u32::try_from(self.values.len()).unwrap_or(u32::MAX)).map(ValueId)
    }
}
