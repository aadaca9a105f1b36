//! Fusion of decomposed layer normalisation: `(x - mean(x)) / sqrt(mean((x - mean(x))^2) +
//! epsilon)`.

use super::tree::ExpressionTree;
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

/// Return the operand and the parameters of the normalisation that a node computes.
fn found(graph: &Graph, index: usize) -> Option<(ValueId, LayerNorm)> {
    let node = graph.nodes.get(index)?;
    let output = node.output(0)?;
    let tree = ExpressionTree::across(graph, output);
    let Quotient { above, path, epsilon } = quotient(&tree)?;
    let variance = path.last()?.value?;
    let squares = graph.nodes.get(graph.maker(variance)?)?;
    let Op::Reduce(rows) = &squares.op else { return None };
    let Reduce { kind: ReduceKind::Mean, rows: count, cols } = *rows else { return None };
    // Exactly one expression on the path from the divisor to the variance broadcasts one element
    // per row.
    let mut spread = path.iter().filter(|tree| !tree.is_in_step());
    let by_rows = spread.next()?.is_of_rows(count, cols) && spread.next().is_none();
    let x = centred(graph, above, rows)?;
    let fits = by_rows && graph.value(output).tensor.elements() == count * cols;
    let is_variance = is_square(graph, &ExpressionTree::across(graph, squares.input(0)?), x, rows);
    (fits && is_variance).then_some((x, LayerNorm { rows: count, cols, epsilon }))
}

/// `above / sqrt(variance + epsilon)`, or `above` times the reciprocal.
struct Quotient<'a> {
    above: &'a ExpressionTree,
    /// Expressions from the divisor down to the variance, which is the last.
    path: Vec<&'a ExpressionTree>,
    epsilon: f32,
}

fn quotient(tree: &ExpressionTree) -> Option<Quotient<'_>> {
    let made = |above, (path, epsilon)| Quotient { above, path, epsilon };
    if let Some([above, below]) = tree.binary(Binary::Div) {
        return root(below).map(|root| made(above, root));
    }
    let [a, b] = tree.binary(Binary::Mul)?;
    let of = |factor| {
        let reciprocal = reciprocal(factor)?;
        Some((std::iter::once(factor).chain(reciprocal.0).collect(), reciprocal.1))
    };
    of(b).map(|root| made(a, root)).or_else(|| of(a).map(|root| made(b, root)))
}

/// Return the path from the reciprocal of `sqrt(variance + epsilon)` down to the variance, and
/// epsilon.
fn reciprocal(tree: &ExpressionTree) -> Option<(Vec<&ExpressionTree>, f32)> {
    if let Some(sum) = tree.unary(Unary::Rsqrt) {
        return sum_of(sum);
    }
    if let Some(below) = tree.unary(Unary::Reciprocal) {
        return root(below);
    }
    if let Some([sum, _]) = tree.binary(Binary::Pow).filter(|[_, power]| power.is(-0.5)) {
        return sum_of(sum);
    }
    let [_, below] = tree.binary(Binary::Div).filter(|[one, _]| one.is(1.0))?;
    root(below)
}

/// Return the path from a square root of a sum down to the variance, and epsilon.
fn root(tree: &ExpressionTree) -> Option<(Vec<&ExpressionTree>, f32)> {
    let power = || tree.binary(Binary::Pow).filter(|[_, power]| power.is(0.5)).map(|[sum, _]| sum);
    let (path, epsilon) = sum_of(tree.unary(Unary::Sqrt).or_else(power)?)?;
    Some((std::iter::once(tree).chain(path).collect(), epsilon))
}

fn sum_of(tree: &ExpressionTree) -> Option<(Vec<&ExpressionTree>, f32)> {
    let [variance, epsilon] = tree.binary(Binary::Add)?;
    Some((vec![tree, variance], epsilon.constant()?))
}

/// Return `x`, if `tree` is `x - mean(x)` with the means that `rows` computes.
fn centred(graph: &Graph, tree: &ExpressionTree, rows: &Reduce) -> Option<ValueId> {
    let [x, mean] = tree.binary(Binary::Sub)?;
    let node = graph.nodes.get(graph.maker(mean.value?)?)?;
    let of = graph.buffer(node.input(0)?);
    let is_mean = node.op == Op::Reduce(*rows) && x.value == Some(of);
    let in_place = tree.is_in_step() && x.is_in_step() && mean.is_of_rows(rows.rows, rows.cols);
    (is_mean && in_place).then_some(of)
}

/// Whether `tree` is `(x - mean(x))^2`.
fn is_square(graph: &Graph, tree: &ExpressionTree, x: ValueId, rows: &Reduce) -> bool {
    let is_centred = |tree: &ExpressionTree| centred(graph, tree, rows) == Some(x);
    let power = tree.binary(Binary::Pow).is_some_and(|[of, power]| is_centred(of) && power.is(2.0));
    power || tree.binary(Binary::Mul).is_some_and(|[a, b]| is_centred(a) && is_centred(b))
}
