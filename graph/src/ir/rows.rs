//! Operations on the rows of a matrix. One or more of the innermost dimensions of a value form one
//! row.

/// Reduction of each row to one number. Operand: `x[rows, cols]`; output: `rows` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduce {
    /// Kind of reduction.
    pub kind: ReduceKind,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row; at least 1.
    pub cols: usize,
}

/// Kind of reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceKind {
    /// The sum.
    Sum,
    /// The mean; for integers truncated towards 0.
    Mean,
    /// The maximum.
    Max,
    /// The minimum.
    Min,
    /// The product.
    Product,
    /// The sum of absolute values.
    L1,
    /// The square root of the sum of squares.
    L2,
    /// The sum of squares.
    SumSquares,
}

/// Softmax of each row of `scale * x + mask`, stabilised by subtracting the row's maximum.
/// Operands: `x[rows, cols]`, optionally `mask`; output: `[rows, cols]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row; at least 1.
    pub cols: usize,
    /// Factor of `x`.
    pub scale: f32,
    /// Whether to compute the logarithm of softmax.
    pub log: bool,
    /// Layout of the mask, if there is one.
    pub mask: Option<Mask>,
}

/// Broadcasting of an additive mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Dimensions of the masked value: 1 to [`DIMS_MAX`](super::DIMS_MAX), the last of which is the
    /// length of a row.
    pub dims: Vec<usize>,
    /// Strides of the mask along each of `dims`, in elements: 0 where the mask broadcasts.
    pub strides: Vec<usize>,
}

/// Layer normalisation (arXiv:1607.06450):
/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta` for each row of `x`, or of
/// `x + residual`.
///
/// Operands: `x[rows, cols]`, then optionally `gamma[cols]`, `beta[cols]`, `residual[rows, cols]`.
/// Outputs: `y[rows, cols]` and optionally the sum `x + residual`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row; at least 1.
    pub cols: usize,
    /// Summand of the variance.
    pub epsilon: f32,
}

/// Index of the maximum or minimum of each row. Operand: `x[rows, cols]`; output: `rows` elements
/// of type [`Int64`](weir_types::ElementType::Int64).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgReduce {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row; at least 1.
    pub cols: usize,
    /// Whether to find the maximum rather than the minimum.
    pub largest: bool,
    /// Whether to return the last of equal elements rather than the first.
    pub last: bool,
}

/// The `k` largest or smallest elements of each row, sorted; of equal elements, the first comes
/// first. Operand: `x[rows, cols]`; outputs: the elements `[rows, k]` and their indices, of type
/// [`Int64`](weir_types::ElementType::Int64).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopK {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub cols: usize,
    /// Number of elements selected per row: at most `cols`.
    pub k: usize,
    /// Whether to select the largest elements rather than the smallest.
    pub largest: bool,
}

/// Cumulative sums along each row. Operand: `x[rows, cols]`; output: `[rows, cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CumSum {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub cols: usize,
    /// Whether a sum excludes the element at its own position.
    pub exclusive: bool,
    /// Whether sums run from the end of the row.
    pub reverse: bool,
}

impl Softmax {
    /// Operand: the argument of softmax.
    pub const X: usize = 0;
    /// Operand, optional: the mask.
    pub const MASK: usize = 1;
    /// Number of operands, including omitted ones.
    pub const OPERANDS: usize = 2;
}

impl LayerNorm {
    /// Operand: the rows to normalise.
    pub const X: usize = 0;
    /// Operand, optional: factor of each column.
    pub const GAMMA: usize = 1;
    /// Operand, optional: summand of each column.
    pub const BETA: usize = 2;
    /// Operand, optional: added to `x` before the normalisation.
    pub const RESIDUAL: usize = 3;
    /// Number of operands, including omitted ones.
    pub const OPERANDS: usize = 4;
    /// Output: the normalised rows.
    pub const Y: usize = 0;
    /// Output, optional: the sum `x + residual`.
    pub const SUM: usize = 1;
}
