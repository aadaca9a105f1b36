//! The graph of device operations: what is left of a model once its shapes are known.
//!
//! A [`Graph`] is plain data. Its values are buffers or views of them, contiguous and row-major, each made by one node, given from outside,
//! or constant. Its nodes stand in an order in which they can run. One node is one [`Op`], and mostly one kernel.

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
pub use conv::{Conv, Coordinates, Lrn, Nearest, Pool, PoolKind, Resize, ResizeMode};
pub use copy::{Copy, Gather, GatherElements, Layout, Part};
pub use elementwise::{
    Activation, Binary, Elementwise, INPUTS_MAX, INSTRUCTIONS_MAX, Instruction, Lane, Program, ProgramError,
    STACK_MAX, Scalar, Unary,
};
pub use matmul::{BiasAxis, MatMul, Matrix};
pub use op::Op;
pub use rows::{ArgReduce, CumSum, LayerNorm, Mask, Reduce, ReduceKind, Softmax, TopK};

use crate::TensorType;
use bytes::Bytes;

/// The most dimensions that an operation walks over.
pub const DIMS_MAX: usize = 6;

/// A value of one graph: an index into [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// Device operations in an order in which they can run, and the values between them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    /// Everything that is computed, given or constant.
    pub values: Vec<Value>,
    /// What is run, in this order.
    pub nodes: Vec<Node>,
    /// How many nodes at the front depend on no input: what they make can be kept from run to run.
    pub prologue_len: usize,
    /// The values that a run must be given, in the order of the model's signature. An input that nothing reads is there, too.
    pub inputs: Vec<Port>,
    /// The values that a run gives, in the order of the model's signature.
    pub outputs: Vec<Port>,
}

/// A value by the name that the model's user knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name in the signature.
    pub name: String,
    /// The value. Two outputs may be one value, and an output may be an input, a constant or a view.
    pub value: ValueId,
}

/// A buffer, or a view of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// What the model calls it, for messages; of no consequence, and not unique.
    pub name: String,
    /// Its elements and dimensions.
    pub tensor: TensorType,
    /// Where it comes from.
    pub source: Source,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Given to each run.
    Input,
    /// One of the model's weights: an index into [`Model::weights`](crate::Model::weights). Its elements are what the model keeps the weight as.
    Weight(u32),
    /// Worked out when the graph was made, or written in the model's graph: little-endian elements.
    Constant(Bytes),
    /// Made by the node at this index, as this one of its outputs.
    Node {
        /// Index into [`Graph::nodes`].
        node: u32,
        /// Which of its outputs.
        output: u32,
    },
    /// The bytes of another value, which is no view itself, under other dimensions.
    View(ValueId),
}

/// One operation on values.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The ONNX node it was made from, the last one if there were several; for messages and traces.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// What it reads, in the places that its operation says. An operand that may be left out is none.
    pub inputs: Vec<Option<ValueId>>,
    /// What it writes, whole. An output that nobody wants is none; the first is always there.
    pub outputs: Vec<Option<ValueId>>,
}

impl Node {
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
    /// The value itself.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The value that holds the bytes of `id`: itself, unless it is a view.
    #[must_use]
    pub fn buffer(&self, id: ValueId) -> ValueId {
        match self.value(id).source {
            Source::View(of) => of,
            _ => id,
        }
    }

    /// The node that makes the bytes of `id`, if one does, by index.
    #[must_use]
    pub fn maker(&self, id: ValueId) -> Option<usize> {
        match self.value(self.buffer(id)).source {
            Source::Node { node, .. } => Some(node as usize),
            _ => None,
        }
    }

    /// All values' ids.
    pub fn ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..u32::try_from(self.values.len()).unwrap_or(u32::MAX)).map(ValueId)
    }
}
