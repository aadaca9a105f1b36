//! Attention.

use super::limits::{all_there, blocks, size, stride};
use super::{LaunchPlan, Operands, float_name, has_elements, same_type};
use crate::KernelModule;
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use weir_graph::{Attention, HEAD_DIM_MAX, Heads, TensorType};

/// Queries and keys per block, and threads per block: `attention.cu`.
const QUERIES: u32 = 32;
const KEYS: u32 = 32;
const THREADS: u32 = 128;

pub(super) fn plan(op: &Attention, operands: Operands<'_>) -> Result<LaunchPlan, String> {
    let output = operands.output()?;
    let name = float_name(output.element_type())?;
    has_elements(Some(output), op.batch * op.q_len * op.heads * op.head_dim, "output")?;
    let mask = operands.input(Attention::MASK);
    same_type(mask, output.element_type(), "mask")?;
    if op.head_dim > HEAD_DIM_MAX || op.kv_len == 0 {
        return Err(format!("with heads of {} elements and {} keys", op.head_dim, op.kv_len));
    }
    let mut fields = Fields::default();
    let sides =
        [(Attention::Q, &op.q, op.q_len), (Attention::K, &op.k, op.kv_len), (Attention::V, &op.v, op.kv_len)];
    for (place, heads, rows) in sides {
        let tensor = operands.needed(place)?;
        same_type(Some(tensor), output.element_type(), "side")?;
        check(op, heads, rows, tensor)?;
        let distances = [heads.offset, heads.batch_stride, heads.head_stride, heads.row_stride];
        fields = distances.iter().try_fold(fields, |fields, at| Ok::<_, String>(fields.i64(stride(*at)?)))?;
    }
    if output.elements() == 0 {
        return Ok(LaunchPlan::default());
    }
    for at in mask_strides(op, mask)? {
        fields = fields.i64(stride(at)?);
    }
    let fields = fields
        .u32(blocks("heads", op.heads)?)
        .u32(size("query count", op.q_len)?)
        .u32(size("key count", op.kv_len)?)
        .u32(size("head", op.head_dim)?)
        .f32(op.scale);
    // Kernels exist for these sizes of a head; the size is rounded up.
    let dim = (op.head_dim as u32).next_power_of_two().max(32);
    let shared_floats = (QUERIES + 2 * KEYS) * (dim + 4) + QUERIES * (KEYS + 1);
    let products = op.batch * op.heads * op.q_len * op.kv_len * op.head_dim;
    let mask_at = if mask.is_some() {
        Argument::Address(OperandBuffer::Input(Attention::MASK))
    } else {
        Argument::Null
    };
    let sides = [Attention::Q, Attention::K, Attention::V]
        .map(|place| Argument::Address(OperandBuffer::Input(place)));
    let arguments = [Argument::Address(OperandBuffer::Output(0))].into_iter().chain(sides);
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel { module: KernelModule::Attention, name: format!("attention_{name}_{dim}") },
        grid: [(op.q_len as u32).div_ceil(QUERIES), op.heads as u32, blocks("sequences", op.batch)?],
        block: [THREADS, 1, 1],
        shared_bytes: shared_floats * 4,
        arguments: arguments.chain([mask_at, Argument::Bytes(fields.bytes())]).collect(),
        cost: LaunchCost { flops: 4 * products as u64, bytes: operands.bytes() },
        chain: None,
    }))
}

/// Check that all heads of an operand are inside its buffer.
fn check(op: &Attention, heads: &Heads, rows: usize, tensor: &TensorType) -> Result<(), String> {
    let along = [
        (op.batch, heads.batch_stride),
        (op.heads, heads.head_stride),
        (rows, heads.row_stride),
        (op.head_dim, 1),
    ];
    // If one size is 0, the kernel reads nothing.
    let nothing = along.iter().any(|(size, _)| *size == 0);
    if nothing { Ok(()) } else { all_there(heads.offset, along, tensor.elements()) }
}

/// Strides of a mask along batch, head, query and key.
fn mask_strides(op: &Attention, mask: Option<&TensorType>) -> Result<[usize; 4], String> {
    match (mask, op.mask) {
        (None, None) => Ok([0; 4]),
        (Some(mask), Some(strides)) => {
            let sizes = [op.batch, op.heads, op.q_len, op.kv_len];
            all_there(0, sizes.into_iter().zip(strides), mask.elements())?;
            Ok(strides)
        }
        _ => Err("with a mask of which either the values or the place is not there".to_owned()),
    }
}
