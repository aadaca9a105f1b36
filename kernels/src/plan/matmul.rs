//! Matrix products.

mod shape;

use super::epilogue::{Output, vector_type};
use super::limits::{all_there, blocks, size, walk};
use super::tile::{Choice, MEDIUM, Problem, Units};
use super::{Operands, Plan, float_name, has_elements, same_type};
use crate::launch::{Argument, Cost, Kernel, Launch, Slot};
use crate::{Module, Precision, Target};
use shape::{BATCH_DIMS_MAX, Shape};
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
    target: &Target,
) -> Result<Plan, String> {
    let (a, b, output) = (operands.needed(MatMul::A)?, operands.needed(MatMul::B)?, operands.output()?);
    let (bias, residual) = (operands.input(MatMul::BIAS), operands.input(MatMul::RESIDUAL));
    let element_type = output.element_type();
    let name = float_name(element_type)?;
    for (tensor, what) in [(Some(a), "left side"), (Some(b), "right side"), (residual, "residual")] {
        same_type(tensor, element_type, what)?;
    }
    let op = &op.flattened();
    let elements = op.batch.iter().product::<usize>() * op.m * op.n;
    has_elements(Some(output), elements, "output")?;
    has_elements(residual, elements, "residual")?;
    has_elements(bias, if op.bias_axis == BiasAxis::Rows { op.m } else { op.n }, "bias")?;
    if elements == 0 {
        return Ok(Plan::default());
    }
    if op.batch.len() > BATCH_DIMS_MAX {
        return Err(format!("of a batch of {} dimensions", op.batch.len()));
    }
    for (matrix, lines, length, tensor) in
        [(&op.a, op.m, op.k, a.elements()), (&op.b, op.k, op.n, b.elements())]
    {
        check(matrix, &op.batch, lines, length, tensor)?;
    }

    let (m, n, k) = (size("row count", op.m)?, size("column count", op.n)?, size("depth", op.k)?);
    let z = blocks("matrices", op.batch.iter().product())?;
    let element_bytes: u32 = if element_type == ElementType::Fp32 { 4 } else { 2 };
    let tensor = target.has_tensor_units() && (precision != Precision::Fp32 || element_bytes == 2);
    let units = if tensor { Units::Tensor } else { Units::Plain };
    let shape = Shape { op, m, n, k, element_bytes, vector_type: vector_type(&[bias])? };
    let cost = Cost { flops: 2 * elements as u64 * op.k as u64, bytes: operands.bytes() };
    let address = |slot, there: bool| if there { Argument::Address(slot) } else { Argument::Null };
    let operands = [
        Argument::Address(Slot::Output(0)),
        Argument::Address(Slot::Input(MatMul::A)),
        Argument::Address(Slot::Input(MatMul::B)),
        address(Slot::Input(MatMul::BIAS), bias.is_some()),
        address(Slot::Input(MatMul::RESIDUAL), residual.is_some()),
    ];

    if m <= FEW_ROWS && op.b.transposed && !op.a.transposed {
        return Ok(Plan::of(Launch {
            kernel: Kernel { module: Module::Gemm, name: format!("gemv_{name}") },
            grid: [n.div_ceil(FEW_ROWS_THREADS / 32), 1, z],
            block: [FEW_ROWS_THREADS, 1, 1],
            shared_bytes: 0,
            arguments: operands.into_iter().chain([Argument::Bytes(shape.fields(k, 1).bytes())]).collect(),
            cost,
            chain: None,
        }));
    }

    let tiles = if op.a.transposed { &[MEDIUM] } else { units.tiles(element_bytes) };
    let problem = Problem { m, n, k, z, element_bytes, units };
    let choice = problem.choose(tiles, target).ok_or("on a device with too little shared memory")?;
    let Choice { tile, k_part, parts } = choice;
    let letter = |transposed| if transposed { 't' } else { 'n' };
    let layout = format!("{}{}", letter(op.a.transposed), letter(op.b.transposed));
    let (module, name_math) = match (units, element_type) {
        (Units::Plain, _) => (Module::Gemm, name),
        (Units::Tensor, ElementType::Fp32) => (Module::GemmTensor, "tf32_tensor"),
        (Units::Tensor, ElementType::Fp16) => (Module::GemmTensor, "f16_tensor"),
        (Units::Tensor, _) => (Module::GemmTensor, "bf16_tensor"),
    };
    let tiles_m = m.div_ceil(tile.m);
    let grid_x = tiles_m.checked_mul(n.div_ceil(tile.n)).ok_or("with too many rows and columns")?;
    let shared_bytes = if op.a.transposed {
        tile.shared_bytes_transposed(element_bytes, op.b.transposed)
    } else {
        tile.shared_bytes(element_bytes, op.b.transposed)
    };
    let parts_at = address(Slot::Workspace, parts > 1);
    let mut launches = vec![Launch {
        kernel: Kernel { module, name: format!("gemm_{layout}_{name_math}_{}", tile.name) },
        grid: [grid_x, parts, z],
        block: [tile.threads, 1, 1],
        shared_bytes,
        arguments: operands
            .iter()
            .cloned()
            .chain([parts_at, Argument::Bytes(shape.fields(k_part, tiles_m).bytes())])
            .collect(),
        cost,
        chain: None,
    }];
    if parts > 1 {
        let [to, _, _, bias, residual] = operands;
        let vectors = [bias, Argument::Null, Argument::Null];
        launches.push(finish(
            name,
            [to].into_iter().chain(vectors).chain([residual]),
            &problem,
            &choice,
            &shape.output(),
            target,
        ));
    }
    Ok(Plan { launches, workspace_bytes: problem.workspace_bytes(&choice) })
}

/// Plan the launch that adds the sums of parts. `buffers` are the output, bias, scale, shift and
/// residual.
pub(super) fn finish(
    name: &str,
    buffers: impl Iterator<Item = Argument<Slot>>,
    problem: &Problem,
    choice: &Choice,
    output: &Output,
    target: &Target,
) -> Launch<Slot> {
    let rest = [
        Argument::Address(Slot::Workspace),
        Argument::U32(choice.parts),
        Argument::U32(problem.z),
        Argument::Bytes(output.fields().bytes()),
    ];
    Launch {
        kernel: Kernel { module: Module::Gemm, name: format!("gemm_finish_{name}") },
        grid: walk(problem.outputs(), FINISH_THREADS, target),
        block: [FINISH_THREADS, 1, 1],
        shared_bytes: 0,
        arguments: buffers.chain(rest).collect(),
        // Its work is counted as part of the product.
        cost: Cost::default(),
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
