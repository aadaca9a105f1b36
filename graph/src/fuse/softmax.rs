//! Factors and masks in front of softmax.

use super::tree::{Kind, Tree};
use crate::ir::{Binary, DIMS_MAX, Graph, Mask, Op, Softmax, ValueId};
use crate::lower::{broadcast_strides, collapse};

/// What softmax is taken of: `scale * of + mask`.
pub(super) struct Scores {
    pub(super) of: ValueId,
    pub(super) scale: f32,
    pub(super) mask: Option<ValueId>,
}

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let Some((inputs, op)) = found(graph, index) else { continue };
        let node = &mut graph.nodes[index];
        node.op = Op::Softmax(op);
        node.inputs = inputs;
    }
}

fn found(graph: &Graph, index: usize) -> Option<(Vec<Option<ValueId>>, Softmax)> {
    let node = graph.nodes.get(index)?;
    let Op::Softmax(op) = &node.op else { return None };
    let x = node.input(Softmax::X).filter(|_| op.mask.is_none() && op.scale == 1.0)?;
    let Scores { of, scale, mask } = scores(graph, x)?;
    if of == graph.buffer(x) {
        return None;
    }
    let how = match mask {
        Some(mask) => Some(mask_of(graph.value(mask).tensor.dims(), graph.value(x).tensor.dims(), op.cols)?),
        None => None,
    };
    Some((vec![Some(of), mask], Softmax { scale, mask: how, ..op.clone() }))
}

/// How a value comes about by a factor and a mask, as far as it does. What is left, in the end, has as many elements as the value.
pub(super) fn scores(graph: &Graph, id: ValueId) -> Option<Scores> {
    let tree = Tree::across(graph, id);
    let (mut at, mut scale, mut mask) = (&tree, 1.0, None);
    let elements = graph.value(id).tensor.elements();
    let is_full = |tree: &Tree| tree.value.is_some_and(|id| graph.value(id).tensor.elements() == elements);
    while let Kind::Binary(binary, of) = &at.kind {
        let [a, b] = &**of;
        at = match (binary, a.constant(), b.constant()) {
            (Binary::Mul, None, Some(by)) if by.is_finite() && is_full(a) => {
                scale *= by;
                a
            }
            (Binary::Div, None, Some(by)) if (1.0 / by).is_finite() && is_full(a) => {
                scale /= by;
                a
            }
            // A mask before the factor would have to be multiplied by it.
            (Binary::Add, None, None) if mask.is_none() && scale == 1.0 => {
                let (full, other) =
                    if is_full(a) && !(is_full(b) && is_product(graph, b)) { (a, b) } else { (b, a) };
                let Some(other) = other.value.filter(|_| is_full(full)) else { break };
                mask = Some(other);
                full
            }
            _ => break,
        };
    }
    let of = at.value?;
    let same = graph.value(of).tensor.element_type() == graph.value(id).tensor.element_type();
    let masked = mask
        .is_none_or(|mask| graph.value(mask).tensor.element_type() == graph.value(id).tensor.element_type());
    (same && masked).then_some(Scores { of, scale, mask })
}

/// Whether a product of matrices, perhaps times something, makes it.
fn is_product(graph: &Graph, tree: &Tree) -> bool {
    tree.all().iter().filter_map(|tree| tree.value).any(|id| super::products::product(graph, id).is_some())
}

/// How a mask of `dims` broadcasts to `scores`, whose rows are of `cols` elements.
fn mask_of(dims: &[usize], scores: &[usize], cols: usize) -> Option<Mask> {
    let (last_dim, outer_dims) = scores.split_last()?;
    let strides = broadcast_strides(dims, scores);
    let (last, outer) = strides.split_last()?;
    let signed = outer.iter().map(|stride| isize::try_from(*stride).ok()).collect::<Option<Vec<_>>>()?;
    let (mut dims, mut strides) = collapse(outer_dims, &[signed]);
    let mut strides =
        strides.pop()?.into_iter().map(|stride| usize::try_from(stride).ok()).collect::<Option<Vec<_>>>()?;
    dims.push(*last_dim);
    strides.push(*last);
    (dims.len() <= DIMS_MAX && *last_dim == cols).then_some(Mask { dims, strides })
}
