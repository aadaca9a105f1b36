//! Attention.

use super::{FLOATS, KernelCase, case, floats, run, tensor};
use weir_graph::reference::ReferenceTensor;
use weir_graph::{Attention, Heads, Op};
use weir_kernels_tests::{Tolerance, Values};

/// Heads within contiguous positions: `[batch, rows, heads, head_dim]`.
fn apart(rows: usize, heads: usize, head_dim: usize) -> Heads {
    Heads {
        offset: 0,
        batch_stride: rows * heads * head_dim,
        head_stride: head_dim,
        row_stride: heads * head_dim,
    }
}

pub(super) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for precision in FLOATS {
        let storage = precision.storage();
        // Weights add up to 1, so the errors are those of a sum of a few products.
        let tolerance = Tolerance::of_sum(precision, 8);
        for (batch, heads, q_len, kv_len, head_dim) in
            [(1, 2, 33, 33, 32), (2, 3, 5, 70, 20), (1, 1, 40, 64, 64), (1, 2, 37, 45, 100), (1, 1, 3, 1, 1)]
        {
            for mask in
                [None, Some([kv_len, 0, 0, 1]), Some([heads * q_len * kv_len, q_len * kv_len, kv_len, 1])]
            {
                let op = Attention {
                    batch,
                    heads,
                    q_len,
                    kv_len,
                    head_dim,
                    scale: 1.0 / (head_dim as f32).sqrt(),
                    q: apart(q_len, heads, head_dim),
                    k: apart(kv_len, heads, head_dim),
                    v: apart(kv_len, heads, head_dim),
                    mask,
                };
                let side = |rows: usize| Some(floats(storage, &[batch, rows, heads, head_dim]));
                let mask = mask.map(|strides| {
                    let elements =
                        if strides[2] == 0 { batch * kv_len } else { batch * heads * q_len * kv_len };
                    let mut steps = Values::new(3);
                    // The first key is never masked: a row with all keys masked has no weights.
                    let values = (0..elements)
                        .map(|at| if at % kv_len > 0 && steps.unit() < 0.3 { -1e4 } else { 0.25 });
                    ReferenceTensor::floats(tensor(storage, &[elements]), values.collect())
                });
                let inputs = vec![side(q_len), side(kv_len), side(kv_len), mask];
                cases.push(case(
                    Op::Attention(op),
                    inputs,
                    tensor(storage, &[batch, q_len, heads, head_dim]),
                    tolerance,
                ));
            }
        }
        // Queries, keys and values interleaved in one value, as a single projection makes them.
        let rows = 50;
        let heads = 3;
        let head_dim = 16;
        let part = |which: usize| Heads {
            offset: which * heads * head_dim,
            batch_stride: rows * 3 * heads * head_dim,
            head_stride: head_dim,
            row_stride: 3 * heads * head_dim,
        };
        let op = Attention {
            batch: 2,
            heads,
            q_len: rows,
            kv_len: rows,
            head_dim,
            scale: 0.25,
            q: part(0),
            k: part(1),
            v: part(2),
            mask: None,
        };
        let all = floats(storage, &[2, rows, 3, heads, head_dim]);
        let inputs = vec![Some(all.clone()), Some(all.clone()), Some(all), None];
        cases.push(case(Op::Attention(op), inputs, tensor(storage, &[2, rows, heads, head_dim]), tolerance));
    }
    cases
}

#[test]
fn attention() {
    run(cases());
}
