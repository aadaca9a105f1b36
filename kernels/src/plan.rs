//! Planning of launches for the operations of a graph: one submodule for each kind of kernel.

mod attention;
mod conv;
mod copy;
mod elementwise;
pub(crate) use elementwise::RegisterInstruction;
mod epilogue;
mod gather;
mod limits;
mod matmul;
mod normalise;
mod picture;
mod rows;
mod tile;

#[cfg(test)]
mod resources;

use crate::{KernelTarget, Launch, LaunchCost, OperandBuffer, Precision};
use weir_graph::{Op, TensorType};
use weir_types::ElementType;

/// Types of an operation's operands and outputs, at the indices that [`weir_graph::Op`] defines. An
/// omitted operand is `None`.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Types of the operands.
    pub inputs: &'a [Option<&'a TensorType>],
    /// Types of the outputs.
    pub outputs: &'a [Option<&'a TensorType>],
}

/// Launches of an operation, in sequence on one stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LaunchPlan {
    /// The launches in order; empty if there is nothing to compute.
    pub launches: Vec<Launch<OperandBuffer>>,
    /// Required size of [`OperandBuffer::Workspace`].
    pub workspace_bytes: u64,
}

/// An operation with types or sizes that no kernel supports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} {why}: no kernel does that; the model can run on the CPU")]
pub struct UnsupportedOperation {
    /// Name of the operation.
    pub op: &'static str,
    /// The unsupported property.
    pub why: String,
}

impl LaunchPlan {
    /// Least work of all launches together.
    #[must_use]
    pub fn cost(&self) -> LaunchCost {
        self.launches.iter().fold(LaunchCost::default(), |sum, launch| sum + launch.cost)
    }

    fn from_launch(launch: Launch<OperandBuffer>) -> Self {
        Self { launches: vec![launch], workspace_bytes: 0 }
    }
}

/// Plan the launches of `op` on operands of these types, for `target`. With [`Precision::Tf32`],
/// products of f32 use tensor cores if the device has them; the precision does not affect the types
/// of stored values.
///
/// # Errors
/// If no kernel supports the element types, or a size exceeds the limits of a launch.
pub fn plan(
    op: &Op,
    operands: Operands<'_>,
    precision: Precision,
    target: &KernelTarget,
) -> Result<LaunchPlan, UnsupportedOperation> {
    let made = match op {
        Op::Conv(op) => conv::plan(op, operands, precision, target),
        Op::MatMul(op) => matmul::plan(op, operands, precision, target),
        Op::Pool(op) => picture::pool(op, operands, target),
        Op::Elementwise(op) => elementwise::plan(op, operands, target),
        Op::Copy(op) => copy::plan(op, operands, target),
        Op::Fill(scalar) => copy::fill(*scalar, operands, target),
        Op::Gather(op) => gather::gather(op, operands, target),
        Op::GatherElements(op) => gather::gather_elements(op, operands, target),
        Op::Reduce(op) => rows::reduce(op, operands),
        Op::Softmax(op) => normalise::softmax(op, operands),
        Op::LayerNorm(op) => normalise::layer_norm(op, operands),
        Op::Attention(op) => attention::plan(op, operands),
        Op::Lrn(op) => picture::lrn(op, operands, target),
        Op::Resize(op) => picture::resize(op, operands, target),
        Op::ArgReduce(op) => rows::arg_reduce(op, operands),
        Op::TopK(op) => rows::top_k(op, operands),
        Op::CumSum(op) => rows::cum_sum(op, operands),
    };
    made.map_err(|why| UnsupportedOperation { op: op.name(), why })
}

impl<'a> Operands<'a> {
    fn input(&self, place: usize) -> Option<&'a TensorType> {
        self.inputs.get(place).copied().flatten()
    }

    /// The operand at `place`; an error if it is missing.
    fn needed(&self, place: usize) -> Result<&'a TensorType, String> {
        self.input(place).ok_or_else(|| format!("without its operand {place}"))
    }

    /// The first output; an error if it is missing.
    fn output(&self) -> Result<&'a TensorType, String> {
        self.outputs.first().copied().flatten().ok_or_else(|| "without an output".to_owned())
    }

    /// Total bytes of all operands and outputs.
    fn bytes(&self) -> u64 {
        self.inputs.iter().chain(self.outputs).flatten().map(|tensor| tensor.bytes() as u64).sum()
    }
}

/// Code of an element type in kernels: `Type` in `prelude.cuh`.
fn type_code(element_type: ElementType) -> Result<u32, String> {
    match element_type {
        ElementType::Fp32 => Ok(0),
        ElementType::Fp16 => Ok(1),
        ElementType::Bf16 => Ok(2),
        ElementType::Int64 => Ok(3),
        ElementType::Int32 => Ok(4),
        ElementType::Uint8 => Ok(5),
        ElementType::Int8 => Ok(6),
        ElementType::Bool => Ok(7),
        ElementType::Fp64 => Ok(8),
        other => Err(format!("of elements of type {other}")),
    }
}

/// Part of a kernel's name for the type of its floats.
fn float_name(element_type: ElementType) -> Result<&'static str, String> {
    match element_type {
        ElementType::Fp32 => Ok("f32"),
        ElementType::Fp16 => Ok("f16"),
        ElementType::Bf16 => Ok("bf16"),
        other => Err(format!("of elements of type {other}")),
    }
}

/// Bytes of a float of a type that [`float_name`] supports.
fn float_bytes(element_type: ElementType) -> u32 {
    if element_type == ElementType::Fp32 { 4 } else { 2 }
}

/// Check that `tensor`, if present, has elements of this type.
fn same_type(tensor: Option<&TensorType>, element_type: ElementType, what: &str) -> Result<(), String> {
    match tensor {
        Some(tensor) if tensor.element_type() != element_type => {
            Err(format!("with a {what} of type {} for {element_type}", tensor.element_type()))
        }
        _ => Ok(()),
    }
}

/// Check that `tensor`, if present, has as many elements as a kernel reads or writes.
fn has_elements(tensor: Option<&TensorType>, elements: usize, what: &str) -> Result<(), String> {
    match tensor {
        Some(tensor) if tensor.elements() != elements => {
            Err(format!("with a {what} of {tensor}, not of {elements} elements"))
        }
        _ => Ok(()),
    }
}
