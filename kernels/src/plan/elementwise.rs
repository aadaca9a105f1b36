//! Elementwise expressions.

mod registers;
pub(crate) use registers::RegisterInstruction;

use super::limits::{all_there, product, size, stride, walk};
use super::{LaunchPlan, Operands, type_code};
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use crate::{Chain, KernelModule, KernelTarget};
use registers::Registers;
use weir_graph::{DIMS_MAX, Elementwise, INPUTS_MAX, INSTRUCTIONS_MAX, NumberType};

/// Threads per block.
const THREADS: u32 = 128;
/// Neighbours that a thread processes at once where possible.
const LANES: u32 = 4;

pub(super) fn plan(
    op: &Elementwise,
    operands: Operands<'_>,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let output = operands.output()?;
    let count = product("elements", &op.dims)?;
    if count == 0 {
        return Ok(LaunchPlan::default());
    }
    op.program.check(op.strides.len()).map_err(|why| format!("whose program {why}"))?;
    if op.dims.len() > DIMS_MAX
        || op.strides.len() > INPUTS_MAX
        || op.strides.iter().any(|strides| strides.len() != op.dims.len())
    {
        return Err(format!("of {} operands in {} dimensions", op.strides.len(), op.dims.len()));
    }
    super::has_elements(Some(output), count, "output")?;
    for (operand, strides) in op.strides.iter().enumerate() {
        let along = op.dims.iter().copied().zip(strides.iter().copied());
        all_there(0, along, operands.needed(operand)?.elements())?;
    }
    let registers = Registers::from_program(&op.program, op.strides.len());
    let packed = op.program.lane == NumberType::Float && is_packed(op);
    let (name, lane_bytes, lanes) = match op.program.lane {
        NumberType::Float if packed => ("elementwise_packed", 4 * LANES, LANES),
        NumberType::Float => ("elementwise_float", 4, 1),
        NumberType::Integer => ("elementwise_integer", 8, 1),
    };
    let input_types =
        (0..op.strides.len()).map(|operand| type_code(operands.needed(operand)?.element_type()));
    let input_types = input_types.collect::<Result<Vec<_>, _>>()?;
    let output_type = type_code(output.element_type())?;

    let mut fields = registers.code.iter().fold(Fields::default(), |fields, step| {
        fields.u16(step.code).u8(step.to).u8(step.a).u8(step.b).u8(step.c).u16(step.kind).u64(step.value)
    });
    for _ in registers.code.len()..INSTRUCTIONS_MAX {
        fields = fields.u64(0).u64(0);
    }
    for operand in 0..INPUTS_MAX {
        let strides = op.strides.get(operand).map_or(&[][..], Vec::as_slice);
        let strides = strides.iter().map(|value| stride(*value)).collect::<Result<Vec<_>, _>>()?;
        fields = fields.i64s_reversed::<DIMS_MAX>(&strides, 0);
    }
    let dims = op.dims.iter().map(|dim| size("dimension", *dim)).collect::<Result<Vec<_>, _>>()?;
    fields = fields.u64(count as u64).u32s_reversed::<DIMS_MAX>(&dims, 1);
    for operand in 0..INPUTS_MAX {
        fields = fields.u32(input_types.get(operand).copied().unwrap_or_default());
    }
    let fields = fields
        .u32(dims.len() as u32)
        .u32(op.strides.len() as u32)
        .u32(registers.code.len() as u32)
        .u32(output_type);

    let inputs = (0..INPUTS_MAX).map(|operand| {
        if operand < op.strides.len() {
            Argument::Address(OperandBuffer::Input(operand))
        } else {
            Argument::Null
        }
    });
    let arguments = std::iter::once(Argument::Address(OperandBuffer::Output(0))).chain(inputs);
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel { module: KernelModule::Elementwise, name: name.to_owned() },
        grid: walk(count as u64, THREADS * lanes, target),
        block: [THREADS, 1, 1],
        shared_bytes: registers.count * THREADS * lane_bytes,
        arguments: arguments.chain([Argument::Bytes(fields.bytes())]).collect(),
        cost: LaunchCost { flops: (registers.code.len() * count) as u64, bytes: operands.bytes() },
        chain: Some(
            Chain { lane: op.program.lane, packed, code: registers.code, input_types, output_type }.into(),
        ),
    }))
}

/// Whether each operand is contiguous like the output, or a single number.
fn is_packed(op: &Elementwise) -> bool {
    op.dims.len() == 1 && op.strides.iter().flatten().all(|stride| *stride <= 1)
}
