//! Errors that stop a model from becoming a graph.

use crate::ir::CheckError;
use crate::tensor_type::TypeError;

/// Reason why a model cannot be read, or cannot be specialised as requested.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// The bytes are not an ONNX model, or contradict themselves.
    #[error("this is not an ONNX model that can be read: {0}")]
    Malformed(String),
    /// The model exceeds one of the limits on its size.
    #[error("the model has {count} {what}; at most {max} are possible")]
    Limit {
        /// The items that exceed the limit.
        what: &'static str,
        /// Number of items in the model.
        count: usize,
        /// Largest number of items allowed.
        max: usize,
    },
    /// The model's opset version is not supported.
    #[error("the model is written for opset {0}; {oldest} to {newest} are supported: convert it, or run it on the CPU", oldest = crate::OPSETS.start(), newest = crate::OPSETS.end())]
    Opset(i64),
    /// An ONNX feature that the GPU path deliberately leaves out.
    #[error(
        "the model has {0}, which the GPU path does not support: export it without, or run it on the CPU"
    )]
    Refused(String),
    /// An operator that this crate does not know.
    #[error("node {node:?} is a {operator}, which is not supported on the GPU: run the model on the CPU")]
    UnknownOperator {
        /// The node's name.
        node: String,
        /// The operator, prefixed with its domain unless the domain is ONNX's default.
        operator: String,
    },
    /// A known operator with an attribute, an element type or a shape that is not supported.
    #[error("node {node:?} ({operator}): {what} not supported on the GPU: run the model on the CPU")]
    Unsupported {
        /// The node's name.
        node: String,
        /// The operator.
        operator: String,
        /// The unsupported property, followed by its verb.
        what: String,
    },
    /// A node that violates the ONNX standard, in general or for these shapes.
    #[error("node {node:?} ({operator}): {why}")]
    Invalid {
        /// The node's name.
        node: String,
        /// The operator.
        operator: String,
        /// The violation.
        why: String,
    },
    /// The requested input shapes contradict the model's signature.
    #[error("{0}")]
    Inputs(String),
    /// A bug in Weir: the graph that it built fails [`Graph::check`](crate::Graph::check).
    #[error("the graph that was made is not sound: {0}")]
    Unsound(#[from] CheckError),
}

impl GraphError {
    /// Build an error for a malformed model.
    pub(crate) fn malformed(why: impl Into<String>) -> Self {
        Self::Malformed(why.into())
    }

    /// Return an error if `count` is greater than `max`.
    pub(crate) fn limit(what: &'static str, count: usize, max: usize) -> Result<(), Self> {
        if count > max { Err(Self::Limit { what, count, max }) } else { Ok(()) }
    }

    /// Build an error for a value with an impossible type or shape.
    pub(crate) fn value(name: &str, error: &TypeError) -> Self {
        Self::Malformed(format!("{name:?} has {error}"))
    }
}
