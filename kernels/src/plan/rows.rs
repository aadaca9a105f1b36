//! Rows of a matrix: reductions, selection, softmax, layer normalisation, running sums.

use super::limits::{all_there, product, size, stride};
use super::{Operands, Plan, float_name, has_elements, same_type, type_code};
use crate::Module;
use crate::fields::Fields;
use crate::launch::{Argument, Cost, Kernel, Launch, Slot};
use weir_graph::{
    ArgReduce, CumSum, DIMS_MAX, LayerNorm, Mask, Reduce, ReduceKind, Softmax, TensorType, TopK,
};
use weir_types::ElementType;

/// Rows no longer than this are a warp's each; longer ones a block's.
const WARP_COLS_MAX: u32 = 1_024;
/// Warps of a block that have a row each.
const WARPS: u32 = 4;
/// The longest row that waits in shared memory between passes: 48 KiB, less what the kernel declares itself.
const KEPT_COLS_MAX: u32 = 12_000;
/// The most elements that are taken of a row, since each takes a pass.
const TAKEN_MAX: usize = 1_024;

pub(super) fn reduce(op: &Reduce, operands: Operands<'_>) -> Result<Plan, String> {
    let (x, output) = (operands.needed(0)?, operands.output()?);
    same_type(Some(x), output.element_type(), "value")?;
    has_elements(Some(output), op.rows, "output")?;
    let rows = Rows::of(x, op.rows, op.cols)?;
    let kind = match op.kind {
        ReduceKind::Sum => 0,
        ReduceKind::Mean => 1,
        ReduceKind::Max => 2,
        ReduceKind::Min => 3,
        ReduceKind::Product => 4,
        ReduceKind::L1 => 5,
        ReduceKind::L2 => 6,
        ReduceKind::SumSquares => 7,
    };
    let sizes = [Argument::U32(rows.count), Argument::U32(rows.cols), Argument::U32(kind)];
    let buffers = vec![Argument::Address(Slot::Output(0)), Argument::Address(Slot::Input(0))];
    let (name, arguments) = match float_name(x.element_type()) {
        Ok(name) => (format!("reduce_{name}"), buffers.into_iter().chain(sizes).collect()),
        Err(_) => {
            let code = Argument::U32(integer_code(x)?);
            ("reduce_integer".to_owned(), buffers.into_iter().chain([code]).chain(sizes).collect())
        }
    };
    let cost = Cost { flops: x.elements() as u64, bytes: operands.bytes() };
    Ok(rows.plan(Module::Reduce, name, arguments, 0, cost))
}

pub(super) fn arg_reduce(op: &ArgReduce, operands: Operands<'_>) -> Result<Plan, String> {
    let (x, output) = (operands.needed(0)?, operands.output()?);
    same_type(Some(output), ElementType::Int64, "output")?;
    has_elements(Some(output), op.rows, "output")?;
    let rows = Rows::of(x, op.rows, op.cols)?;
    let arguments =
        vec![Argument::Null, Argument::Address(Slot::Output(0)), Argument::Address(Slot::Input(0))];
    select(&rows, x, arguments, 1, op.largest, op.last, operands)
}

pub(super) fn top_k(op: &TopK, operands: Operands<'_>) -> Result<Plan, String> {
    let (x, values) = (operands.needed(0)?, operands.output()?);
    let places = operands.outputs.get(1).copied().flatten().ok_or("without its second output")?;
    same_type(Some(x), values.element_type(), "value")?;
    same_type(Some(places), ElementType::Int64, "second output")?;
    if op.k > op.cols || op.k > TAKEN_MAX {
        return Err(format!("of {} elements in rows of {}; at most {TAKEN_MAX} are taken", op.k, op.cols));
    }
    let taken = product("elements", &[op.rows, op.k])?;
    has_elements(Some(values), taken, "output")?;
    has_elements(Some(places), taken, "second output")?;
    if op.k == 0 {
        return Ok(Plan::default());
    }
    let rows = Rows::of(x, op.rows, op.cols)?;
    let buffers = [Slot::Output(0), Slot::Output(1), Slot::Input(0)].map(Argument::Address);
    select(&rows, x, buffers.to_vec(), op.k, op.largest, false, operands)
}

fn select(
    rows: &Rows,
    x: &TensorType,
    mut arguments: Vec<Argument<Slot>>,
    k: usize,
    largest: bool,
    last: bool,
    operands: Operands<'_>,
) -> Result<Plan, String> {
    let (name, code) = lane(x)?;
    arguments.extend([
        Argument::U32(code),
        Argument::U32(rows.count),
        Argument::U32(rows.cols),
        Argument::U32(size("selection", k)?),
        Argument::U32(u32::from(largest)),
        Argument::U32(u32::from(last)),
    ]);
    let cost = Cost { flops: (x.elements() * k) as u64, bytes: operands.bytes() };
    Ok(rows.plan(Module::Reduce, format!("select_{name}"), arguments, 0, cost))
}

pub(super) fn cum_sum(op: &CumSum, operands: Operands<'_>) -> Result<Plan, String> {
    let (x, output) = (operands.needed(0)?, operands.output()?);
    same_type(Some(x), output.element_type(), "value")?;
    has_elements(Some(output), x.elements(), "output")?;
    let rows = Rows::of(x, op.rows, op.cols)?;
    let (name, code) = lane(x)?;
    let arguments = vec![
        Argument::Address(Slot::Output(0)),
        Argument::Address(Slot::Input(0)),
        Argument::U32(code),
        Argument::U32(rows.count),
        Argument::U32(rows.cols),
        Argument::U32(u32::from(op.exclusive)),
        Argument::U32(u32::from(op.reverse)),
    ];
    let cost = Cost { flops: x.elements() as u64, bytes: operands.bytes() };
    let by_warps = Rows { cols: rows.cols.min(WARP_COLS_MAX), ..rows };
    Ok(by_warps.plan(Module::Reduce, format!("cumsum_{name}"), arguments, 0, cost))
}

pub(super) fn softmax(op: &Softmax, operands: Operands<'_>) -> Result<Plan, String> {
    let (x, output) = (operands.needed(Softmax::X)?, operands.output()?);
    let name = float_name(x.element_type())?;
    let mask = operands.input(Softmax::MASK);
    for (tensor, what) in [(Some(output), "output"), (mask, "mask")] {
        same_type(tensor, x.element_type(), what)?;
    }
    has_elements(Some(output), x.elements(), "output")?;
    let rows = Rows::of(x, op.rows, op.cols)?;
    let (mask_at, shape) = match (mask, &op.mask) {
        (Some(mask), Some(shape)) => {
            (Argument::Address(Slot::Input(Softmax::MASK)), mask_fields(shape, mask, op.rows, op.cols)?)
        }
        (None, None) => (Argument::Null, mask_fields_none()),
        _ => return Err("with a mask of which either the values or the place is not there".to_owned()),
    };
    let arguments = vec![
        Argument::Address(Slot::Output(0)),
        Argument::Address(Slot::Input(Softmax::X)),
        mask_at,
        Argument::U32(rows.count),
        Argument::U32(rows.cols),
        Argument::F32(op.scale),
        Argument::U32(u32::from(op.log)),
        Argument::Bytes(shape.bytes()),
    ];
    let cost = Cost { flops: 5 * x.elements() as u64, bytes: operands.bytes() };
    Ok(rows.plan(Module::Normalise, format!("softmax_{name}"), arguments, 0, cost))
}

pub(super) fn layer_norm(op: &LayerNorm, operands: Operands<'_>) -> Result<Plan, String> {
    let (x, output) = (operands.needed(LayerNorm::X)?, operands.output()?);
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
    let rows = Rows::of(x, op.rows, op.cols)?;
    if rows.count == 0 {
        return Ok(Plan::default());
    }
    let kept = rows.cols <= KEPT_COLS_MAX;
    let address = |slot, there: bool| if there { Argument::Address(slot) } else { Argument::Null };
    let arguments = vec![
        Argument::Address(Slot::Output(LayerNorm::Y)),
        address(Slot::Output(LayerNorm::SUM), sums.is_some()),
        Argument::Address(Slot::Input(LayerNorm::X)),
        address(Slot::Input(LayerNorm::RESIDUAL), residual.is_some()),
        address(Slot::Input(LayerNorm::GAMMA), vectors[0].is_some()),
        address(Slot::Input(LayerNorm::BETA), vectors[1].is_some()),
        Argument::U32(super::epilogue::vector_type(&vectors)?),
        Argument::U32(rows.cols),
        Argument::F32(op.epsilon),
        Argument::U32(u32::from(kept)),
    ];
    Ok(Plan::of(Launch {
        kernel: Kernel { module: Module::Normalise, name: format!("layer_norm_{name}") },
        grid: [rows.count, 1, 1],
        block: [rows.threads(), 1, 1],
        shared_bytes: if kept { rows.cols * 4 } else { 0 },
        arguments,
        cost: Cost { flops: 8 * x.elements() as u64, bytes: operands.bytes() },
    }))
}

/// Rows of a matrix, and who works on each.
#[derive(Debug, Clone, Copy)]
struct Rows {
    count: u32,
    cols: u32,
}

impl Rows {
    fn of(x: &TensorType, rows: usize, cols: usize) -> Result<Self, String> {
        let elements = product("elements", &[rows, cols])?;
        has_elements(Some(x), elements, "value")?;
        if cols == 0 && rows > 0 {
            return Err("of rows of no elements".to_owned());
        }
        Ok(Self { count: size("row count", rows)?, cols: size("row", cols)? })
    }

    /// A warp for each row, or a block.
    fn plan(
        &self,
        module: Module,
        name: String,
        arguments: Vec<Argument<Slot>>,
        shared_bytes: u32,
        cost: Cost,
    ) -> Plan {
        if self.count == 0 {
            return Plan::default();
        }
        let (grid, block) = if self.cols <= WARP_COLS_MAX {
            ([self.count.div_ceil(WARPS), 1, 1], [32, WARPS, 1])
        } else {
            ([self.count, 1, 1], [self.threads(), 1, 1])
        };
        Plan::of(Launch { kernel: Kernel { module, name }, grid, block, shared_bytes, arguments, cost })
    }

    /// Threads of a block that works on a row: each has a few elements, as far as there may be so many.
    fn threads(&self) -> u32 {
        (self.cols / 4).next_power_of_two().clamp(32, 1_024)
    }
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

/// The end of a kernel's name by what it computes in, and the type of the elements by number.
fn lane(x: &TensorType) -> Result<(&'static str, u32), String> {
    let code = type_code(x.element_type())?;
    let floats = [ElementType::Fp32, ElementType::Fp16, ElementType::Bf16, ElementType::Fp64];
    Ok((if floats.contains(&x.element_type()) { "float" } else { "integer" }, code))
}

fn integer_code(x: &TensorType) -> Result<u32, String> {
    match lane(x)? {
        ("integer", code) => Ok(code),
        _ => Err(format!("of elements of type {}", x.element_type())),
    }
}
