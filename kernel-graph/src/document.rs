//! Upload format: one JSON object with the graph and its sources. The reference is
//! `docs/reference/kernel-graphs.md`.

use crate::error::KernelGraphError;
use crate::expression::Expression;
use crate::limits::UPLOAD_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_types::ElementType;

/// Upload: a graph, and the sources of its kernels by file name. File names end in `.cu` or `.ptx`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Graph of kernel launches.
    pub graph: GraphDocument,
    /// CUDA C and PTX sources by file name.
    pub sources: BTreeMap<String, String>,
}

/// Kernel graph in its JSON form. [`KernelGraph`](crate::KernelGraph) validates and interprets the
/// document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphDocument {
    /// Description of the graph, written by its author.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Inputs. Size expressions may use the dimensions that the inputs name.
    pub inputs: Vec<GraphInput>,
    /// Outputs. Each output is written by exactly one launch.
    pub outputs: Vec<GraphBuffer>,
    /// Temporary buffers that pass values between launches. Each temporary is written by exactly
    /// one launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub temporaries: Vec<GraphBuffer>,
    /// Constants: data that is the same in every run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constants: Vec<Constant>,
    /// Kernel launches. Data dependencies determine the order; independent launches run in the
    /// order of this list.
    pub launches: Vec<LaunchSpec>,
}

/// Input of a graph: each dimension is a number, or a name that the inputs of a run bind to a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphInput {
    /// Name of the input.
    pub name: String,
    /// Element type.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Vec<Expression>,
}

/// Output or temporary buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphBuffer {
    /// Name of the buffer.
    pub name: String,
    /// Element type.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Vec<Expression>,
    /// Fill the buffer with zeroes before each write, for kernels that accumulate into it.
    /// Otherwise the initial contents are undefined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero: bool,
}

/// Constant buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Name of the constant.
    pub name: String,
    /// Element type.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Vec<u32>,
    /// Elements in row-major order.
    pub data: Vec<serde_json::Number>,
}

/// Launch of a kernel, or several launches in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// Name of the launch, used in errors.
    pub name: String,
    /// Name of the kernel: an entry of one of the sources.
    pub kernel: String,
    /// Number of blocks along x, y and z; a missing dimension is 1.
    pub grid: Vec<Expression>,
    /// Number of threads per block along x, y and z; a missing dimension is 1.
    pub block: Vec<Expression>,
    /// Dynamic shared memory per block in bytes, in addition to the shared memory that the kernel
    /// declares.
    #[serde(default = "no_bytes")]
    pub shared_bytes: Expression,
    /// Arguments, in the order of the kernel's parameters.
    pub arguments: Vec<LaunchArgument>,
    /// Repetition of the launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
}

/// Repetition of a launch, in which each launch can read the outputs of the previous launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Number of launches, at least 1.
    pub times: Expression,
    /// Buffers that feed the next launch. With `{"y": "x"}`, the next launch reads as `x` the data
    /// that this launch wrote as `y`. Both are arguments of the launch and have the same type and
    /// shape.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feed: BTreeMap<String, String>,
}

/// Kernel argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaunchArgument {
    /// Address of a buffer that the kernel reads.
    In(String),
    /// Address of a buffer that the kernel writes.
    Out(String),
    /// Signed 32-bit integer.
    I32(Expression),
    /// Unsigned 32-bit integer.
    U32(Expression),
    /// Signed 64-bit integer.
    I64(Expression),
    /// Unsigned 64-bit integer.
    U64(Expression),
    /// 32-bit floating-point number.
    F32(f64),
    /// 64-bit floating-point number.
    F64(f64),
}

impl LaunchArgument {
    /// Returns the expression, minimum and maximum of an integer argument; `None` for buffers and
    /// floating-point numbers.
    pub(crate) fn whole(&self) -> Option<(&Expression, i128, i128)> {
        match self {
            Self::I32(size) => Some((size, i128::from(i32::MIN), i128::from(i32::MAX))),
            Self::U32(size) => Some((size, 0, i128::from(u32::MAX))),
            Self::I64(size) => Some((size, i128::from(i64::MIN), i128::from(i64::MAX))),
            Self::U64(size) => Some((size, 0, i128::from(u64::MAX))),
            Self::In(_) | Self::Out(_) | Self::F32(_) | Self::F64(_) => None,
        }
    }
}

impl Bundle {
    /// Parses an upload.
    pub fn parse(bytes: &[u8]) -> Result<Self, KernelGraphError> {
        if bytes.len() > UPLOAD_BYTES_MAX {
            return Err(KernelGraphError::TooLarge(bytes.len()));
        }
        serde_json::from_slice(bytes).map_err(|error| KernelGraphError::Malformed(error.to_string()))
    }

    /// Returns the name and text of each CUDA C source, which must be compiled.
    pub fn to_compile(&self) -> impl Iterator<Item = (&str, &str)> {
        let sources = self.sources.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        sources.filter(|(name, _)| name.ends_with(".cu"))
    }
}

fn no_bytes() -> Expression {
    Expression::number(0)
}
