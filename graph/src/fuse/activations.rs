//! Fusion of decomposed activations: GELU from `Erf` or `Tanh`, SiLU and hard swish from products,
//! sigmoid from `Exp`.
//!
//! Each activation can be written in many ways, so this pass recognises the function that an
//! expression computes, not its form. An expression of one value is an activation if both agree at
//! many sample points. The points span the whole interval between the flat ends of the functions.

use super::tree::ExpressionTree;
use crate::ir::{
    Activation, Elementwise, ElementwiseProgram, Graph, Instruction, NumberType, Op, Unary, ValueId,
};

/// Activations that the pass recognises.
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

/// Largest difference between two forms of one activation, relative to the argument where its
/// magnitude is over 1. GELU and its tanh approximation differ by more.
const TOLERANCE: f32 = 4e-6;

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        if let Some((activation, of)) = found(graph, index) {
            let elements = graph.value(of).tensor.elements();
            let instructions = vec![Instruction::Load(0), Instruction::Unary(Unary::Activate(activation))];
            let program = ElementwiseProgram { lane: NumberType::Float, instructions };
            let node = &mut graph.nodes[index];
            node.op = Op::Elementwise(Elementwise { program, dims: vec![elements], strides: vec![vec![1]] });
            node.inputs = vec![Some(of)];
        }
    }
}

/// Return the activation that the expression ending at a node computes, and the activation's
/// argument.
fn found(graph: &Graph, index: usize) -> Option<(Activation, ValueId)> {
    let node = graph.nodes.get(index)?;
    let output = node.output(0)?;
    if !matches!(node.op, Op::Elementwise(_)) {
        return None;
    }
    let tree = ExpressionTree::across(graph, output);
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

/// Sample points from -12 to 12; no two have the same distance from 0.
fn points() -> impl Iterator<Item = f32> {
    (0..=240_u16).map(|at| f32::from(at) / 10.0 - 12.0 + 0.003)
}
