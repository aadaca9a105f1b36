//! Matrix products.

use super::Activation;

/// Matrix product with an epilogue, for each matrix of the batch:
/// `y = activation(alpha * a * b + bias + residual)`.
///
/// Operands: `a`, `b`, then optionally `bias` (`n` or `m` elements, shared by the whole batch) and
/// `residual` (of the output's dimensions). Output: `batch` matrices of `m` rows and `n` columns,
/// contiguous.
#[derive(Debug, Clone, PartialEq)]
pub struct MatMul {
    /// Dimensions of the batch, outermost first; at most four, and empty for a single matrix.
    pub batch: Vec<usize>,
    /// Rows of `a` and the output.
    pub m: usize,
    /// Columns of `b` and the output.
    pub n: usize,
    /// Columns of `a` and rows of `b`.
    pub k: usize,
    /// Layout of `a`: `m` rows of `k`, or transposed.
    pub a: Matrix,
    /// Layout of `b`: `k` rows of `n`, or transposed.
    pub b: Matrix,
    /// Factor of the product.
    pub alpha: f32,
    /// Axis of the bias.
    pub bias_axis: BiasAxis,
    /// Activation of each element, applied last.
    pub activation: Option<Activation>,
}

/// Layout of an operand's matrices in its buffer, in elements. The elements of a row (of a column
/// if `transposed`) are contiguous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// Offset of the first matrix.
    pub offset: usize,
    /// Strides between matrices along each dimension of the batch; 0 where the operand broadcasts.
    pub batch_strides: Vec<usize>,
    /// Stride between rows in memory.
    pub row_stride: usize,
    /// Whether rows in memory are the columns of the matrix.
    pub transposed: bool,
}

/// Axis of a bias.
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
    /// Number of operands, including omitted ones.
    pub const OPERANDS: usize = 4;

    /// The same product with as few matrices as possible. Matrices of a batch become rows of one
    /// matrix, if they share the right operand and their rows are contiguous.
    #[must_use]
    pub fn flattened(&self) -> Self {
        let mut op = self.clone();
        while let Some((count, outer)) = op.batch.split_last() {
            let count = *count;
            let outer = outer.to_vec();
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
    fn batch_with_shared_right_operand_becomes_rows() {
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
