//! Selection of the matrix products that cuBLASLt computes. The rule is a function of plain data
//! and gives the same result in every run; nothing is benchmarked.
//!
//! The library computes the same operation as Weir's own kernels: one stride along the batch, a
//! bias for columns, a residual, and no activation or ReLU. After a large product, another
//! activation is a separate launch. All other products stay with the kernels, including small
//! products, whose time is mostly launch overhead.

use super::bias::Biases;
use super::{BufferLocation, Types};
use weir_device::cuda::{ProductBuffers, ProductMatrix, ProductShape};
use weir_graph::{
    Activation, BiasAxis, Elementwise, ElementwiseProgram, Instruction, MatMul, Matrix, NumberType, Op,
    TensorType, Unary,
};
use weir_kernels::{KernelTarget, Launch, LaunchPlan, OperandBuffer, Operands, Precision};
use weir_types::ElementType;

/// Minimum number of floating-point operations of a product for the library. Measured on an H200: of
/// the bounds 2^27, 2^24 and 2^21, the last gave the shortest time for every network, precision and
/// batch (docs/measurements.md).
pub const FLOPS_MIN: u64 = 1 << 21;
/// Same minimum for products with an activation that the library does not compute.
const ACTIVATED_FLOPS_MIN: u64 = 1 << 26;
/// Maximum number of rows of a product for the few-row kernels. Such a product is bound by one read
/// of the right-hand matrix.
const FEW_ROWS: usize = 4;
/// Alignment of the start of every buffer.
const BUFFER_ALIGNMENT_BYTES: usize = 16;

/// Implementation of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProductTier {
    /// Weir's own kernels.
    Own,
    /// cuBLASLt, for products of at least `flops_min` operations.
    CublasLt {
        /// [`FLOPS_MIN`], except in tests.
        flops_min: u64,
        /// Workspace of each product.
        workspace_bytes: u64,
    },
}

/// Product for the library, on buffers `B`.
#[derive(Debug, Clone, Copy)]
pub struct LibraryGemm<B> {
    pub(crate) shape: ProductShape,
    pub(crate) buffers: ProductBuffers<Operand<B>>,
    pub(crate) workspace_bytes: u64,
}

/// A node's product for the library, and the subsequent launches that complete the node.
#[derive(Debug)]
pub(crate) struct LibraryProduct<B> {
    pub(crate) product: LibraryGemm<B>,
    pub(crate) then: Vec<Launch<B>>,
}

/// Byte offset in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand<B> {
    pub(crate) buffer: B,
    pub(crate) offset_bytes: u64,
}

impl ProductTier {
    /// Returns the same tier for products of every size.
    pub fn for_all(self) -> Self {
        match self {
            Self::Own => Self::Own,
            Self::CublasLt { workspace_bytes, .. } => Self::CublasLt { flops_min: 0, workspace_bytes },
        }
    }

    /// Returns the product for the library that computes `op`, or `None` if the kernels of `plan`
    /// compute it. Planning has already validated the operands.
    pub(super) fn product(
        self,
        op: &Op,
        operands: Operands<'_>,
        precision: Precision,
        plan: &LaunchPlan,
        target: &KernelTarget,
    ) -> Option<LibraryProduct<OperandBuffer>> {
        let (Self::CublasLt { flops_min, workspace_bytes }, Op::MatMul(op)) = (self, op) else { return None };
        let mut op = op.flattened();
        let activation = op.activation.take_if(|activation| *activation != Activation::Relu);
        let flops_min = if activation.is_some() { flops_min.max(ACTIVATED_FLOPS_MIN) } else { flops_min };
        if plan.cost().flops < flops_min || plan.launches.is_empty() {
            return None;
        }
        let product = product(&op, operands, precision, workspace_bytes)?;
        let then = match activation {
            None => Vec::new(),
            Some(activation) => activated(activation, operands, precision, target)?,
        };
        Some(LibraryProduct { product, then })
    }
}

/// Launches that apply an activation to the output in place.
fn activated(
    activation: Activation,
    operands: Operands<'_>,
    precision: Precision,
    target: &KernelTarget,
) -> Option<Vec<Launch<OperandBuffer>>> {
    let output = operands.outputs.first().copied().flatten()?;
    let instructions = vec![Instruction::Load(0), Instruction::Unary(Unary::Activate(activation))];
    let op = Op::Elementwise(Elementwise {
        program: ElementwiseProgram { lane: NumberType::Float, instructions },
        dims: vec![output.elements()],
        strides: vec![vec![1]],
    });
    let in_place = Operands { inputs: &[Some(output)], outputs: &[Some(output)] };
    let plan = weir_kernels::plan(&op, in_place, precision, target).ok()?;
    let launches = plan.launches.iter().map(|launch| launch.with_buffers(|_| OperandBuffer::Output(0)));
    (plan.workspace_bytes == 0).then(|| launches.collect())
}

impl LibraryProduct<OperandBuffer> {
    /// Replaces the operand slots with locations.
    pub(super) fn with_buffers(
        &self,
        place: impl Fn(OperandBuffer) -> BufferLocation + Copy,
    ) -> LibraryProduct<BufferLocation> {
        let then = self.then.iter().map(|launch| launch.with_buffers(|slot| place(*slot))).collect();
        LibraryProduct { product: self.product.with_buffers(place), then }
    }
}

impl LibraryGemm<OperandBuffer> {
    fn with_buffers(&self, place: impl Fn(OperandBuffer) -> BufferLocation) -> LibraryGemm<BufferLocation> {
        let at = |operand: &Operand<OperandBuffer>| Operand {
            buffer: place(operand.buffer),
            offset_bytes: operand.offset_bytes,
        };
        let Self { shape, workspace_bytes, .. } = *self;
        LibraryGemm { shape, buffers: self.buffers.map(at), workspace_bytes }
    }
}

impl LibraryProduct<BufferLocation> {
    /// Converts the bias to the element type. Returns `None` if that is impossible.
    pub(super) fn with_bias(self, types: &Types, biases: &mut Biases<'_>) -> Option<Self> {
        Some(Self { product: self.product.with_bias(types, biases)?, then: self.then })
    }
}

impl LibraryGemm<BufferLocation> {
    /// Converts the bias to the element type. Returns `None` if that is impossible.
    fn with_bias(mut self, types: &Types, biases: &mut Biases<'_>) -> Option<Self> {
        if let Some(bias) = &mut self.buffers.bias {
            let tensor = types.inputs.get(MatMul::BIAS)?.as_ref()?;
            bias.buffer = biases.rounded(bias.buffer, tensor, self.shape.element_type)?;
        }
        Some(self)
    }
}

fn product(
    op: &MatMul,
    operands: Operands<'_>,
    precision: Precision,
    workspace_bytes: u64,
) -> Option<LibraryGemm<OperandBuffer>> {
    let output = operands.outputs.first().copied().flatten()?;
    let operand = |place: usize| operands.inputs.get(place).copied().flatten();
    let bias = operand(MatMul::BIAS);
    let residual = operand(MatMul::RESIDUAL);
    let (element_type, element_bytes) = match output.element_type() {
        ElementType::Fp32 => (ElementType::Fp32, 4),
        half @ (ElementType::Fp16 | ElementType::Bf16) => (half, 2),
        _ => return None,
    };
    // A bias of another type is rounded first.
    let is_known = |bias: &TensorType| {
        [element_type, ElementType::Fp32].contains(&bias.element_type()) && op.bias_axis == BiasAxis::Columns
    };
    let relu = match op.activation {
        None => false,
        Some(Activation::Relu) => true,
        Some(_) => return None,
    };
    if op.m <= FEW_ROWS || op.k == 0 || !bias.is_none_or(is_known) {
        return None;
    }

    let (batch, strides) = one_batch(op)?;
    let small = |size: usize| u32::try_from(size).ok().filter(|size| i32::try_from(*size).is_ok());
    let matrix = |matrix: &Matrix, rows: usize, columns: usize, batch_stride: usize| {
        let (count, length) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
        // The row stride of a single row is irrelevant.
        let row_stride = if count == 1 { matrix.row_stride.max(length) } else { matrix.row_stride };
        // The library does not support overlapping rows.
        (row_stride >= length).then_some(())?;
        let offset_bytes = matrix.offset * element_bytes;
        Some(ProductMatrix {
            transposed: matrix.transposed,
            row_stride: small(row_stride)?,
            batch_stride: batch_stride as u64,
            alignment_bytes: alignment(offset_bytes),
        })
    };
    let shape = ProductShape {
        element_type,
        tf32: precision != Precision::Fp32,
        m: small(op.m)?,
        n: small(op.n)?,
        k: small(op.k)?,
        batch: small(batch)?,
        a: matrix(&op.a, op.m, op.k, strides[0])?,
        b: matrix(&op.b, op.k, op.n, strides[1])?,
        alpha: op.alpha,
        has_bias: bias.is_some(),
        has_residual: residual.is_some(),
        relu,
    };
    let at = |slot: OperandBuffer, offset: usize| Operand {
        buffer: slot,
        offset_bytes: (offset * element_bytes) as u64,
    };
    let buffers = ProductBuffers {
        a: at(OperandBuffer::Input(MatMul::A), op.a.offset),
        b: at(OperandBuffer::Input(MatMul::B), op.b.offset),
        bias: bias.map(|_| at(OperandBuffer::Input(MatMul::BIAS), 0)),
        residual: residual.map(|_| at(OperandBuffer::Input(MatMul::RESIDUAL), 0)),
        d: at(OperandBuffer::Output(0), 0),
        workspace: at(OperandBuffer::Workspace, 0),
    };
    Some(LibraryGemm { shape, buffers, workspace_bytes })
}

/// Merges the batch dimensions into one, and returns its size and the strides of both sides.
/// Returns `None` if the dimensions are not contiguous.
fn one_batch(op: &MatMul) -> Option<(usize, [usize; 2])> {
    let mut batch = 1;
    let mut strides = [0, 0];
    for (place, count) in op.batch.iter().enumerate().rev() {
        if *count == 1 {
            continue;
        }
        let outer = [*op.a.batch_strides.get(place)?, *op.b.batch_strides.get(place)?];
        if batch == 1 {
            strides = outer;
        } else if outer != strides.map(|stride| stride * batch) {
            return None;
        }
        batch *= count;
    }
    Some((batch, strides))
}

/// Returns the alignment of an address at this offset of a buffer.
fn alignment(offset_bytes: usize) -> u32 {
    1 << (offset_bytes | BUFFER_ALIGNMENT_BYTES).trailing_zeros()
}
