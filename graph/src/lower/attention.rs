//! ONNX Runtime's operators for attention.

mod standard;
pub(super) use standard::attention;

use super::call::LoweringCall;
use super::dims::{broadcast, broadcast_strides};
use super::matmul::Factor;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Attention, Binary, HEAD_DIM_MAX, Heads, Instruction, NumberType, Op, Scalar, ValueId};

/// Summand of masked-out scores, unless the model states another.
const MASKED: f32 = -10_000.0;

/// Lower `Attention`: projections of one value to queries, keys and values, and attention among
/// them.
pub(super) fn packed(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let weights = call.input(1)?;
    if call.flag("unidirectional") || call.optional(4).is_some() || call.ints("qkv_hidden_sizes").is_some() {
        return Err(call.unsupported("a past, a causal mask, or parts of unequal size are"));
    }
    let mut projected = lowering.product(call, Factor::new(x), Factor::new(weights), 1.0)?;
    let element_type = lowering.element_type(x);
    if let Some(bias) = call.optional(2) {
        let code = vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Add)];
        projected = lowering.elementwise(call, NumberType::Float, code, &[projected, bias], element_type)?;
    }
    let dims = lowering.dims(projected);
    let &[batch, len, width] = dims.as_slice() else {
        return Err(call.invalid(format!("{dims:?} is no sequence")));
    };
    let hidden = width / 3;
    let (heads, head_dim) = heads(call, hidden)?;
    let part = |index: usize| Heads {
        offset: index * hidden,
        batch_stride: len * width,
        head_stride: head_dim,
        row_stride: width,
    };
    let mask = match call.optional(3) {
        Some(id) => Some(lowering.padding_mask(call, id, batch, len)?),
        None => None,
    };
    let op = Attention {
        batch,
        heads,
        q_len: len,
        kv_len: len,
        head_dim,
        scale: call.float("scale").unwrap_or(1.0 / (head_dim as f32).sqrt()),
        q: part(0),
        k: part(1),
        v: part(2),
        mask: None,
    };
    let operands = [projected, projected, projected];
    Ok(vec![Some(lowering.fused_attention(call, op, operands, mask, hidden)?), None])
}

/// Lower `MultiHeadAttention`: attention among given queries, keys and values.
pub(super) fn multi_head(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let q = call.input(0)?;
    let (Some(k), Some(v)) = (call.optional(1), call.optional(2)) else {
        return Err(call.unsupported("queries, keys and values in one input are"));
    };
    if call.optional(3).is_some()
        || call.optional(4).is_some()
        || (6..9).any(|place| call.optional(place).is_some())
    {
        return Err(call.unsupported("a bias, a padding mask or a past is"));
    }
    if call.flag("unidirectional") {
        return Err(call.unsupported("a causal mask is"));
    }
    let q_dims = lowering.dims(q);
    let k_dims = lowering.dims(k);
    let (&[batch, q_len, hidden], &[_, kv_len, _]) = (q_dims.as_slice(), k_dims.as_slice()) else {
        return Err(call.unsupported("keys or values that are not three-dimensional are"));
    };
    if k_dims != [batch, kv_len, hidden] || lowering.dims(v) != k_dims {
        return Err(call.unsupported(format!("queries of {q_dims:?} for keys of {k_dims:?} are")));
    }
    let (heads, head_dim) = heads(call, hidden)?;
    let at = |len: usize| Heads {
        offset: 0,
        batch_stride: len * hidden,
        head_stride: head_dim,
        row_stride: hidden,
    };
    let op = Attention {
        batch,
        heads,
        q_len,
        kv_len,
        head_dim,
        scale: call.float("scale").filter(|scale| *scale != 0.0).unwrap_or(1.0 / (head_dim as f32).sqrt()),
        q: at(q_len),
        k: at(kv_len),
        v: at(kv_len),
        mask: None,
    };
    let mask = call.optional(5);
    Ok(vec![Some(lowering.fused_attention(call, op, [q, k, v], mask, hidden)?)])
}

fn heads(call: &LoweringCall<'_>, hidden: usize) -> Result<(usize, usize), GraphError> {
    let heads =
        call.int("num_heads").and_then(|heads| usize::try_from(heads).ok()).filter(|heads| *heads > 0);
    let heads = heads.filter(|heads| hidden.is_multiple_of(*heads) && hidden > 0);
    let heads = heads.ok_or_else(|| call.invalid(format!("{hidden} elements do not make heads")))?;
    let head_dim = hidden / heads;
    if head_dim > HEAD_DIM_MAX {
        return Err(call.unsupported(format!("a head of {head_dim} elements is")));
    }
    Ok((heads, head_dim))
}

impl Lowering<'_> {
    fn fused_attention(
        &mut self,
        call: &LoweringCall<'_>,
        mut op: Attention,
        [q, k, v]: [ValueId; 3],
        mask: Option<ValueId>,
        hidden: usize,
    ) -> Result<ValueId, GraphError> {
        let element_type = self.element_type(q);
        if NumberType::for_element_type(element_type) == NumberType::Integer {
            return Err(call.invalid(format!("there is no attention among elements of type {element_type}")));
        }
        if let Some(mask) = mask {
            op.mask = Some(self.mask(call, mask, op.scores())?);
        }
        let output = call.tensor(element_type, [op.batch, op.q_len, op.heads, op.head_dim])?;
        let batch = op.batch;
        let q_len = op.q_len;
        if op.kv_len == 0 {
            return Err(call.invalid("there are no keys to attend to"));
        }
        let y = self.emit(Op::Attention(op), vec![Some(q), Some(k), Some(v), mask], output);
        self.view(call, y, [batch, q_len, hidden])
    }

    /// Strides by which an additive mask broadcasts to scores.
    fn mask(
        &self,
        call: &LoweringCall<'_>,
        mask: ValueId,
        scores: [usize; 4],
    ) -> Result<[usize; 4], GraphError> {
        let dims = self.tensor(mask).dims();
        if broadcast(&[dims, &scores]).as_deref() != Some(&scores) {
            return Err(call.invalid(format!("a mask of {dims:?} is not for scores of {scores:?}")));
        }
        let strides = broadcast_strides(dims, &scores);
        strides.try_into().map_err(|_| call.invalid("scores have four dimensions"))
    }

    /// Convert a padding mask, 0 or 1 for each position of each sequence, to an additive mask of
    /// the scores.
    fn padding_mask(
        &mut self,
        call: &LoweringCall<'_>,
        mask: ValueId,
        batch: usize,
        len: usize,
    ) -> Result<ValueId, GraphError> {
        if self.tensor(mask).dims() != [batch, len] {
            return Err(call.unsupported(format!("a mask of {} is", self.tensor(mask))));
        }
        let by = call.float("mask_filter_value").unwrap_or(MASKED);
        let number = |float| Instruction::Constant(Scalar::Float(float));
        // (1 - mask) * by
        let code = vec![
            number(1.0),
            Instruction::Load(0),
            Instruction::Binary(Binary::Sub),
            number(by),
            Instruction::Binary(Binary::Mul),
        ];
        let wide = self.elementwise(call, NumberType::Float, code, &[mask], weir_types::ElementType::Fp32)?;
        self.view(call, wide, [batch, 1, 1, len])
    }
}
