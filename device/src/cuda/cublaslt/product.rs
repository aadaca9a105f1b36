//! One prepared shape of matrix product.
//!
//! ```text
//!   Weir      d = a  * b      row-major       m x n = m x k * k x n
//!   library   d' = b' * a'    column-major: the same bytes, read as the transposed matrices,
//!                             so the library's left side is our right side
//! ```

use super::Products;
use super::descriptors::{Descriptor, Layout, Preference};
use super::functions::{Heuristic, NOT_SUPPORTED};
use crate::cuda::error::CudaError;
use crate::cuda::stream::Stream;
use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue, cublasLtMatmulAlgo_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreferenceAttributes_t as Wish,
    cublasLtReductionScheme_t as Reduction, cudaDataType_t as DataType,
};
use parking_lot::Mutex;
use std::sync::Arc;
use weir_types::ElementType;

/// Alignment of the addresses of outputs, bias, residual and workspace.
const ALIGNMENT_BYTES: u32 = 16;
/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
const TRANSPOSED: [i32; 2] = [0, 1];

/// `d = activation(alpha * a * b + bias + residual)` for each matrix of a batch, accumulated in
/// fp32. Plain data. The residual and `d` have the same layout: contiguous and row-major.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProductShape {
    /// Element type of all matrices and of the bias: fp32, fp16 or bf16.
    pub element_type: ElementType,
    /// Whether fp32 factors may be rounded to 10 bits of fraction.
    pub tf32: bool,
    /// Rows of `a` and `d`.
    pub m: u32,
    /// Columns of `b` and `d`.
    pub n: u32,
    /// Columns of `a`, rows of `b`.
    pub k: u32,
    /// Number of matrices.
    pub batch: u32,
    /// The left side.
    pub a: ProductMatrix,
    /// The right side.
    pub b: ProductMatrix,
    /// Factor of the product.
    pub alpha: f32,
    /// Whether a bias is added, one number per column.
    pub has_bias: bool,
    /// Whether a matrix is added.
    pub has_residual: bool,
    /// Whether negative results become 0 at the end.
    pub relu: bool,
}

/// Layout of one side's matrices, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProductMatrix {
    /// Whether rows in memory are the columns of the matrix.
    pub transposed: bool,
    /// Distance between rows in memory; at least the length of a row.
    pub row_stride: u32,
    /// Distance between matrices; 0 if all are the same.
    pub batch_stride: u64,
    /// Alignment of the first matrix's address, a power of two.
    pub alignment_bytes: u32,
}

/// Operands of a product: addresses for a launch, or placeholders before. All operands start at
/// multiples of 16 bytes, except `a` and `b`, whose alignment the shape states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductBuffers<B> {
    /// The left side.
    pub a: B,
    /// The right side.
    pub b: B,
    /// The bias, if the shape has one.
    pub bias: Option<B>,
    /// The added matrix, if the shape has one; it may be the same memory as `d`.
    pub residual: Option<B>,
    /// The output.
    pub d: B,
    /// Workspace of [`Gemm::workspace_bytes`].
    pub workspace: B,
}

/// Everything that the selection of an algorithm depends on.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct AlgorithmKey {
    element_type: ElementType,
    tf32: bool,
    sizes: [u32; 4],
    matrices: [ProductMatrix; 2],
    has_bias: bool,
    has_residual: bool,
    relu: bool,
    workspace_bytes_max: u64,
}

/// Algorithm of the library for a shape.
#[derive(Clone, Copy)]
pub(super) struct SelectedAlgorithm {
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

/// A prepared shape of product on a device, with the algorithm that the library has selected.
pub struct Gemm {
    /// Changed by each launch, since it contains the address of the bias.
    descriptor: Mutex<Descriptor>,
    left: Layout,
    right: Layout,
    output: Layout,
    selected: SelectedAlgorithm,
    shape: ProductShape,
    products: Arc<Products>,
}

impl Gemm {
    /// Prepares a shape with a workspace of at most `workspace_bytes_max`. `None` if the library
    /// has no kernel for the shape. Works on the host only. The first product of a shape asks the
    /// library for an algorithm, which takes some tens of microseconds; later products use the same
    /// algorithm.
    pub fn new(
        products: &Arc<Products>,
        shape: ProductShape,
        workspace_bytes_max: u64,
    ) -> Result<Option<Self>, CudaError> {
        let data_type = match shape.element_type {
            ElementType::Fp32 => DataType::CUDA_R_32F,
            ElementType::Fp16 => DataType::CUDA_R_16F,
            ElementType::Bf16 => DataType::CUDA_R_16BF,
            other => return Err(CudaError::Invalid(format!("a product of matrices of {other}"))),
        };
        let ProductShape { m, n, k, a, b, .. } = shape;
        let of = |matrix: ProductMatrix, rows: u32, columns: u32| {
            let (count, length) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            let batch = (batch(&shape)?, signed(matrix.batch_stride)?);
            Layout::new(products, data_type, [length, count].map(u64::from), matrix.row_stride.into(), batch)
        };
        let left = of(b, k, n)?;
        let right = of(a, m, k)?;
        let matrix = ProductMatrix {
            transposed: false,
            row_stride: n,
            batch_stride: u64::from(m) * u64::from(n),
            alignment_bytes: ALIGNMENT_BYTES,
        };
        let output = of(matrix, m, n)?;

        let descriptor = described(products, &shape, data_type)?;
        let select = || {
            let alignments_bytes = [b, a, matrix].map(|matrix| matrix.alignment_bytes);
            select(products, &descriptor, &left, &right, &output, alignments_bytes, workspace_bytes_max)
        };
        let selected = products.algorithm(shape.algorithm_key(workspace_bytes_max), select)?;
        let descriptor = Mutex::new(descriptor);
        let products = products.clone();
        Ok(selected.map(|selected| Self { descriptor, left, right, output, selected, shape, products }))
    }

    /// Size of the workspace that the selected algorithm uses; can be 0.
    #[must_use]
    pub fn workspace_bytes(&self) -> u64 {
        self.selected.workspace_bytes as u64
    }

    /// Launches the product on `stream`.
    ///
    /// # Safety
    /// The addresses point to memory of the shape's extent, which lives until the work is done and
    /// is used in the meantime only by work ordered with this launch. The workspace has
    /// [`Self::workspace_bytes`]. This product lives until the work is done, whether it is
    /// launched now or recorded.
    pub unsafe fn launch(&self, stream: &Stream, buffers: &ProductBuffers<u64>) -> Result<(), CudaError> {
        let lacking = || {
            CudaError::Invalid("the bias or residual of a matrix product does not match its shape".to_owned())
        };
        let given = (buffers.bias.is_some(), buffers.residual.is_some());
        if given != (self.shape.has_bias, self.shape.has_residual) {
            return Err(lacking());
        }
        let alpha = self.shape.alpha;
        let beta = if self.shape.has_residual { 1.0_f32 } else { 0.0 };
        let descriptor = self.descriptor.lock();
        if let Some(bias) = buffers.bias {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
        }
        // SAFETY: the handles are valid as long as their owners; the call reads the factors before
        // it returns; the rest is guaranteed by the caller.
        self.products.call(|functions| unsafe {
            functions.cublasLtMatmul(
                self.products.handle,
                descriptor.handle,
                (&raw const alpha).cast(),
                buffers.b,
                self.left.handle,
                buffers.a,
                self.right.handle,
                (&raw const beta).cast(),
                buffers.residual.unwrap_or(buffers.d),
                self.output.handle,
                buffers.d,
                self.output.handle,
                &self.selected.algorithm,
                buffers.workspace,
                self.selected.workspace_bytes,
                stream.handle(),
            )
        })
    }
}

impl ProductShape {
    fn algorithm_key(&self, workspace_bytes_max: u64) -> AlgorithmKey {
        let Self { element_type, tf32, m, n, k, batch, a, b, has_bias, has_residual, relu, .. } = *self;
        let sizes = [m, n, k, batch];
        let matrices = [a, b];
        AlgorithmKey {
            element_type,
            tf32,
            sizes,
            matrices,
            has_bias,
            has_residual,
            relu,
            workspace_bytes_max,
        }
    }
}

impl<B> ProductBuffers<B> {
    /// The same operands, converted by `find`.
    pub fn map<C>(&self, mut find: impl FnMut(&B) -> C) -> ProductBuffers<C> {
        ProductBuffers {
            a: find(&self.a),
            b: find(&self.b),
            bias: self.bias.as_ref().map(&mut find),
            residual: self.residual.as_ref().map(&mut find),
            d: find(&self.d),
            workspace: find(&self.workspace),
        }
    }
}

/// Asks the library for its best algorithm. `None` if it has none.
fn select(
    products: &Arc<Products>,
    descriptor: &Descriptor,
    left: &Layout,
    right: &Layout,
    output: &Layout,
    alignments_bytes: [u32; 3],
    workspace_bytes_max: u64,
) -> Result<Option<SelectedAlgorithm>, CudaError> {
    let preference = Preference::new(products)?;
    preference.set(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_max)?;
    // Partial sums are accumulated as fp32 in a workspace, instead of in the output's type.
    let reductions = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    preference.set(Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions)?;
    let [of_left, of_right, of_output] = alignments_bytes;
    for (wish, alignment_bytes) in [
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_left),
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_right),
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_output),
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_output),
    ] {
        preference.set(wish, alignment_bytes)?;
    }
    let mut found = Heuristic::NONE;
    let mut count = 0;
    // SAFETY: the handles are valid as long as their owners; there is room for one result, and
    // both outlive the call.
    let asked = products.call(|functions| unsafe {
        functions.cublasLtMatmulAlgoGetHeuristic(
            products.handle,
            descriptor.handle,
            left.handle,
            right.handle,
            output.handle,
            output.handle,
            preference.handle,
            1,
            &mut found,
            &mut count,
        )
    });
    match asked {
        Err(CudaError::Failed { code: NOT_SUPPORTED, .. }) => return Ok(None),
        asked => asked?,
    }
    let Heuristic { algorithm, workspace_bytes, status, .. } = found;
    let is_usable = count > 0 && status == 0 && workspace_bytes as u64 <= workspace_bytes_max;
    Ok(is_usable.then_some(SelectedAlgorithm { algorithm, workspace_bytes }))
}

fn described(
    products: &Arc<Products>,
    shape: &ProductShape,
    data_type: DataType,
) -> Result<Descriptor, CudaError> {
    let compute = match (shape.element_type, shape.tf32) {
        (ElementType::Fp32, true) => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => Compute::CUBLAS_COMPUTE_32F,
    };
    let descriptor = Descriptor::new(products, compute)?;
    let epilogue = match (shape.has_bias, shape.relu) {
        (false, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (false, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (true, false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (true, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
    };
    let [left, right] = [shape.b, shape.a].map(|matrix| TRANSPOSED[usize::from(matrix.transposed)]);
    descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, left)?;
    descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, right)?;
    descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32)?;
    if shape.has_bias {
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type as u32)?;
        // The heuristic only uses the alignment of this address; each launch sets the real one.
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, u64::from(ALIGNMENT_BYTES))?;
    }
    Ok(descriptor)
}

fn batch(shape: &ProductShape) -> Result<i32, CudaError> {
    i32::try_from(shape.batch).map_err(|_| CudaError::Invalid(format!("a batch of {}", shape.batch)))
}

fn signed(stride: u64) -> Result<i64, CudaError> {
    i64::try_from(stride).map_err(|_| CudaError::Invalid(format!("a stride of {stride}")))
}
