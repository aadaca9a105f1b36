//! Scaled dot-product attention.

use super::rows::{masked, softmax_row};
use super::{ReferenceTensor, floats};
use crate::TensorType;
use crate::ir::{Attention, Heads, Mask};

pub(super) fn attention<'a>(
    op: &Attention,
    operand: &dyn Fn(usize) -> Option<&'a ReferenceTensor>,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let (q, k, v) =
        (floats(operand(Attention::Q))?, floats(operand(Attention::K))?, floats(operand(Attention::V))?);
    let dims = op.scores();
    let how = op.mask.map(|strides| Mask { dims: dims.to_vec(), strides: strides.to_vec() });
    let mask = masked(operand(Attention::MASK), how.as_ref(), dims.iter().product())?;
    let vector = |of: &'_ [f32], heads: &Heads, [batch, head, row]: [usize; 3]| -> Option<Vec<f64>> {
        let at =
            heads.offset + batch * heads.batch_stride + head * heads.head_stride + row * heads.row_stride;
        Some(of.get(at..at + op.head_dim)?.iter().map(|x| f64::from(*x)).collect())
    };
    let mut made = vec![0.0_f32; out.elements()];
    for batch in 0..op.batch {
        for head in 0..op.heads {
            let all = |of: &[f32], heads: &Heads, len: usize| -> Option<Vec<Vec<f64>>> {
                (0..len).map(|row| vector(of, heads, [batch, head, row])).collect()
            };
            let (queries, keys, values) =
                (all(&q, &op.q, op.q_len)?, all(&k, &op.k, op.kv_len)?, all(&v, &op.v, op.kv_len)?);
            for (row, query) in queries.iter().enumerate() {
                let mask_at = ((batch * op.heads + head) * op.q_len + row) * op.kv_len;
                let score = |(column, key): (usize, &Vec<f64>)| {
                    let product: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                    f64::from(op.scale) * product
                        + mask.as_ref().map_or(0.0, |mask| f64::from(mask[mask_at + column]))
                };
                let weights = softmax_row(&keys.iter().enumerate().map(score).collect::<Vec<_>>(), false);
                let to = ((batch * op.q_len + row) * op.heads + head) * op.head_dim;
                for (dim, y) in made.get_mut(to..to + op.head_dim)?.iter_mut().enumerate() {
                    *y = weights.iter().zip(&values).map(|(weight, value)| weight * value[dim]).sum::<f64>()
                        as f32;
                }
            }
        }
    }
    Some(ReferenceTensor::floats(out.clone(), made))
}
