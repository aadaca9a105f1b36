//! What an author writes: one JSON object with the graph and its sources. `docs/kernel-graphs.md` is its reference.

use crate::error::GraphError;
use crate::expression::Expression;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_types::ElementType;

/// The largest upload, sources and constants included.
pub const UPLOAD_BYTES_MAX: usize = 16 << 20;

/// An upload: a graph, and the sources of its kernels by the names of their files, which end in `.cu` or `.ptx`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// The graph.
    pub graph: Document,
    /// CUDA C and PTX.
    pub sources: BTreeMap<String, String>,
}

/// A kernel graph as it is written. What it means is a [`KernelGraph`](crate::KernelGraph)'s business.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What it is for, in its author's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What it takes. The dimensions that it names are those that sizes are made of.
    pub inputs: Vec<Input>,
    /// What it gives. Each is written by one launch.
    pub outputs: Vec<Buffer>,
    /// What launches hand to each other. Each is written by one launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub temporaries: Vec<Buffer>,
    /// What is the same in every run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constants: Vec<Constant>,
    /// What it runs. The order follows from who reads what; of launches that do not depend on each other, the first comes first.
    pub launches: Vec<Launch>,
}

/// An input: each dimension is a number, or a name for whatever it is in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What it is called.
    pub name: String,
    /// The type of its elements.
    pub datatype: ElementType,
    /// Its dimensions.
    pub shape: Vec<Expression>,
}

/// An output or a temporary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// What it is called.
    pub name: String,
    /// The type of its elements.
    pub datatype: ElementType,
    /// Its dimensions.
    pub shape: Vec<Expression>,
    /// Fill it with zeroes before it is written, as kernels that add to it need. Else its contents are undefined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero: bool,
}

/// A constant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// What it is called.
    pub name: String,
    /// The type of its elements.
    pub datatype: ElementType,
    /// Its dimensions.
    pub shape: Vec<u32>,
    /// Its elements, row by row.
    pub data: Vec<serde_json::Number>,
}

/// One launch of a kernel, or a few in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// What it is called, in errors.
    pub name: String,
    /// The kernel: an entry of one of the sources.
    pub kernel: String,
    /// Blocks along x, y and z; one along those that are left out.
    pub grid: Vec<Expression>,
    /// Threads of a block along x, y and z; one along those that are left out.
    pub block: Vec<Expression>,
    /// Shared memory of a block, besides what the kernel declares.
    #[serde(default = "no_bytes")]
    pub shared_bytes: Expression,
    /// What the kernel is given, in the order of its parameters.
    pub arguments: Vec<Argument>,
    /// Launch it more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
}

/// Launch a kernel again and again, on what it has given before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// How often, at least once.
    pub times: Expression,
    /// What is written as the second is read as the first by the next launch: `{"x": "next"}`. Both are arguments of the launch, of one type and
    /// shape.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feed: BTreeMap<String, String>,
}

/// A kernel's argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Argument {
    /// The address of a buffer that the kernel reads.
    In(String),
    /// The address of a buffer that the kernel writes.
    Out(String),
    /// A number.
    I32(Expression),
    /// A number.
    U32(Expression),
    /// A number.
    I64(Expression),
    /// A number.
    U64(Expression),
    /// A number.
    F32(f64),
    /// A number.
    F64(f64),
}

impl Argument {
    /// The whole number that a kernel is given, and what it is at least and at most; none for what is something else.
    pub(crate) fn whole(&self) -> Option<(&Expression, i64, i64)> {
        match self {
            Self::I32(size) => Some((size, i64::from(i32::MIN), i64::from(i32::MAX))),
            Self::U32(size) => Some((size, 0, i64::from(u32::MAX))),
            Self::I64(size) => Some((size, i64::MIN, i64::MAX)),
            Self::U64(size) => Some((size, 0, i64::MAX)),
            Self::In(_) | Self::Out(_) | Self::F32(_) | Self::F64(_) => None,
        }
    }
}

impl Bundle {
    /// Read an upload.
    pub fn parse(bytes: &[u8]) -> Result<Self, GraphError> {
        if bytes.len() > UPLOAD_BYTES_MAX {
            return Err(GraphError::TooLarge(bytes.len()));
        }
        serde_json::from_slice(bytes).map_err(|error| GraphError::Malformed(error.to_string()))
    }

    /// The sources that are to be compiled.
    pub fn to_compile(&self) -> impl Iterator<Item = (&str, &str)> {
        let sources = self.sources.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        sources.filter(|(name, _)| name.ends_with(".cu"))
    }
}

fn no_bytes() -> Expression {
    Expression::number(0)
}
