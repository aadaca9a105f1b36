//! Layer normalisation that is written out: `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)`.

use super::tree::Tree;
use crate::ir::{Binary, Graph, LayerNorm, Op, Reduce, ReduceKind, Unary, ValueId};

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        if let Some((x, norm)) = found(graph, index) {
            let node = &mut graph.nodes[index];
            node.op = Op::LayerNorm(norm);
            node.inputs = vec![Some(x), None, None, None];
        }
    }
}

/// What a node normalises, and how.
fn found(graph: &Graph, index: usize) -> Option<(ValueId, LayerNorm)> {
    let node = graph.nodes.get(index)?;
    let output = node.output(0)?;
    let tree = Tree::across(graph, output);
    let (centred, variance, epsilon) = quotient(&tree)?;
    let [x, mean] = centred.binary(Binary::Sub)?;
    let (x, mean) = (x.value?, mean.value?);
    let rows = mean_of(graph, mean, x)?;
    let squares = graph.nodes.get(graph.maker(variance)?)?;
    let Op::Reduce(reduce) = &squares.op else { return None };
    if *reduce != rows || !is_square(&Tree::across(graph, squares.input(0)?), x, graph, rows) {
        return None;
    }
    let Reduce { rows, cols, .. } = rows;
    let fits = graph.value(output).tensor.elements() == rows * cols;
    fits.then_some((x, LayerNorm { rows, cols, epsilon }))
}

/// `(centred, variance, epsilon)` of `centred / sqrt(variance + epsilon)`, or of a product with the reciprocal.
fn quotient(tree: &Tree) -> Option<(&Tree, ValueId, f32)> {
    if let Some([above, below]) = tree.binary(Binary::Div) {
        let (variance, epsilon) = root(below)?;
        return Some((above, variance, epsilon));
    }
    let [a, b] = tree.binary(Binary::Mul)?;
    let of = |factor: &Tree| {
        if let Some(sum) = factor.unary(Unary::Rsqrt) {
            return sum_of(sum);
        }
        if let Some(below) = factor.unary(Unary::Reciprocal) {
            return root(below);
        }
        if let Some([sum, _]) = factor.binary(Binary::Pow).filter(|[_, power]| power.is(-0.5)) {
            return sum_of(sum);
        }
        factor.binary(Binary::Div).filter(|[one, _]| one.is(1.0)).and_then(|[_, below]| root(below))
    };
    let with = |centred, (variance, epsilon)| (centred, variance, epsilon);
    of(b).map(|root| with(a, root)).or_else(|| of(a).map(|root| with(b, root)))
}

/// `(variance, epsilon)` of the square root of their sum.
fn root(tree: &Tree) -> Option<(ValueId, f32)> {
    let power = || tree.binary(Binary::Pow).filter(|[_, power]| power.is(0.5)).map(|[sum, _]| sum);
    sum_of(tree.unary(Unary::Sqrt).or_else(power)?)
}

fn sum_of(tree: &Tree) -> Option<(ValueId, f32)> {
    let [variance, epsilon] = tree.binary(Binary::Add)?;
    Some((variance.value?, epsilon.constant()?))
}

/// Of which rows `mean` is the mean, if it is that of `x`.
fn mean_of(graph: &Graph, mean: ValueId, x: ValueId) -> Option<Reduce> {
    let node = graph.nodes.get(graph.maker(mean)?)?;
    match &node.op {
        Op::Reduce(reduce) if reduce.kind == ReduceKind::Mean && graph.buffer(node.input(0)?) == x => {
            Some(*reduce)
        }
        _ => None,
    }
}

/// Whether it is `(x - mean(x))^2`.
fn is_square(tree: &Tree, x: ValueId, graph: &Graph, rows: Reduce) -> bool {
    let is_centred = |tree: &Tree| {
        let Some([of, mean]) = tree.binary(Binary::Sub) else { return false };
        of.value == Some(x) && mean.value.and_then(|mean| mean_of(graph, mean, x)) == Some(rows)
    };
    let power = tree.binary(Binary::Pow).is_some_and(|[of, power]| is_centred(of) && power.is(2.0));
    power || tree.binary(Binary::Mul).is_some_and(|[a, b]| is_centred(a) && is_centred(b))
}
