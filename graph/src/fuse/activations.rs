//! Activations that are written out: GELU from `Erf` or `Tanh`, SiLU and hard swish from products, sigmoid from `Exp`.
//!
//! There are many ways to write each, so they are told by what they compute: an expression of one value that agrees with an activation at every one of many points, from
//! where both are flat on one side to where they are on the other, is that activation.

use super::tree::Tree;
use crate::ir::{Activation, Elementwise, Graph, Instruction, Lane, Op, Program, Unary, ValueId};

/// What is looked for.
const KNOWN: [Activation; 8] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::HardSwish,
    Activation::Sigmoid,
    Activation::Softplus,
    Activation::Relu,
    Activation::Clip { min: 0.0, max: 6.0 },
];

/// How far two ways to compute the same may be apart, by the size of the argument where that is over 1. GELU and its approximation are further.
const TOLERANCE: f32 = 4e-6;

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        if let Some((activation, of)) = found(graph, index) {
            let elements = graph.value(of).tensor.elements();
            let instructions = vec![Instruction::Load(0), Instruction::Unary(Unary::Activate(activation))];
            let program = Program { lane: Lane::Float, instructions };
            let node = &mut graph.nodes[index];
            node.op = Op::Elementwise(Elementwise { program, dims: vec![elements], strides: vec![vec![1]] });
            node.inputs = vec![Some(of)];
        }
    }
}

/// The activation that a node computes at the end of several steps, and of what.
fn found(graph: &Graph, index: usize) -> Option<(Activation, ValueId)> {
    let node = graph.nodes.get(index)?;
    let output = node.output(0)?;
    if !matches!(node.op, Op::Elementwise(_)) {
        return None;
    }
    let tree = Tree::across(graph, output);
    let mut candidates: Vec<ValueId> = tree.all().iter().skip(1).filter_map(|tree| tree.value).collect();
    candidates.sort_unstable();
    candidates.dedup();
    let dims = graph.value(output).tensor.elements();
    candidates.into_iter().filter(|of| graph.value(*of).tensor.elements() == dims).find_map(|of| {
        let function = tree.function_of(of).filter(|function| function.len() > 2)?;
        let agrees = |activation: &Activation| {
            points().all(|x| {
                let (Some(found), wanted) = (function.at(x), crate::reference::activate(*activation, x))
                else {
                    return false;
                };
                (found - wanted).abs() <= TOLERANCE * x.abs().max(1.0)
            })
        };
        KNOWN.into_iter().find(agrees).map(|activation| (activation, of))
    })
}

/// From -12 to 12, and no two the same distance from 0.
fn points() -> impl Iterator<Item = f32> {
    (0..=240_u16).map(|at| f32::from(at) / 10.0 - 12.0 + 0.003)
}
