//! Fusion of decomposed scaled dot-product attention: a product of queries and keys, a factor, a
//! mask, softmax, and a product with values.

use super::products::product;
use super::softmax::{Scores, scores};
use super::strides::StridedWalk;
use crate::ir::{
    Attention, Copy, Graph, GraphNode, GraphValue, HEAD_DIM_MAX, Heads, MatMul, Matrix, Op, ValueId,
    ValueSource,
};

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let Some((attention, inputs)) = found(graph, index) else { continue };
        replace(graph, index, attention, inputs);
    }
}

/// Return the attention that ends with the product at `index`, and its operands.
fn found(graph: &Graph, index: usize) -> Option<(Attention, Vec<Option<ValueId>>)> {
    let node = graph.nodes.get(index)?;
    let Op::MatMul(second) = &node.op else { return None };
    let weights = node.input(MatMul::A)?;
    let softmax = graph.nodes.get(graph.maker(weights)?)?;
    let Op::Softmax(op) = &softmax.op else { return None };
    let q_len = second.m;
    let kv_len = second.k;
    let head_dim = second.n;
    let plain = |matmul: &MatMul, node: &GraphNode| {
        matmul.activation.is_none() && node.inputs.iter().skip(2).all(Option::is_none)
    };
    if op.log || op.mask.is_some() || op.cols != kv_len || !plain(second, node) || second.alpha != 1.0 {
        return None;
    }
    let Scores { of, scale, mask } = scores(graph, softmax.input(0)?)?;
    let (maker, first) = product(graph, of)?;
    let first_node = graph.nodes.get(maker)?;
    let fits = (first.m, first.n, first.k) == (q_len, kv_len, head_dim) && plain(first, first_node);
    let same_type = |id: Option<ValueId>| Some(graph.value(id?).tensor.element_type());
    let element_type = same_type(node.output(0));
    let q = first_node.input(MatMul::A);
    let k = first_node.input(MatMul::B);
    let v = node.input(MatMul::B);
    if !fits || head_dim > HEAD_DIM_MAX || [q, k, v].into_iter().any(|id| same_type(id) != element_type) {
        return None;
    }
    // Batch and heads are the leading dimensions of the output, or the batch dimensions of the
    // first product. Otherwise, all heads of all batches count as heads of one batch.
    let outer = graph.value(node.output(0)?).tensor.dims().split_last_chunk::<2>()?.0;
    let all: usize = outer.iter().product();
    let pair = |dims: &[usize]| <[usize; 2]>::try_from(dims).ok();
    let shapes = [pair(outer), pair(&first.batch), Some([1, all])];
    shapes.into_iter().flatten().find_map(|[batch, heads]| {
        let lies = |matrix: &Matrix, of: &MatMul, transposed: bool| {
            let strides = matrix
                .strides_along(&of.batch, &[batch, heads])
                .filter(|_| matrix.transposed == transposed)?;
            let &[batch_stride, head_stride] = strides.as_slice() else { return None };
            Some(Heads { offset: matrix.offset, batch_stride, head_stride, row_stride: matrix.row_stride })
        };
        let weights = lies(&second.a, second, false)?;
        let expected = [heads * q_len * kv_len, q_len * kv_len];
        let steps = [(batch, weights.batch_stride, expected[0]), (heads, weights.head_stride, expected[1])];
        let in_order = steps.into_iter().all(|(size, stride, expected)| size == 1 || stride == expected);
        if !in_order || weights.offset != 0 || weights.row_stride != kv_len {
            return None;
        }
        let mask_strides = match &mask {
            Some((_, walk)) => Some(walk.forward_along(&[batch, heads, q_len, kv_len])?.try_into().ok()?),
            None => None,
        };
        let attention = Attention {
            batch,
            heads,
            q_len,
            kv_len,
            head_dim,
            scale: first.alpha * scale,
            q: lies(&first.a, first, false)?,
            k: lies(&first.b, first, true)?,
            v: lies(&second.b, second, false)?,
            mask: mask_strides,
        };
        Some((attention, vec![q, k, v, mask.as_ref().map(|(mask, _)| *mask)]))
    })
}

/// Replace the product at `index` with attention. The product's output has heads outside positions,
/// and attention's output has positions outside heads, so a copy swaps them. Most models swap them
/// back in a following copy, and the two copies cancel out.
fn replace(graph: &mut Graph, index: usize, attention: Attention, inputs: Vec<Option<ValueId>>) {
    let Some(output) = graph.nodes[index].output(0) else { return };
    let Attention { batch, heads, q_len, head_dim, .. } = attention;
    let Some(tensor) = graph.value(output).tensor.reshaped([batch, q_len, heads, head_dim]) else { return };
    let name = graph.nodes[index].name.clone();
    let made = ValueId(u32::try_from(graph.values.len()).unwrap_or(u32::MAX));
    let node = u32::try_from(index).unwrap_or(u32::MAX);
    graph.values.push(GraphValue {
        name: name.clone(),
        tensor,
        source: ValueSource::Node { node, output: 0 },
    });
    graph.nodes[index] =
        GraphNode { name: name.clone(), op: Op::Attention(attention), inputs, outputs: vec![Some(made)] };
    let signed = |stride: usize| isize::try_from(stride).unwrap_or(isize::MAX);
    let walk = StridedWalk {
        offset: 0,
        dims: vec![batch, heads, q_len, head_dim],
        strides: vec![signed(q_len * heads * head_dim), signed(head_dim), signed(heads * head_dim), 1],
    };
    let op = Op::Copy(Copy { fill: None, parts: vec![walk.into_part()] });
    graph.nodes.push(GraphNode { name, op, inputs: vec![Some(made)], outputs: vec![Some(output)] });
    graph.tidy_sources();
}
