//! Operations that move bytes, or pick them by index. They do not care what the elements are, but for their size.

use super::Scalar;

/// Elements of the operands, put together. Operands: as many as the parts name; output: of the same element type.
///
/// The parts do not overlap. Where there are elements of the output that no part writes, there is a `fill`.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    /// What the output is filled with first.
    pub fill: Option<Scalar>,
    /// What is copied.
    pub parts: Vec<Part>,
}

/// A block of elements that is copied: `dims` of them, 1 to [`DIMS_MAX`](super::DIMS_MAX) dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The place of the operand that it comes from.
    pub input: usize,
    /// How many elements there are along each dimension, at least 1.
    pub dims: Vec<usize>,
    /// Where they are in the operand.
    pub from: Layout,
    /// Where they go in the output.
    pub to: Layout,
}

/// Where the elements of a block are in a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The index of the first.
    pub offset: usize,
    /// How many elements lie between one index and the next along each dimension of the block; negative for what is read backwards, 0 for what is
    /// read again.
    pub strides: Vec<isize>,
}

/// Blocks of a value picked by index: `y[o, j, i] = x[o, indices[j], i]`, where a negative index counts from the end, and then one that is not there
/// is the nearest that is.
///
/// Operands: `x[outer, axis, inner]` and the indices, of type [`Int64`](weir_types::ElementType::Int64) or
/// [`Int32`](weir_types::ElementType::Int32). Output: `y[outer, count, inner]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// Blocks around the axis.
    pub outer: usize,
    /// How many there are to pick from; at least 1.
    pub axis: usize,
    /// Elements in each.
    pub inner: usize,
    /// How many indices there are.
    pub count: usize,
}

/// Elements picked by index: along one axis the index says where to read, along the others it is the place in the output. Indices are taken as in
/// [`Gather`].
///
/// Operands: `x` and the indices, `dims` of them. Output: `dims` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatherElements {
    /// Dimensions of the indices and the output: 1 to [`DIMS_MAX`](super::DIMS_MAX).
    pub dims: Vec<usize>,
    /// How many of `x`'s elements lie between one index and the next along each of `dims`; 0 along the axis.
    pub strides: Vec<usize>,
    /// The size of `x` along the axis; at least 1.
    pub axis: usize,
    /// How many of `x`'s elements lie between one index and the next along the axis.
    pub axis_stride: usize,
}

impl Copy {
    /// The single part that makes up the whole output in order, if there is just that: the output is the operand, seen through other strides.
    #[must_use]
    pub fn as_strided(&self) -> Option<&Part> {
        let [part] = self.parts.as_slice() else { return None };
        let in_order = crate::tensor_type::row_major(&part.dims);
        let same = part.to.strides.iter().zip(&in_order).zip(&part.dims);
        let contiguous =
            same.into_iter().all(|((have, want), dim)| *dim == 1 || usize::try_from(*have) == Ok(*want));
        (self.fill.is_none() && part.to.offset == 0 && contiguous).then_some(part)
    }
}
