//! Matrix products.

use super::numbers::activate;
use super::{ReferenceTensor, floats};
use crate::TensorType;
use crate::ir::{BiasAxis, MatMul, Matrix};

pub(super) fn matmul<'a>(
    op: &MatMul,
    operand: &dyn Fn(usize) -> Option<&'a ReferenceTensor>,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let a = floats(operand(MatMul::A))?;
    let b = floats(operand(MatMul::B))?;
    let bias = floats(operand(MatMul::BIAS));
    let residual = floats(operand(MatMul::RESIDUAL));
    let count: usize = op.batch.iter().product();
    if a.len() < op.a.reach(&op.batch, op.m, op.k)? || b.len() < op.b.reach(&op.batch, op.k, op.n)? {
        return None;
    }
    let mut made = Vec::with_capacity(out.elements());
    let mut sums = vec![0.0_f64; op.n];
    for matrix in 0..count {
        let a_at = op.a.at(&op.batch, matrix);
        let b_at = op.b.at(&op.batch, matrix);
        for row in 0..op.m {
            product_row(op, &a[a_at..], &b[b_at..], row, &mut sums);
            for (column, sum) in sums.iter().enumerate() {
                let mut y = f64::from(op.alpha) * sum;
                if let Some(bias) = &bias {
                    let at = if op.bias_axis == BiasAxis::Columns { column } else { row };
                    y += f64::from(*bias.get(at)?);
                }
                if let Some(residual) = &residual {
                    y += f64::from(*residual.get(made.len())?);
                }
                made.push(op.activation.map_or(y as f32, |activation| activate(activation, y as f32)));
            }
        }
    }
    Some(ReferenceTensor::floats(out.clone(), made))
}

/// Compute one row of one product; the inner loop runs along the contiguous direction of `b`.
fn product_row(op: &MatMul, a: &[f32], b: &[f32], row: usize, sums: &mut [f64]) {
    sums.fill(0.0);
    let of_a = |k: usize| f64::from(a[op.a.element(row, k)]);
    if op.b.transposed {
        for (column, sum) in sums.iter_mut().enumerate() {
            let b = &b[column * op.b.row_stride..][..op.k];
            *sum = b.iter().enumerate().map(|(k, b)| of_a(k) * f64::from(*b)).sum();
        }
    } else {
        for k in 0..op.k {
            let a = of_a(k);
            let b = &b[k * op.b.row_stride..][..op.n];
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * f64::from(*b));
        }
    }
}

impl Matrix {
    /// Index of an element within its matrix.
    fn element(&self, row: usize, column: usize) -> usize {
        if self.transposed { column * self.row_stride + row } else { row * self.row_stride + column }
    }

    /// Index of the first element of a matrix of the batch.
    fn at(&self, batch: &[usize], mut matrix: usize) -> usize {
        let mut at = self.offset;
        for (dim, stride) in batch.iter().zip(&self.batch_strides).rev() {
            at += matrix % dim * stride;
            matrix /= dim;
        }
        at
    }

    /// Smallest number of elements of a value that holds all matrices, of `rows` by `columns`.
    pub(crate) fn reach(&self, batch: &[usize], rows: usize, columns: usize) -> Option<usize> {
        if batch.contains(&0) || rows == 0 || columns == 0 {
            return Some(0);
        }
        let last = batch.iter().zip(&self.batch_strides).map(|(dim, stride)| (*dim - 1).checked_mul(*stride));
        let last = last.chain([
            (if self.transposed { columns } else { rows } - 1).checked_mul(self.row_stride),
            Some(if self.transposed { rows } else { columns } - 1),
        ]);
        last.into_iter().try_fold(self.offset.checked_add(1)?, |sum, part| sum.checked_add(part?))
    }
}
