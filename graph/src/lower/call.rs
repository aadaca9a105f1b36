//! A call of an operator: its node, with the values of its inputs.

use super::operators::Operator;
use crate::ir::ValueId;
use crate::tensor_type::{TensorType, TypeError};
use crate::{GraphError, onnx};
use weir_types::ElementType;

pub(crate) struct LoweringCall<'a> {
    pub(crate) node: &'a onnx::Node,
    pub(crate) inputs: Vec<Option<ValueId>>,
    pub(crate) opset: i64,
}

impl LoweringCall<'_> {
    /// The input at `place`; an error if it is missing.
    pub(crate) fn input(&self, place: usize) -> Result<ValueId, GraphError> {
        self.optional(place).ok_or_else(|| self.invalid(format!("input {place} is missing")))
    }

    /// The input at `place`, if present.
    pub(crate) fn optional(&self, place: usize) -> Option<ValueId> {
        self.inputs.get(place).copied().flatten()
    }

    /// All inputs; an error if one is missing.
    pub(crate) fn all_inputs(&self) -> Result<Vec<ValueId>, GraphError> {
        (0..self.inputs.len().max(1)).map(|place| self.input(place)).collect()
    }

    /// Whether the model uses the output at `place`.
    pub(crate) fn wants(&self, place: usize) -> bool {
        self.node.outputs.get(place).is_some_and(|name| !name.is_empty())
    }

    /// An integer attribute, if present.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.node.attribute(name)?.int
    }

    /// Whether an attribute is present and not 0.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.int(name).is_some_and(|value| value != 0)
    }

    /// An attribute that is a list of integers, if present.
    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.node.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    /// A float attribute, if present.
    pub(crate) fn float(&self, name: &str) -> Option<f32> {
        self.node.attribute(name)?.float
    }

    /// An attribute that is a list of floats, if present.
    pub(crate) fn floats(&self, name: &str) -> Option<&[f32]> {
        self.node.attribute(name).map(|attribute| attribute.floats.as_slice())
    }

    /// A string attribute, or `default` if it is absent.
    pub(crate) fn text<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, GraphError> {
        let Some(text) = self.node.attribute(name).and_then(|attribute| attribute.text.as_ref()) else {
            return Ok(default);
        };
        std::str::from_utf8(text).map_err(|_| self.invalid(format!("{name:?} is not text")))
    }

    /// Return an attribute's sizes along height and width; `default` where absent. A single size is
    /// the width, with `default` for the height.
    pub(crate) fn sizes(&self, name: &str, spatial: usize, default: usize) -> Result<[usize; 2], GraphError> {
        let Some(given) = self.ints(name) else { return Ok([default; 2]) };
        let sizes: Vec<usize> = given
            .iter()
            .map(|size| usize::try_from(*size).ok().filter(|size| *size <= SIZE_MAX))
            .collect::<Option<_>>()
            .ok_or_else(|| self.invalid(format!("{name} {given:?} is not possible")))?;
        match (sizes.as_slice(), spatial) {
            (&[width], 1) => Ok([default, width]),
            (&[height, width], 2) => Ok([height, width]),
            _ => Err(self.invalid(format!("{name} {given:?} is for another number of dimensions"))),
        }
    }

    /// Resolve a possibly negative axis.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, GraphError> {
        let from_start = if axis < 0 { axis.checked_add_unsigned(rank as u64) } else { Some(axis) };
        let axis_of = from_start.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < rank);
        axis_of.ok_or_else(|| self.invalid(format!("there is no axis {axis} in {rank} dimensions")))
    }

    /// Resolve several axes; the result is ascending.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, GraphError> {
        let mut axes: Vec<usize> =
            axes.iter().map(|axis| self.axis(*axis, rank)).collect::<Result<_, _>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    /// The type of an output.
    pub(crate) fn tensor(
        &self,
        element_type: ElementType,
        dims: impl Into<Vec<usize>>,
    ) -> Result<TensorType, GraphError> {
        TensorType::new(element_type, dims)
            .map_err(|error: TypeError| self.invalid(format!("it makes {error}")))
    }

    /// Error for a node that contradicts the standard, or does not fit its inputs.
    pub(crate) fn invalid(&self, why: impl Into<String>) -> GraphError {
        let node = self.node.title().to_owned();
        let operator = self.node.operator.clone();
        GraphError::Invalid { node, operator, why: why.into() }
    }

    /// Error for a valid node that the GPU path does not support; `what` ends with a verb.
    pub(crate) fn unsupported(&self, what: impl Into<String>) -> GraphError {
        let node = self.node.title().to_owned();
        let operator = self.node.operator.clone();
        GraphError::Unsupported { node, operator, what: what.into() }
    }

    /// Check that the operator exists in the model's opset.
    pub(super) fn check_opset(&self, operator: &Operator) -> Result<(), GraphError> {
        if super::operators::is_own(self.node) && self.opset < operator.since {
            let why = format!("there is no such operator before opset {}", operator.since);
            return Err(self.invalid(why));
        }
        Ok(())
    }
}

/// Largest stride, window or padding; keeps sums and products of a few of them from overflowing.
pub(crate) const SIZE_MAX: usize = 1 << 24;
