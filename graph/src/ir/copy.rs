//! Operations that move bytes, or select them by index. Only the size of the elements matters.

use super::Scalar;

/// Elements of the operands, assembled into one output. Operands: as many as the parts refer to;
/// output: of the same element type.
///
/// The parts do not overlap. If they leave elements of the output unwritten, `fill` is present.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    /// Initial value of all output elements.
    pub fill: Option<Scalar>,
    /// Blocks to copy.
    pub parts: Vec<CopyPart>,
}

/// A block of elements to copy, of 1 to [`DIMS_MAX`](super::DIMS_MAX) dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPart {
    /// Index of the source operand.
    pub input: usize,
    /// Number of elements along each dimension, at least 1.
    pub dims: Vec<usize>,
    /// Layout in the operand.
    pub from: BlockLayout,
    /// Layout in the output.
    pub to: BlockLayout,
}

/// Layout of a block's elements in a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLayout {
    /// Index of the first element.
    pub offset: usize,
    /// Distance in elements between neighbours along each dimension of the block; negative for a
    /// reversed dimension, 0 for a repeated one.
    pub strides: Vec<isize>,
}

/// Blocks of a value selected by index: `y[o, j, i] = x[o, indices[j], i]`. A negative index counts
/// from the end, and an index out of range is then clamped to the nearest valid one.
///
/// Operands: `x[outer, axis, inner]` and the indices, of type
/// [`Int64`](weir_types::ElementType::Int64) or [`Int32`](weir_types::ElementType::Int32). Output:
/// `y[outer, count, inner]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// Number of blocks to select from; at least 1.
    pub axis: usize,
    /// Number of elements per block.
    pub inner: usize,
    /// Number of indices.
    pub count: usize,
}

/// Elements selected by index: the index gives the position along one axis, and the position in the
/// output gives the others. Indices are interpreted as in [`Gather`].
///
/// Operands: `x` and the indices, `dims` of them. Output: `dims` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatherElements {
    /// Dimensions of the indices and the output: 1 to [`DIMS_MAX`](super::DIMS_MAX).
    pub dims: Vec<usize>,
    /// Strides of `x` along each of `dims`, in elements; 0 along the axis.
    pub strides: Vec<usize>,
    /// Size of `x` along the axis; at least 1.
    pub axis: usize,
    /// Stride of `x` along the axis, in elements.
    pub axis_stride: usize,
}

impl Copy {
    /// The only part, if it makes up the whole output in order: the output is then a strided view
    /// of the operand.
    #[must_use]
    pub fn as_strided(&self) -> Option<&CopyPart> {
        let [part] = self.parts.as_slice() else { return None };
        let in_order = crate::tensor_type::row_major(&part.dims);
        let same = part.to.strides.iter().zip(&in_order).zip(&part.dims);
        let contiguous =
            same.into_iter().all(|((have, want), dim)| *dim == 1 || usize::try_from(*have) == Ok(*want));
        (self.fill.is_none() && part.to.offset == 0 && contiguous).then_some(part)
    }
}
