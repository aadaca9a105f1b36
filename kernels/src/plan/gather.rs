//! Elements selected by index.

use super::copy::element_bytes;
use super::limits::{all_there, product, size, stride, walk};
use super::{LaunchPlan, Operands, has_elements, same_type, type_code};
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use crate::{KernelModule, KernelTarget};
use weir_graph::{DIMS_MAX, Gather, GatherElements, TensorType};
use weir_types::ElementType;

/// Threads per block.
const THREADS: u32 = 256;

pub(super) fn gather(
    op: &Gather,
    operands: Operands<'_>,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let indices = operands.needed(1)?;
    let output = operands.output()?;
    same_type(Some(x), output.element_type(), "value")?;
    let count = product("elements", &[op.outer, op.count, op.inner])?;
    has_elements(Some(output), count, "output")?;
    has_elements(Some(indices), op.count, "list of indices")?;
    has_elements(Some(x), product("elements to pick from", &[op.outer, op.axis, op.inner])?, "value")?;
    if count == 0 {
        return Ok(LaunchPlan::default());
    }
    picks(op.axis)?;
    // Blocks move in the largest pieces that divide their size.
    let mut bytes = element_bytes(output)?;
    let block_bytes = op.inner as u64 * bytes;
    while bytes < 16 && block_bytes.is_multiple_of(bytes * 2) {
        bytes *= 2;
    }
    let inner = block_bytes / bytes;
    let pieces = op.outer as u64 * op.count as u64 * inner;
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel { module: KernelModule::Gather, name: format!("gather_{bytes}") },
        grid: walk(pieces, THREADS, target),
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        arguments: vec![
            Argument::Address(OperandBuffer::Output(0)),
            Argument::Address(OperandBuffer::Input(0)),
            Argument::Address(OperandBuffer::Input(1)),
            Argument::U32(index_code(indices)?),
            Argument::U64(pieces),
            Argument::U32(size("axis", op.axis)?),
            Argument::U32(size("index count", op.count)?),
            Argument::U32(inner as u32),
        ],
        cost: LaunchCost { flops: 0, bytes: 2 * output.bytes() as u64 + indices.bytes() as u64 },
        chain: None,
    }))
}

pub(super) fn gather_elements(
    op: &GatherElements,
    operands: Operands<'_>,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let indices = operands.needed(1)?;
    let output = operands.output()?;
    same_type(Some(x), output.element_type(), "value")?;
    let count = product("elements", &op.dims)?;
    has_elements(Some(output), count, "output")?;
    has_elements(Some(indices), count, "list of indices")?;
    if count == 0 {
        return Ok(LaunchPlan::default());
    }
    picks(op.axis)?;
    if op.dims.len() > DIMS_MAX || op.strides.len() != op.dims.len() {
        return Err(format!("in {} dimensions", op.dims.len()));
    }
    let along = op.dims.iter().copied().zip(op.strides.iter().copied());
    all_there(0, along.chain([(op.axis, op.axis_stride)]), x.elements())?;
    let strides = op.strides.iter().map(|at| stride(*at)).collect::<Result<Vec<_>, _>>()?;
    let sizes = op.dims.iter().map(|dim| size("dimension", *dim)).collect::<Result<Vec<_>, _>>()?;
    let fields = Fields::default()
        .u64(count as u64)
        .i64(stride(op.axis_stride)?)
        .i64s_reversed::<DIMS_MAX>(&strides, 0)
        .u32s_reversed::<DIMS_MAX>(&sizes, 1)
        .u32(sizes.len() as u32)
        .u32(size("axis", op.axis)?);
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel {
            module: KernelModule::Gather,
            name: format!("gather_elements_{}", element_bytes(output)?),
        },
        grid: walk(count as u64, THREADS, target),
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        arguments: vec![
            Argument::Address(OperandBuffer::Output(0)),
            Argument::Address(OperandBuffer::Input(0)),
            Argument::Address(OperandBuffer::Input(1)),
            Argument::U32(index_code(indices)?),
            Argument::Bytes(fields.bytes()),
        ],
        cost: LaunchCost { flops: 0, bytes: 2 * output.bytes() as u64 + indices.bytes() as u64 },
        chain: None,
    }))
}

/// Check that the axis has elements to select from.
fn picks(axis: usize) -> Result<(), String> {
    if axis == 0 { Err("from an axis of no elements".to_owned()) } else { Ok(()) }
}

fn index_code(indices: &TensorType) -> Result<u32, String> {
    match indices.element_type() {
        ElementType::Int64 | ElementType::Int32 => type_code(indices.element_type()),
        other => Err(format!("with indices of type {other}")),
    }
}
