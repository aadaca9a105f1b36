//! Softmax and layer normalisation of the rows of a matrix.

use super::limits::{all_there, product, size, stride};
use super::rows::Rows;
use super::{LaunchPlan, Operands, float_name, has_elements, same_type};
use crate::KernelModule;
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use weir_graph::{DIMS_MAX, LayerNorm, Mask, Softmax, TensorType};

/// Longest row that is kept in shared memory between passes: 48 KiB, less the kernel's static
/// shared memory.
const KEPT_COLS_MAX: u32 = 12_000;

pub(super) fn softmax(op: &Softmax, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let x = operands.needed(Softmax::X)?;
    let output = operands.output()?;
    let name = float_name(x.element_type())?;
    let mask = operands.input(Softmax::MASK);
    for (tensor, what) in [(Some(output), "output"), (mask, "mask")] {
        same_type(tensor, x.element_type(), what)?;
    }
    has_elements(Some(output), x.elements(), "output")?;
    let rows = Rows::new(x, op.rows, op.cols)?;
    let (mask_at, shape) = match (mask, &op.mask) {
        (Some(mask), Some(shape)) => (
            Argument::Address(OperandBuffer::Input(Softmax::MASK)),
            mask_fields(shape, mask, op.rows, op.cols)?,
        ),
        (None, None) => (Argument::Null, mask_fields_none()),
        _ => return Err("with a mask of which either the values or the place is not there".to_owned()),
    };
    let arguments = vec![
        Argument::Address(OperandBuffer::Output(0)),
        Argument::Address(OperandBuffer::Input(Softmax::X)),
        mask_at,
        Argument::U32(rows.count),
        Argument::U32(rows.cols),
        Argument::F32(op.scale),
        Argument::U32(u32::from(op.log)),
        Argument::Bytes(shape.bytes()),
    ];
    let cost = LaunchCost { flops: 5 * x.elements() as u64, bytes: operands.bytes() };
    Ok(rows.plan(KernelModule::Normalise, format!("softmax_{name}"), arguments, 0, cost))
}

pub(super) fn layer_norm(op: &LayerNorm, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let x = operands.needed(LayerNorm::X)?;
    let output = operands.output()?;
    let name = float_name(x.element_type())?;
    let residual = operands.input(LayerNorm::RESIDUAL);
    let sums = operands.outputs.get(LayerNorm::SUM).copied().flatten();
    for (tensor, what) in [(Some(output), "output"), (residual, "residual"), (sums, "sum")] {
        same_type(tensor, x.element_type(), what)?;
        has_elements(tensor, x.elements(), what)?;
    }
    let vectors = [LayerNorm::GAMMA, LayerNorm::BETA].map(|place| operands.input(place));
    for vector in vectors {
        has_elements(vector, op.cols, "vector")?;
    }
    let rows = Rows::new(x, op.rows, op.cols)?;
    if rows.count == 0 {
        return Ok(LaunchPlan::default());
    }
    let kept = rows.cols <= KEPT_COLS_MAX;
    let address = |slot, there: bool| if there { Argument::Address(slot) } else { Argument::Null };
    let arguments = vec![
        Argument::Address(OperandBuffer::Output(LayerNorm::Y)),
        address(OperandBuffer::Output(LayerNorm::SUM), sums.is_some()),
        Argument::Address(OperandBuffer::Input(LayerNorm::X)),
        address(OperandBuffer::Input(LayerNorm::RESIDUAL), residual.is_some()),
        address(OperandBuffer::Input(LayerNorm::GAMMA), vectors[0].is_some()),
        address(OperandBuffer::Input(LayerNorm::BETA), vectors[1].is_some()),
        Argument::U32(super::epilogue::vector_type(&vectors)?),
        Argument::U32(rows.cols),
        Argument::F32(op.epsilon),
        Argument::U32(u32::from(kept)),
    ];
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel { module: KernelModule::Normalise, name: format!("layer_norm_{name}") },
        grid: [rows.count, 1, 1],
        block: [rows.threads(), 1, 1],
        shared_bytes: if kept { rows.cols * 4 } else { 0 },
        arguments,
        cost: LaunchCost { flops: 8 * x.elements() as u64, bytes: operands.bytes() },
        chain: None,
    }))
}

/// `MaskShape` in `rows.cuh`.
fn mask_fields(shape: &Mask, mask: &TensorType, rows: usize, cols: usize) -> Result<Fields, String> {
    let fits = shape.dims.len() == shape.strides.len()
        && (1..=DIMS_MAX).contains(&shape.dims.len())
        && shape.dims.last() == Some(&cols)
        && product("elements", &shape.dims)? == rows * cols;
    let along = shape.dims.iter().copied().zip(shape.strides.iter().copied());
    if !fits || all_there(0, along, mask.elements()).is_err() {
        return Err(format!("of {rows} rows of {cols} with a mask of {mask} that does not lie over them"));
    }
    let strides = shape.strides.iter().map(|at| stride(*at)).collect::<Result<Vec<_>, _>>()?;
    let sizes = shape.dims.iter().map(|dim| size("dimension", *dim)).collect::<Result<Vec<_>, _>>()?;
    Ok(Fields::default()
        .i64s_reversed::<DIMS_MAX>(&strides, 0)
        .u32s_reversed::<DIMS_MAX>(&sizes, 1)
        .u32(sizes.len() as u32))
}

fn mask_fields_none() -> Fields {
    Fields::default().i64s_reversed::<DIMS_MAX>(&[], 0).u32s_reversed::<DIMS_MAX>(&[], 1).u32(0)
}
