//! Matrix products.

mod shape;

use super::epilogue::{EpilogueOutput, vector_type};
use super::limits::{all_there, blocks, size, walk};
use super::tile::{MEDIUM, TileChoice, TileProblem, Units};
use super::{LaunchPlan, Operands, float_bytes, float_name, has_elements, same_type};
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use crate::{KernelModule, KernelTarget, Precision};
use shape::{BATCH_DIMS_MAX, GemmShape};
use weir_graph::{BiasAxis, MatMul, Matrix};
use weir_types::ElementType;

/// Largest number of rows for the kernel for few rows: `rows_max` in `gemm.cu`.
const FEW_ROWS: u32 = 4;
/// Threads per block of the kernel for few rows, and columns per block.
const FEW_ROWS_THREADS: u32 = 256;
/// Threads per block of the kernel that adds the sums of parts.
const FINISH_THREADS: u32 = 256;

pub(super) fn plan(
    op: &MatMul,
    operands: Operands<'_>,
    precision: Precision,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let op = &op.flattened();
    let elements = op.batch.iter().product::<usize>() * op.m * op.n;
    check_operands(op, operands, elements)?;
    if elements == 0 {
        return Ok(LaunchPlan::default());
    }
    check_matrices(op, operands)?;
    let product = Product::new(op, operands, elements)?;
    if product.shape.m <= FEW_ROWS && op.b.transposed && !op.a.transposed {
        return Ok(product.few_rows());
    }
    product.tiled(Units::choose(product.shape.element_bytes, precision, target), target)
}

/// Check the types and the number of elements of the operands and of the output, which has
/// `elements`.
fn check_operands(op: &MatMul, operands: Operands<'_>, elements: usize) -> Result<(), String> {
    let a = operands.needed(MatMul::A)?;
    let b = operands.needed(MatMul::B)?;
    let output = operands.output()?;
    let bias = operands.input(MatMul::BIAS);
    let residual = operands.input(MatMul::RESIDUAL);
    let element_type = output.element_type();
    float_name(element_type)?;
    for (tensor, what) in [(Some(a), "left side"), (Some(b), "right side"), (residual, "residual")] {
        same_type(tensor, element_type, what)?;
    }
    has_elements(Some(output), elements, "output")?;
    has_elements(residual, elements, "residual")?;
    has_elements(bias, if op.bias_axis == BiasAxis::Rows { op.m } else { op.n }, "bias")
}

/// Check the batch, and that the matrices are inside their buffers.
fn check_matrices(op: &MatMul, operands: Operands<'_>) -> Result<(), String> {
    if op.batch.len() > BATCH_DIMS_MAX {
        return Err(format!("of a batch of {} dimensions", op.batch.len()));
    }
    check(&op.a, &op.batch, op.m, op.k, operands.needed(MatMul::A)?.elements())?;
    check(&op.b, &op.batch, op.k, op.n, operands.needed(MatMul::B)?.elements())
}

/// Product whose operands have matching types and sizes.
struct Product<'a> {
    shape: GemmShape<'a>,
    /// Number of matrices.
    z: u32,
    element_type: ElementType,
    /// Part of the kernels' names for the type of the floats.
    type_name: &'static str,
    cost: LaunchCost,
    has_bias: bool,
    has_residual: bool,
}

impl<'a> Product<'a> {
    fn new(op: &'a MatMul, operands: Operands<'_>, elements: usize) -> Result<Self, String> {
        let element_type = operands.output()?.element_type();
        let bias = operands.input(MatMul::BIAS);
        let m = size("row count", op.m)?;
        let n = size("column count", op.n)?;
        let k = size("depth", op.k)?;
        let z = blocks("matrices", op.batch.iter().product())?;
        let element_bytes = float_bytes(element_type);
        Ok(Self {
            shape: GemmShape { op, m, n, k, element_bytes, vector_type: vector_type(&[bias])? },
            z,
            element_type,
            type_name: float_name(element_type)?,
            cost: LaunchCost { flops: 2 * elements as u64 * op.k as u64, bytes: operands.bytes() },
            has_bias: bias.is_some(),
            has_residual: operands.input(MatMul::RESIDUAL).is_some(),
        })
    }

    /// Plan the kernel for few rows.
    fn few_rows(&self) -> LaunchPlan {
        let Self { shape, z, type_name, cost, .. } = self;
        let fields = Argument::Bytes(shape.fields(shape.k, 1).bytes());
        LaunchPlan::from_launch(Launch {
            kernel: Kernel { module: KernelModule::Gemm, name: format!("gemv_{type_name}") },
            grid: [shape.n.div_ceil(FEW_ROWS_THREADS / 32), 1, *z],
            block: [FEW_ROWS_THREADS, 1, 1],
            shared_bytes: 0,
            arguments: self.buffers().into_iter().chain([fields]).collect(),
            cost: *cost,
            chain: None,
        })
    }

    /// Plan the kernels that compute the product in tiles.
    fn tiled(&self, units: Units, target: &KernelTarget) -> Result<LaunchPlan, String> {
        let &Self { ref shape, z, element_type, type_name, cost, .. } = self;
        let &GemmShape { op, m, n, k, element_bytes, .. } = shape;
        let tiles = if op.a.transposed { &[MEDIUM] } else { units.tiles(element_bytes) };
        let problem = TileProblem { m, n, k, z, element_bytes, units };
        let choice = problem.choose(tiles, target).ok_or("on a device with too little shared memory")?;
        let TileChoice { tile, k_part, parts } = choice;
        let letter = |transposed| if transposed { 't' } else { 'n' };
        let layout = format!("{}{}", letter(op.a.transposed), letter(op.b.transposed));
        let module = match units {
            Units::Plain => KernelModule::Gemm,
            Units::Tensor => KernelModule::GemmTensor,
        };
        let math_name = units.kernel_name(element_type)?;
        let tiles_m = m.div_ceil(tile.m);
        let grid_x = tiles_m.checked_mul(n.div_ceil(tile.n)).ok_or("with too many rows and columns")?;
        let shared_bytes = if op.a.transposed {
            tile.shared_bytes_transposed(element_bytes, op.b.transposed)
        } else {
            tile.shared_bytes(element_bytes, op.b.transposed)
        };
        let sums = address(OperandBuffer::Workspace, parts > 1);
        let fields = Argument::Bytes(shape.fields(k_part, tiles_m).bytes());
        let mut launches = vec![Launch {
            kernel: Kernel { module, name: format!("gemm_{layout}_{math_name}_{}", tile.name) },
            grid: [grid_x, parts, z],
            block: [tile.threads, 1, 1],
            shared_bytes,
            arguments: self.buffers().into_iter().chain([sums, fields]).collect(),
            cost,
            chain: None,
        }];
        if parts > 1 {
            let [to, _, _, bias, residual] = self.buffers();
            let buffers = [to, bias, Argument::Null, Argument::Null, residual].into_iter();
            launches.push(finish(type_name, buffers, &problem, &choice, &shape.output(), target));
        }
        Ok(LaunchPlan { launches, workspace_bytes: problem.workspace_bytes(&choice) })
    }

    /// The output, the factors, the bias and the residual.
    fn buffers(&self) -> [Argument<OperandBuffer>; 5] {
        [
            Argument::Address(OperandBuffer::Output(0)),
            Argument::Address(OperandBuffer::Input(MatMul::A)),
            Argument::Address(OperandBuffer::Input(MatMul::B)),
            address(OperandBuffer::Input(MatMul::BIAS), self.has_bias),
            address(OperandBuffer::Input(MatMul::RESIDUAL), self.has_residual),
        ]
    }
}

fn address(slot: OperandBuffer, is_present: bool) -> Argument<OperandBuffer> {
    if is_present { Argument::Address(slot) } else { Argument::Null }
}

/// Plan the launch that adds the sums of parts. `buffers` are the output, bias, scale, shift and
/// residual.
pub(super) fn finish(
    name: &str,
    buffers: impl Iterator<Item = Argument<OperandBuffer>>,
    problem: &TileProblem,
    choice: &TileChoice,
    output: &EpilogueOutput,
    target: &KernelTarget,
) -> Launch<OperandBuffer> {
    let rest = [
        Argument::Address(OperandBuffer::Workspace),
        Argument::U32(choice.parts),
        Argument::U32(problem.z),
        Argument::Bytes(output.fields().bytes()),
    ];
    Launch {
        kernel: Kernel { module: KernelModule::Gemm, name: format!("gemm_finish_{name}") },
        grid: walk(problem.outputs(), FINISH_THREADS, target),
        block: [FINISH_THREADS, 1, 1],
        shared_bytes: 0,
        arguments: buffers.chain(rest).collect(),
        // Its work is counted as part of the product.
        cost: LaunchCost::default(),
        chain: None,
    }
}

/// Check that all matrices of an operand, of `rows` x `columns`, are inside its buffer.
fn check(
    matrix: &Matrix,
    batch: &[usize],
    rows: usize,
    columns: usize,
    elements: usize,
) -> Result<(), String> {
    if matrix.batch_strides.len() != batch.len() {
        return Err("with strides that are not as many as its batch has dimensions".to_owned());
    }
    let (lines, length) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
    if lines == 0 || length == 0 {
        return Ok(());
    }
    let along = batch.iter().copied().zip(matrix.batch_strides.iter().copied());
    all_there(matrix.offset, along.chain([(lines, matrix.row_stride), (length, 1)]), elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(batch_strides: &[usize], row_stride: usize, transposed: bool) -> Matrix {
        Matrix { offset: 0, batch_strides: batch_strides.to_vec(), row_stride, transposed }
    }

    #[test]
    fn matrix_past_end_of_buffer_is_rejected() {
        let right = matrix(&[24], 4, false);
        check(&right, &[2], 6, 4, 48).unwrap();
        check(&right, &[2], 6, 4, 47).unwrap_err();
        check(&matrix(&[24], 6, true), &[2], 6, 4, 48).unwrap();
        check(&matrix(&[usize::MAX], 6, true), &[3], 6, 4, 48).unwrap_err();
    }
}
