//! From an operation of the graph to launches: one file for each kind of kernel.

mod attention;
mod conv;
mod copy;
mod elementwise;
pub(crate) use elementwise::Step;
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

use crate::{Cost, Launch, Precision, Slot, Target};
use weir_graph::{Op, TensorType};
use weir_types::ElementType;

/// What an operation reads and writes, in the places that [`weir_graph::Op`] says. What is left out is none.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// What it reads.
    pub inputs: &'a [Option<&'a TensorType>],
    /// What it writes.
    pub outputs: &'a [Option<&'a TensorType>],
}

/// How an operation is run: launches, one after the other on one stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// What is launched, in this order. None where there is nothing to compute.
    pub launches: Vec<Launch<Slot>>,
    /// How much [`Slot::Workspace`] must have.
    pub workspace_bytes: u64,
}

/// There is no kernel for an operation as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} {why}: no kernel does that; the model can run on the CPU")]
pub struct Unsupported {
    /// What the operation is called.
    pub op: &'static str,
    /// What about it.
    pub why: String,
}

impl Plan {
    /// What all launches have to do at the least.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.launches.iter().fold(Cost::default(), |sum, launch| sum + launch.cost)
    }

    fn of(launch: Launch<Slot>) -> Self {
        Self { launches: vec![launch], workspace_bytes: 0 }
    }
}

/// How to run `op` on operands of these types on `target`. With [`Precision::Tf32`], products of f32 use the units for matrices where the
/// device has them; what is stored is as the operands say, whatever the precision.
///
/// # Errors
/// If no kernel does that: the element types, or sizes past what a launch can have.
pub fn plan(
    op: &Op,
    operands: Operands<'_>,
    precision: Precision,
    target: &Target,
) -> Result<Plan, Unsupported> {
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
    made.map_err(|why| Unsupported { op: op.name(), why })
}

impl<'a> Operands<'a> {
    fn input(&self, place: usize) -> Option<&'a TensorType> {
        self.inputs.get(place).copied().flatten()
    }

    /// The operand that must be there.
    fn needed(&self, place: usize) -> Result<&'a TensorType, String> {
        self.input(place).ok_or_else(|| format!("without its operand {place}"))
    }

    /// The first output, which must be there.
    fn output(&self) -> Result<&'a TensorType, String> {
        self.outputs.first().copied().flatten().ok_or_else(|| "without an output".to_owned())
    }

    /// Bytes of all of them.
    fn bytes(&self) -> u64 {
        self.inputs.iter().chain(self.outputs).flatten().map(|tensor| tensor.bytes() as u64).sum()
    }
}

/// The number that kernels know an element type by: `Type` in `prelude.cuh`.
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

/// The part of a kernel's name that says what floats it works on.
fn float_name(element_type: ElementType) -> Result<&'static str, String> {
    match element_type {
        ElementType::Fp32 => Ok("f32"),
        ElementType::Fp16 => Ok("f16"),
        ElementType::Bf16 => Ok("bf16"),
        other => Err(format!("of elements of type {other}")),
    }
}

/// That `tensor` has these elements, if it is there.
fn same_type(tensor: Option<&TensorType>, element_type: ElementType, what: &str) -> Result<(), String> {
    match tensor {
        Some(tensor) if tensor.element_type() != element_type => {
            Err(format!("with a {what} of type {} for {element_type}", tensor.element_type()))
        }
        _ => Ok(()),
    }
}

/// That a tensor that is there has as many elements as a kernel will read or write.
fn has_elements(tensor: Option<&TensorType>, elements: usize, what: &str) -> Result<(), String> {
    match tensor {
        Some(tensor) if tensor.elements() != elements => {
            Err(format!("with a {what} of {tensor}, not of {elements} elements"))
        }
        _ => Ok(()),
    }
}
