//! Epilogue fusion: a convolution, a product or a normalisation applies the operations that follow
//! it before it writes its result.

use super::follower::{Follower, Step};
use super::readers::Readers;
use crate::ir::{
    BiasAxis, Binary, Conv, Graph, Instruction, Lane, LayerNorm, MatMul, Node, Op, Program, Source, Value,
    ValueId,
};
use crate::lower::elementwise_over;

pub(super) fn fuse(graph: &mut Graph) {
    let mut readers = Readers::new(graph);
    for index in 0..graph.nodes.len() {
        while absorb(graph, &mut readers, index).is_some() {}
    }
}

/// Fuse the only reader of a node's output into the node, if possible.
fn absorb(graph: &mut Graph, readers: &mut Readers, index: usize) -> Option<()> {
    let node = graph.nodes.get(index)?;
    if !matches!(node.op, Op::Conv(_) | Op::MatMul(_) | Op::LayerNorm(_)) || node.output(1).is_some() {
        return None;
    }
    let output = node.output(0)?;
    let reader = readers.only(output)?;
    let follows = Follower::new(graph, reader, output)?;
    let mut taken = node.clone();
    for step in follows.steps()? {
        take(graph, &mut taken, &follows, &step)?;
    }
    // Every step fits: this node now makes the reader's output, and the reader is removed.
    let made = follows.made;
    taken.name.clone_from(&graph.nodes.get(reader)?.name);
    if let Some(gone) = graph.nodes.get_mut(reader) {
        gone.inputs.clear();
        gone.outputs.clear();
    }
    *graph.nodes.get_mut(index)? = taken;
    graph.substitute(made, output);
    readers.take_over(index, reader, output, made);
    Some(())
}

/// Add one step to the epilogue of `node`, if possible.
fn take(graph: &mut Graph, node: &mut Node, follows: &Follower, step: &Step) -> Option<()> {
    let output = graph.value(node.output(0)?).tensor.dims().to_vec();
    match &mut node.op {
        Op::Conv(conv) => {
            let &[n, m, h, w] = output.as_slice() else { return None };
            let dims = [n, m, h * w];
            let inputs = &mut node.inputs;
            let is_free =
                |inputs: &[Option<ValueId>], from: usize| inputs.iter().skip(from).all(Option::is_none);
            if conv.activation.is_some() {
                return None;
            }
            let (place, id) = match step {
                Step::Activate(activation) => {
                    conv.activation = Some(*activation);
                    return Some(());
                }
                Step::Scale(_) => return None,
                // The multiplication scales the earlier scale and shift, too.
                Step::Mul(place) => {
                    let by =
                        follows.along(graph, *place, &dims, 1).filter(|_| is_free(inputs, Conv::RESIDUAL))?;
                    if let Some(shift) = inputs.get(Conv::SHIFT).copied().flatten() {
                        *inputs.get_mut(Conv::SHIFT)? = Some(of_channels(graph, Binary::Mul, shift, by)?);
                    }
                    let scale = inputs.get(Conv::SCALE).copied().flatten();
                    (Conv::SCALE, scale.map_or(Some(by), |scale| of_channels(graph, Binary::Mul, scale, by))?)
                }
                Step::Add(place) => match follows.along(graph, *place, &dims, 1) {
                    Some(id) if is_free(inputs, Conv::BIAS) => (Conv::BIAS, id),
                    Some(id) if is_free(inputs, Conv::SHIFT) => (Conv::SHIFT, id),
                    Some(id) if is_free(inputs, Conv::RESIDUAL) => {
                        let shift = inputs.get(Conv::SHIFT).copied().flatten()?;
                        (Conv::SHIFT, of_channels(graph, Binary::Add, shift, id)?)
                    }
                    _ => (
                        Conv::RESIDUAL,
                        follows.whole(graph, *place).filter(|_| is_free(inputs, Conv::RESIDUAL))?,
                    ),
                },
            };
            *inputs.get_mut(place)? = Some(id);
        }
        Op::MatMul(matmul) => {
            let rows = matmul.batch.iter().product::<usize>() * matmul.m;
            let (bias, residual) =
                (node.inputs.get(MatMul::BIAS)?.is_some(), node.inputs.get(MatMul::RESIDUAL)?.is_some());
            if matmul.activation.is_some() {
                return None;
            }
            match step {
                Step::Activate(activation) => matmul.activation = Some(*activation),
                Step::Scale(by) if !bias && !residual && by.is_finite() => matmul.alpha *= by,
                Step::Scale(_) | Step::Mul(_) => return None,
                Step::Add(place) if residual => {
                    // Addition commutes, but a product supports only one residual.
                    let id = follows.along(graph, *place, &[rows, matmul.n], 1).filter(|_| !bias)?;
                    *node.inputs.get_mut(MatMul::BIAS)? = Some(id);
                }
                Step::Add(place) => {
                    match follows.along(graph, *place, &[rows, matmul.n], 1).filter(|_| !bias) {
                        Some(id) => *node.inputs.get_mut(MatMul::BIAS)? = Some(id),
                        None if !bias
                            && matmul.batch.is_empty()
                            && follows.along(graph, *place, &[matmul.m, matmul.n], 0).is_some() =>
                        {
                            matmul.bias_axis = BiasAxis::Rows;
                            *node.inputs.get_mut(MatMul::BIAS)? =
                                follows.along(graph, *place, &[matmul.m, matmul.n], 0);
                        }
                        None => *node.inputs.get_mut(MatMul::RESIDUAL)? = Some(follows.whole(graph, *place)?),
                    }
                }
            }
        }
        Op::LayerNorm(norm) => {
            let dims = [norm.rows, norm.cols];
            let (gamma, beta) =
                (node.inputs.get(LayerNorm::GAMMA)?.is_some(), node.inputs.get(LayerNorm::BETA)?.is_some());
            let (place, id) = match step {
                Step::Mul(place) if !gamma && !beta => {
                    (LayerNorm::GAMMA, follows.along(graph, *place, &dims, 1)?)
                }
                Step::Add(place) if !beta => (LayerNorm::BETA, follows.along(graph, *place, &dims, 1)?),
                _ => return None,
            };
            *node.inputs.get_mut(place)? = Some(id);
        }
        _ => return None,
    }
    Some(())
}

/// Add a value with one number per channel, computed from two such values. If both are constants,
/// it is computed once, before the first run.
fn of_channels(graph: &mut Graph, binary: Binary, a: ValueId, b: ValueId) -> Option<ValueId> {
    let tensor = graph.value(a).tensor.clone();
    let program = Program {
        lane: Lane::Float,
        instructions: vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(binary)],
    };
    let op = elementwise_over(program, &[tensor.elements()], &[vec![1], vec![1]])?;
    let made = ValueId(u32::try_from(graph.values.len()).ok()?);
    let source = Source::Node { node: u32::try_from(graph.nodes.len()).ok()?, output: 0 };
    let name = graph.value(a).name.clone();
    graph.values.push(Value { name: name.clone(), tensor, source });
    let (inputs, outputs) = (vec![Some(a), Some(b)], vec![Some(made)]);
    graph.nodes.push(Node { name, op: Op::Elementwise(op), inputs, outputs });
    Some(made)
}

impl Graph {
    /// Update the sources of values after nodes have moved.
    pub(super) fn tidy_sources(&mut self) {
        for (index, node) in (0..).zip(&self.nodes) {
            for (output, id) in (0..).zip(&node.outputs) {
                if let Some(value) = id.and_then(|id| self.values.get_mut(id.0 as usize)) {
                    value.source = Source::Node { node: index, output };
                }
            }
        }
    }
}
