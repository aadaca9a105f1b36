//! Description of a matrix product for kernels.

use super::super::epilogue::EpilogueOutput;
use super::super::limits::stride;
use crate::fields::Fields;
use weir_graph::{BiasAxis, MatMul, Matrix};

/// Largest number of batch dimensions: `batch_dimensions_max` in `gemm.cuh`.
pub(super) const BATCH_DIMS_MAX: usize = 4;

/// `GemmShape` in `gemm.cuh`.
pub(super) struct GemmShape<'a> {
    pub(super) op: &'a MatMul,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) element_bytes: u32,
    pub(super) vector_type: u32,
}

impl GemmShape<'_> {
    pub(super) fn fields(&self, k_part: u32, tiles_m: u32) -> Fields {
        let Self { op, k, .. } = *self;
        let strides = |matrix: &Matrix| -> Vec<i64> {
            matrix.batch_strides.iter().map(|at| stride(*at).unwrap_or(0)).collect()
        };
        let sizes: Vec<u32> = op.batch.iter().map(|size| *size as u32).collect();
        // Lines of A run along its columns, and lines of B along its rows, unless the matrix is
        // transposed.
        let a_length = if op.a.transposed { op.m } else { op.k };
        let b_length = if op.b.transposed { op.k } else { op.n };
        Fields::default()
            .i64(op.a.offset as i64)
            .i64(op.b.offset as i64)
            .i64(op.a.row_stride as i64)
            .i64(op.b.row_stride as i64)
            .i64s_reversed::<BATCH_DIMS_MAX>(&strides(&op.a), 0)
            .i64s_reversed::<BATCH_DIMS_MAX>(&strides(&op.b), 0)
            .u32s_reversed::<BATCH_DIMS_MAX>(&sizes, 1)
            .u32(sizes.len() as u32)
            .u32(k)
            .u32(k_part)
            .u32(tiles_m)
            .u32(self.is_packed(&op.a, a_length))
            .u32(self.is_packed(&op.b, b_length))
            .fields(&self.output().fields())
    }

    pub(super) fn output(&self) -> EpilogueOutput {
        EpilogueOutput {
            z_stride: u64::from(self.m) * u64::from(self.n),
            image_stride: 0,
            m: self.m,
            n: self.n,
            image_columns: self.n,
            vectors_along_n: self.op.bias_axis == BiasAxis::Columns,
            vector_z_stride: 0,
            vector_type: self.vector_type,
            alpha: self.op.alpha,
            activation: self.op.activation,
        }
    }

    /// Whether the length and the address of every line are multiples of 16 bytes.
    fn is_packed(&self, matrix: &Matrix, length: usize) -> u32 {
        let pack = 16 / self.element_bytes as usize;
        let mut distances = matrix.batch_strides.iter().chain([&matrix.offset, &matrix.row_stride]);
        u32::from(length.is_multiple_of(pack) && distances.all(|distance| distance.is_multiple_of(pack)))
    }
}
