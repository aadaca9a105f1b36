//! Operations on rows of a matrix: reductions, selection, cumulative sums.

use super::limits::{product, size};
use super::{LaunchPlan, Operands, float_name, has_elements, same_type, type_code};
use crate::KernelModule;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use weir_graph::{ArgReduce, CumSum, Reduce, ReduceKind, TensorType, TopK};
use weir_types::ElementType;

/// Longest row for one warp; a block processes longer rows.
const WARP_COLS_MAX: u32 = 1_024;
/// Warps per block, with one row each.
const WARPS: u32 = 4;
/// Largest number of elements to select from a row, since each takes a pass.
const TAKEN_MAX: usize = 1_024;

pub(super) fn reduce(op: &Reduce, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let output = operands.output()?;
    same_type(Some(x), output.element_type(), "value")?;
    has_elements(Some(output), op.rows, "output")?;
    let rows = Rows::new(x, op.rows, op.cols)?;
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
    let buffers =
        vec![Argument::Address(OperandBuffer::Output(0)), Argument::Address(OperandBuffer::Input(0))];
    let (name, arguments) = match float_name(x.element_type()) {
        Ok(name) => (format!("reduce_{name}"), buffers.into_iter().chain(sizes).collect()),
        Err(_) => {
            let code = Argument::U32(integer_code(x)?);
            ("reduce_integer".to_owned(), buffers.into_iter().chain([code]).chain(sizes).collect())
        }
    };
    let cost = LaunchCost { flops: x.elements() as u64, bytes: operands.bytes() };
    Ok(rows.plan(KernelModule::Reduce, name, arguments, 0, cost))
}

pub(super) fn arg_reduce(op: &ArgReduce, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let output = operands.output()?;
    same_type(Some(output), ElementType::Int64, "output")?;
    has_elements(Some(output), op.rows, "output")?;
    let rows = Rows::new(x, op.rows, op.cols)?;
    let arguments = vec![
        Argument::Null,
        Argument::Address(OperandBuffer::Output(0)),
        Argument::Address(OperandBuffer::Input(0)),
    ];
    select(&rows, x, arguments, 1, op.largest, op.last, operands)
}

pub(super) fn top_k(op: &TopK, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let values = operands.output()?;
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
        return Ok(LaunchPlan::default());
    }
    let rows = Rows::new(x, op.rows, op.cols)?;
    let buffers =
        [OperandBuffer::Output(0), OperandBuffer::Output(1), OperandBuffer::Input(0)].map(Argument::Address);
    select(&rows, x, buffers.to_vec(), op.k, op.largest, false, operands)
}

fn select(
    rows: &Rows,
    x: &TensorType,
    mut arguments: Vec<Argument<OperandBuffer>>,
    k: usize,
    largest: bool,
    last: bool,
    operands: Operands<'_>,
) -> Result<LaunchPlan, String> {
    let (name, code) = lane(x)?;
    arguments.extend([
        Argument::U32(code),
        Argument::U32(rows.count),
        Argument::U32(rows.cols),
        Argument::U32(size("selection", k)?),
        Argument::U32(u32::from(largest)),
        Argument::U32(u32::from(last)),
    ]);
    let cost = LaunchCost { flops: (x.elements() * k) as u64, bytes: operands.bytes() };
    Ok(rows.plan(KernelModule::Reduce, format!("select_{name}"), arguments, 0, cost))
}

pub(super) fn cum_sum(op: &CumSum, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let output = operands.output()?;
    same_type(Some(x), output.element_type(), "value")?;
    has_elements(Some(output), x.elements(), "output")?;
    let rows = Rows::new(x, op.rows, op.cols)?;
    let (name, code) = lane(x)?;
    let arguments = vec![
        Argument::Address(OperandBuffer::Output(0)),
        Argument::Address(OperandBuffer::Input(0)),
        Argument::U32(code),
        Argument::U32(rows.count),
        Argument::U32(rows.cols),
        Argument::U32(u32::from(op.exclusive)),
        Argument::U32(u32::from(op.reverse)),
    ];
    let cost = LaunchCost { flops: x.elements() as u64, bytes: operands.bytes() };
    let by_warps = Rows { cols: rows.cols.min(WARP_COLS_MAX), ..rows };
    Ok(by_warps.plan(KernelModule::Reduce, format!("cumsum_{name}"), arguments, 0, cost))
}

/// Rows of a matrix, and the assignment of threads to rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) count: u32,
    pub(super) cols: u32,
}

impl Rows {
    pub(super) fn new(x: &TensorType, rows: usize, cols: usize) -> Result<Self, String> {
        let elements = product("elements", &[rows, cols])?;
        has_elements(Some(x), elements, "value")?;
        if cols == 0 && rows > 0 {
            return Err("of rows of no elements".to_owned());
        }
        Ok(Self { count: size("row count", rows)?, cols: size("row", cols)? })
    }

    /// Plan a launch with one warp or one block per row.
    pub(super) fn plan(
        &self,
        module: KernelModule,
        name: String,
        arguments: Vec<Argument<OperandBuffer>>,
        shared_bytes: u32,
        cost: LaunchCost,
    ) -> LaunchPlan {
        if self.count == 0 {
            return LaunchPlan::default();
        }
        let (grid, block) = if self.cols <= WARP_COLS_MAX {
            ([self.count.div_ceil(WARPS), 1, 1], [32, WARPS, 1])
        } else {
            ([self.count, 1, 1], [self.threads(), 1, 1])
        };
        LaunchPlan::from_launch(Launch {
            kernel: Kernel { module, name },
            grid,
            block,
            shared_bytes,
            arguments,
            cost,
            chain: None,
        })
    }

    /// Threads of a block that processes a row: one per four elements, within the limits of a
    /// block.
    pub(super) fn threads(&self) -> u32 {
        (self.cols / 4).next_power_of_two().clamp(32, 1_024)
    }
}

/// Suffix of a kernel's name for the lane that it computes in, and the type code of the elements.
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
