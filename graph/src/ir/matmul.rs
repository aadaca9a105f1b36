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

    /// The same with as few matrices as can be: those of a batch that all meet the same right side, and whose rows lie one behind the other, are one matrix
    /// of more rows.
    #[must_use]
    pub fn flattened(&self) -> Self {
        let mut op = self.clone();
        while let Some((count, outer)) = op.batch.split_last() {
            let (count, outer) = (*count, outer.to_vec());
            let strides = (op.a.batch_strides.last().copied(), op.b.batch_strides.last().copied());
            let follows = strides == (Some(op.m * op.a.row_stride), Some(0)) || count == 1;
            if !follows || op.a.transposed || (op.bias_axis == BiasAxis::Rows && count != 1) {
                break;
            }
            op.m *= count;
            op.batch = outer;
            op.a.batch_strides.pop();
            op.b.batch_strides.pop();
        }
        op
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(batch_strides: &[usize], row_stride: usize) -> Matrix {
        Matrix { offset: 0, batch_strides: batch_strides.to_vec(), row_stride, transposed: false }
    }

    #[test]
    fn a_batch_that_meets_one_right_side_becomes_rows() {
        let op = MatMul {
            batch: vec![3, 5],
            m: 7,
            n: 4,
            k: 6,
            a: matrix(&[210, 42], 6),
            b: matrix(&[0, 0], 4),
            alpha: 1.0,
            bias_axis: BiasAxis::Columns,
            activation: None,
        };
        let flat = op.flattened();
        assert_eq!((flat.m, flat.batch.len()), (105, 0));
        let own = MatMul { b: matrix(&[0, 24], 4), ..op };
        assert_eq!(own.flattened(), own);
    }
}
