//! Products of matrices.

use super::Activation;

/// For each matrix of the batch: `y = activation(alpha * a * b + bias + residual)`.
///
/// Operands: `a`, `b`, then optionally `bias` (`n` or `m` elements, the same for the whole batch) and `residual` (of the output's dimensions). Output:
/// `batch` matrices of `m` rows and `n` columns, contiguous.
#[derive(Debug, Clone, PartialEq)]
pub struct MatMul {
    /// How many matrices there are along each dimension of the batch, outermost first; at most four dimensions, none for one matrix.
    pub batch: Vec<usize>,
    /// Rows of `a` and the output.
    pub m: usize,
    /// Columns of `b` and the output.
    pub n: usize,
    /// Columns of `a` and rows of `b`.
    pub k: usize,
    /// Where `a` is in its value: `m` rows of `k`, or transposed.
    pub a: Matrix,
    /// Where `b` is in its value: `k` rows of `n`, or transposed.
    pub b: Matrix,
    /// The factor.
    pub alpha: f32,
    /// What the elements of the bias belong to.
    pub bias_axis: BiasAxis,
    /// What is done to each element at the end.
    pub activation: Option<Activation>,
}

/// Where the matrices of an operand lie in its value, in elements. Next to each other in memory are the elements of a row, or of a column if it is
/// transposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// From the start of the value to the first matrix.
    pub offset: usize,
    /// From one matrix to the next along each dimension of the batch; 0 where it broadcasts.
    pub batch_strides: Vec<usize>,
    /// From one row as it lies in memory to the next.
    pub row_stride: usize,
    /// Whether what lies in memory as rows are the columns of the matrix.
    pub transposed: bool,
}

/// What a bias belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasAxis {
    /// One element for each of the `n` columns.
    Columns,
    /// One element for each of the `m` rows.
    Rows,
}

impl MatMul {
    /// Operand: the left matrices.
    pub const A: usize = 0;
    /// Operand: the right matrices.
    pub const B: usize = 1;
    /// Operand, optional: one element for each column or row.
    pub const BIAS: usize = 2;
    /// Operand, optional: added element by element, before the activation.
    pub const RESIDUAL: usize = 3;
    /// How many operands there are, with those left out.
    pub const OPERANDS: usize = 4;
}
