//! Operations on the rows of a matrix: the innermost dimensions of a value, as many as it takes, are one row.

/// One number of each row. Operand: `x[rows, cols]`; output: `rows` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduce {
    /// Which number.
    pub kind: ReduceKind,
    /// How many rows.
    pub rows: usize,
    /// How long each is; at least 1.
    pub cols: usize,
}

/// Which number is taken of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceKind {
    /// The sum.
    Sum,
    /// The mean; of integers rounded towards 0.
    Mean,
    /// The largest.
    Max,
    /// The smallest.
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

/// Softmax of each row of `scale * x + mask`, its largest element subtracted first. Operands: `x[rows, cols]`, optionally `mask`; output:
/// `[rows, cols]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// How many rows.
    pub rows: usize,
    /// How long each is; at least 1.
    pub cols: usize,
    /// The factor.
    pub scale: f32,
    /// Whether the logarithm of it is wanted.
    pub log: bool,
    /// Where the mask is if there is one.
    pub mask: Option<Mask>,
}

/// How an additive mask broadcasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// The elements of what is masked: 1 to [`DIMS_MAX`](super::DIMS_MAX) dimensions, the last of which is a row's.
    pub dims: Vec<usize>,
    /// How many of the mask's elements lie between one index and the next along each of `dims`: 0 where it broadcasts.
    pub strides: Vec<usize>,
}

/// Layer normalisation (arXiv:1607.06450): `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta` for each row of `x`, or of `x + residual`.
///
/// Operands: `x[rows, cols]`, then optionally `gamma[cols]`, `beta[cols]`, `residual[rows, cols]`. Outputs: `y[rows, cols]` and optionally the sum
/// `x + residual`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm {
    /// How many rows.
    pub rows: usize,
    /// How long each is; at least 1.
    pub cols: usize,
    /// What is added to the variance.
    pub epsilon: f32,
}

/// Where each row has its largest or smallest element. Operand: `x[rows, cols]`; output: `rows` elements of type [`Int64`](weir_types::ElementType::Int64).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgReduce {
    /// How many rows.
    pub rows: usize,
    /// How long each is; at least 1.
    pub cols: usize,
    /// Whether the largest is looked for.
    pub largest: bool,
    /// Whether the last of equal elements counts, rather than the first.
    pub last: bool,
}

/// The `k` largest or smallest elements of each row in order, the first of equal ones first. Operand: `x[rows, cols]`; outputs: the elements `[rows, k]`
/// and where they are, of type [`Int64`](weir_types::ElementType::Int64).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopK {
    /// How many rows.
    pub rows: usize,
    /// How long each is.
    pub cols: usize,
    /// How many are taken: at most `cols`.
    pub k: usize,
    /// Whether the largest are.
    pub largest: bool,
}

/// Running sums along each row. Operand: `x[rows, cols]`; output: `[rows, cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CumSum {
    /// How many rows.
    pub rows: usize,
    /// How long each is.
    pub cols: usize,
    /// Whether an element's own is left out of its sum.
    pub exclusive: bool,
    /// Whether it runs from the end.
    pub reverse: bool,
}

impl Softmax {
    /// Operand: what softmax is taken of.
    pub const X: usize = 0;
    /// Operand, optional: the mask.
    pub const MASK: usize = 1;
    /// How many operands there are, with those left out.
    pub const OPERANDS: usize = 2;
}

impl LayerNorm {
    /// Operand: what is normalised.
    pub const X: usize = 0;
    /// Operand, optional: the factor of each column.
    pub const GAMMA: usize = 1;
    /// Operand, optional: added to each column.
    pub const BETA: usize = 2;
    /// Operand, optional: added to what is normalised, first.
    pub const RESIDUAL: usize = 3;
    /// How many operands there are, with those left out.
    pub const OPERANDS: usize = 4;
    /// Output: the rows.
    pub const Y: usize = 0;
    /// Output, optional: what was normalised, with the residual.
    pub const SUM: usize = 1;
}
