//! Why there is no graph of a model.

use crate::ir::CheckError;
use crate::tensor_type::TypeError;

/// What is wrong with a model, or with what it is asked to be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// The bytes are no ONNX model, or contradict themselves.
    #[error("this is not an ONNX model that can be read: {0}")]
    Malformed(String),
    /// There is too much of something.
    #[error("the model has {count} {what}; at most {max} are possible")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        count: usize,
        /// How much there may be.
        max: usize,
    },
    /// A version of the standard that is not known.
    #[error("the model is written for opset {0}; {oldest} to {newest} are supported: convert it, or run it on the CPU", oldest = crate::OPSETS.start(), newest = crate::OPSETS.end())]
    Opset(i64),
    /// Something of ONNX that is left out on purpose.
    #[error(
        "the model has {0}, which the GPU path does not support: export it without, or run it on the CPU"
    )]
    Refused(String),
    /// An operator that is not known.
    #[error("node {node:?} is a {operator}, which is not supported on the GPU: run the model on the CPU")]
    UnknownOperator {
        /// The node's name.
        node: String,
        /// The operator, with its domain unless that is ONNX's own.
        operator: String,
    },
    /// An operator that is known, but not with this.
    #[error("node {node:?} ({operator}): {what} not supported on the GPU: run the model on the CPU")]
    Unsupported {
        /// The node's name.
        node: String,
        /// The operator.
        operator: String,
        /// What about it, with its verb.
        what: String,
    },
    /// A node that the standard does not allow, or not for these shapes.
    #[error("node {node:?} ({operator}): {why}")]
    Invalid {
        /// The node's name.
        node: String,
        /// The operator.
        operator: String,
        /// What is wrong.
        why: String,
    },
    /// The shapes that are asked for are not the model's.
    #[error("{0}")]
    Inputs(String),
    /// A fault of Weir's own.
    #[error("the graph that was made is not sound: {0}")]
    Unsound(#[from] CheckError),
}

impl GraphError {
    /// A malformed model.
    pub(crate) fn malformed(why: impl Into<String>) -> Self {
        Self::Malformed(why.into())
    }

    /// Too much of something, if there is.
    pub(crate) fn limit(what: &'static str, count: usize, max: usize) -> Result<(), Self> {
        if count > max { Err(Self::Limit { what, count, max }) } else { Ok(()) }
    }

    /// A value of the file that cannot be.
    pub(crate) fn value(name: &str, error: &TypeError) -> Self {
        Self::Malformed(format!("{name:?} has {error}"))
    }
}
