//! Fusion of factors and masks into the softmax that follows them.

use super::strides::StridedWalk;
use super::tree::{ExpressionKind, ExpressionTree};
use crate::ir::{Binary, DIMS_MAX, Graph, Mask, Op, Softmax, ValueId};
use crate::lower::collapse;

/// Argument of softmax: `scale * of + mask`.
pub(super) struct Scores {
    pub(super) of: ValueId,
    pub(super) scale: f32,
    /// The mask, and the walk that reads it for each element in turn.
    pub(super) mask: Option<(ValueId, StridedWalk)>,
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
    let how = match &mask {
        Some((_, walk)) => Some(mask_of(walk, graph.value(x).tensor.dims(), op.cols)?),
        None => None,
    };
    Some((vec![Some(of), mask.map(|(mask, _)| mask)], Softmax { scale, mask: how, ..op.clone() }))
}

/// Split a value into a factor, a mask and a remaining operand. The operand has as many elements as
/// the value.
pub(super) fn scores(graph: &Graph, id: ValueId) -> Option<Scores> {
    let tree = ExpressionTree::across(graph, id);
    let mut at = &tree;
    let mut scale = 1.0;
    let mut mask = None;
    let elements = graph.value(id).tensor.elements();
    let is_full = |tree: &ExpressionTree| {
        tree.is_in_step() && tree.value.is_none_or(|id| graph.value(id).tensor.elements() == elements)
    };
    while let ExpressionKind::Binary(binary, of) = &at.kind {
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
            // A mask that is added before the factor would need to be multiplied by the factor.
            (Binary::Add, None, None) if mask.is_none() && scale == 1.0 => {
                let (full, other) =
                    if is_full(a) && !(is_full(b) && is_product(graph, b)) { (a, b) } else { (b, a) };
                let (Some(other), Some(walk), true) = (other.value, &other.walk, is_full(full)) else {
                    break;
                };
                mask = Some((other, walk.clone()));
                full
            }
            _ => break,
        };
    }
    let of = at.value?;
    let same = graph.value(of).tensor.element_type() == graph.value(id).tensor.element_type();
    let of_mask = mask.as_ref().map(|(mask, _)| graph.value(*mask).tensor.element_type());
    (same && of_mask.is_none_or(|of_mask| of_mask == graph.value(id).tensor.element_type()))
        .then_some(Scores { of, scale, mask })
}

/// Whether a matrix product, perhaps with a factor, makes the value of `tree`.
fn is_product(graph: &Graph, tree: &ExpressionTree) -> bool {
    tree.all().iter().filter_map(|tree| tree.value).any(|id| super::products::product(graph, id).is_some())
}

/// Return the mask for `scores` with rows of `cols` elements, when `walk` reads the mask for each
/// score.
fn mask_of(walk: &StridedWalk, scores: &[usize], cols: usize) -> Option<Mask> {
    let (last_dim, outer_dims) = scores.split_last()?;
    let strides = walk.along(scores)?;
    let (last, outer) = strides.split_last()?;
    let (mut dims, mut strides) = collapse(outer_dims, &[outer.to_vec()]);
    let mut strides = strides.pop()?;
    dims.push(*last_dim);
    strides.push(*last);
    let strides =
        strides.into_iter().map(|stride| usize::try_from(stride).ok()).collect::<Option<Vec<_>>>()?;
    (dims.len() <= DIMS_MAX && *last_dim == cols).then_some(Mask { dims, strides })
}
