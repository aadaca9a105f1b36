//! Data movement: dimensions are merged, elements widened, and transpositions detected.

mod window;

use super::limits::{BLOCKS_MAX, product, walk};
use super::{LaunchPlan, Operands};
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use crate::{KernelModule, KernelTarget};
use weir_graph::{Copy, CopyPart, DIMS_MAX, Scalar, TensorType};
use weir_types::ElementType;
use window::{CopyWindow, Transposition};

/// Threads per block.
const THREADS: u32 = 256;

pub(super) fn plan(op: &Copy, operands: Operands<'_>, target: &KernelTarget) -> Result<LaunchPlan, String> {
    let output = operands.output()?;
    let mut launches = Vec::with_capacity(op.parts.len() + 1);
    if let Some(scalar) = op.fill {
        launches.extend(fill(scalar, operands, target)?.launches);
    }
    for part in &op.parts {
        let input = operands.needed(part.input)?;
        if input.element_type() != output.element_type() {
            return Err(format!("from {} to {}", input.element_type(), output.element_type()));
        }
        launches.extend(copy(part, input, output, target)?);
    }
    Ok(LaunchPlan { launches, workspace_bytes: 0 })
}

/// Fill the output with `scalar`.
pub(super) fn fill(
    scalar: Scalar,
    operands: Operands<'_>,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let output = operands.output()?;
    let bytes = element_bytes(output)?;
    let count = product("elements", &[output.elements()])? as u64;
    if count == 0 {
        return Ok(LaunchPlan::default());
    }
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel { module: KernelModule::Copy, name: format!("fill_{bytes}") },
        grid: walk(count, THREADS, target),
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        arguments: vec![
            Argument::Address(OperandBuffer::Output(0)),
            Argument::U64(count),
            Argument::U64(bits(scalar, output.element_type())?),
        ],
        cost: LaunchCost { flops: 0, bytes: output.bytes() as u64 },
        chain: None,
    }))
}

fn copy(
    part: &CopyPart,
    input: &TensorType,
    output: &TensorType,
    target: &KernelTarget,
) -> Result<Option<Launch<OperandBuffer>>, String> {
    let count = product("elements", &part.dims)? as u64;
    if count == 0 {
        return Ok(None);
    }
    let bytes = element_bytes(output)?;
    let window = CopyWindow::from_part(part)?;
    window.check(input.elements(), output.elements())?;
    let cost = LaunchCost { flops: 0, bytes: 2 * count * bytes };
    let buffers =
        [Argument::Address(OperandBuffer::Output(0)), Argument::Address(OperandBuffer::Input(part.input))];
    let launch = |name: String, grid, block, fields: Fields| Launch {
        kernel: Kernel { module: KernelModule::Copy, name },
        grid,
        block,
        shared_bytes: 0,
        arguments: buffers.into_iter().chain([Argument::Bytes(fields.bytes())]).collect(),
        cost,
        chain: None,
    };
    if let Some(found) = window.transposition().filter(|found| found.rows.div_ceil(32) <= BLOCKS_MAX) {
        let Transposition { rows, columns, batches, .. } = found;
        let grid = [columns.div_ceil(32), rows.div_ceil(32), batches];
        return Ok(Some(launch(format!("transpose_{bytes}"), grid, [32, 8, 1], found.fields(&window))));
    }
    let (window, bytes) = window.widened(bytes);
    let count = window.count();
    let fields = Fields::default()
        .u64(count)
        .i64(window.from_offset)
        .i64(window.to_offset)
        .i64s_reversed::<DIMS_MAX>(&window.from, 0)
        .i64s_reversed::<DIMS_MAX>(&window.to, 0)
        .u32s_reversed::<DIMS_MAX>(&window.sizes, 1)
        .u32(window.sizes.len() as u32);
    Ok(Some(launch(format!("copy_{bytes}"), walk(count, THREADS, target), [THREADS, 1, 1], fields)))
}

/// Size of an element, if kernels can move elements of the type.
pub(super) fn element_bytes(tensor: &TensorType) -> Result<u64, String> {
    match tensor.element_type().size_bytes() {
        Some(bytes @ (1 | 2 | 4 | 8)) => Ok(bytes as u64),
        _ => Err(format!("of elements of type {}", tensor.element_type())),
    }
}

/// The number as an element of this type, in the lowest bytes.
fn bits(scalar: Scalar, element_type: ElementType) -> Result<u64, String> {
    let float = match scalar {
        Scalar::Float(number) => number,
        Scalar::Integer(number) => number as f32,
    };
    let integer = match scalar {
        Scalar::Float(number) => number as i64,
        Scalar::Integer(number) => number,
    };
    match element_type {
        ElementType::Fp64 => Ok(match scalar {
            Scalar::Float(number) => f64::from(number),
            Scalar::Integer(number) => number as f64,
        }
        .to_bits()),
        ElementType::Fp32 => Ok(float.to_bits().into()),
        ElementType::Fp16 => Ok(half::f16::from_f32(float).to_bits().into()),
        ElementType::Bf16 => Ok(half::bf16::from_f32(float).to_bits().into()),
        ElementType::Bool => Ok(u64::from(match scalar {
            Scalar::Float(number) => number != 0.0,
            Scalar::Integer(number) => number != 0,
        })),
        // Kernels use the lowest bytes only.
        ElementType::Bytes => Err("of strings".to_owned()),
        _ => Ok(integer.cast_unsigned()),
    }
}
