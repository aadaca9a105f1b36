//! Epilogue fusion: a convolution, a product or a normalisation applies the operations that follow
//! it before it writes its result.

use super::follower::{Follower, FollowerStep};
use super::readers::Readers;
use crate::ir::{
    BiasAxis, Binary, Conv, ElementwiseProgram, Graph, GraphNode, GraphValue, Instruction, LayerNorm, MatMul,
    NumberType, Op, ValueId, ValueSource,
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
fn take(graph: &mut Graph, node: &mut GraphNode, follows: &Follower, step: &FollowerStep) -> Option<()> {
    let output = node.output(0)?;
    let mut epilogue = EpilogueBuilder { graph, inputs: &mut node.inputs, follows, step };
    match &mut node.op {
        Op::Conv(conv) => epilogue.extend_conv(conv, output),
        Op::MatMul(matmul) => epilogue.extend_matmul(matmul),
        Op::LayerNorm(norm) => epilogue.extend_layer_norm(norm),
        _ => None,
    }
}

/// Adds one step to the epilogue of a node.
struct EpilogueBuilder<'a> {
    graph: &'a mut Graph,
    /// Operands of the node. Those of its epilogue come last.
    inputs: &'a mut [Option<ValueId>],
    follows: &'a Follower,
    step: &'a FollowerStep,
}

impl EpilogueBuilder<'_> {
    fn extend_conv(&mut self, conv: &mut Conv, output: ValueId) -> Option<()> {
        let &[n, m, h, w] = self.graph.value(output).tensor.dims() else { return None };
        let dims = [n, m, h * w];
        if conv.activation.is_some() {
            return None;
        }
        match self.step {
            FollowerStep::Activate(activation) => conv.activation = Some(*activation),
            FollowerStep::Scale(_) => return None,
            FollowerStep::Mul(operand) => self.scale_channels(*operand, &dims)?,
            FollowerStep::Add(operand) => self.add_to_conv(*operand, &dims)?,
        }
        Some(())
    }

    /// Multiply the output of a convolution, which has these dimensions, by one number per channel.
    /// The multiplication scales the earlier scale and shift, too.
    fn scale_channels(&mut self, operand: u8, dims: &[usize]) -> Option<()> {
        let by = self.along(operand, dims, 1).filter(|_| self.is_free(Conv::RESIDUAL))?;
        if let Some(shift) = self.input(Conv::SHIFT) {
            let shift = of_channels(self.graph, Binary::Mul, shift, by)?;
            self.set(Conv::SHIFT, shift)?;
        }
        let scale = match self.input(Conv::SCALE) {
            Some(scale) => of_channels(self.graph, Binary::Mul, scale, by)?,
            None => by,
        };
        self.set(Conv::SCALE, scale)
    }

    /// Add an operand to the output of a convolution, which has these dimensions.
    fn add_to_conv(&mut self, operand: u8, dims: &[usize]) -> Option<()> {
        match self.along(operand, dims, 1) {
            Some(id) if self.is_free(Conv::BIAS) => self.set(Conv::BIAS, id),
            Some(id) if self.is_free(Conv::SHIFT) => self.set(Conv::SHIFT, id),
            Some(id) if self.is_free(Conv::RESIDUAL) => {
                let shift = self.input(Conv::SHIFT)?;
                let shift = of_channels(self.graph, Binary::Add, shift, id)?;
                self.set(Conv::SHIFT, shift)
            }
            _ => {
                let residual = self.whole(operand).filter(|_| self.is_free(Conv::RESIDUAL))?;
                self.set(Conv::RESIDUAL, residual)
            }
        }
    }

    fn extend_matmul(&mut self, matmul: &mut MatMul) -> Option<()> {
        let has_bias = self.inputs.get(MatMul::BIAS)?.is_some();
        let has_residual = self.inputs.get(MatMul::RESIDUAL)?.is_some();
        if matmul.activation.is_some() {
            return None;
        }
        match self.step {
            FollowerStep::Activate(activation) => matmul.activation = Some(*activation),
            FollowerStep::Scale(by) if !has_bias && !has_residual && by.is_finite() => matmul.alpha *= by,
            FollowerStep::Scale(_) | FollowerStep::Mul(_) => return None,
            FollowerStep::Add(operand) => self.add_to_matmul(matmul, *operand)?,
        }
        Some(())
    }

    /// Add an operand to a product: as the bias of its columns or rows, or as its residual.
    fn add_to_matmul(&mut self, matmul: &mut MatMul, operand: u8) -> Option<()> {
        let has_bias = self.input(MatMul::BIAS).is_some();
        let has_residual = self.input(MatMul::RESIDUAL).is_some();
        let rows = matmul.batch.iter().product::<usize>() * matmul.m;
        if let Some(id) = self.along(operand, &[rows, matmul.n], 1).filter(|_| !has_bias) {
            return self.set(MatMul::BIAS, id);
        }
        // Addition commutes, but a product supports only one residual.
        if has_residual {
            return None;
        }
        if !has_bias
            && matmul.batch.is_empty()
            && let Some(id) = self.along(operand, &[matmul.m, matmul.n], 0)
        {
            matmul.bias_axis = BiasAxis::Rows;
            return self.set(MatMul::BIAS, id);
        }
        let residual = self.whole(operand)?;
        self.set(MatMul::RESIDUAL, residual)
    }

    fn extend_layer_norm(&mut self, norm: &LayerNorm) -> Option<()> {
        let dims = [norm.rows, norm.cols];
        let has_gamma = self.inputs.get(LayerNorm::GAMMA)?.is_some();
        let has_beta = self.inputs.get(LayerNorm::BETA)?.is_some();
        let (place, operand) = match self.step {
            FollowerStep::Mul(operand) if !has_gamma && !has_beta => (LayerNorm::GAMMA, *operand),
            FollowerStep::Add(operand) if !has_beta => (LayerNorm::BETA, *operand),
            _ => return None,
        };
        let id = self.along(operand, &dims, 1)?;
        self.set(place, id)
    }

    /// Return the operand of the follower, if it has one element for each index along `axis`.
    fn along(&self, operand: u8, dims: &[usize], axis: usize) -> Option<ValueId> {
        self.follows.along(self.graph, operand, dims, axis)
    }

    /// Return the operand of the follower, if it has one element for each element of the output.
    fn whole(&self, operand: u8) -> Option<ValueId> {
        self.follows.whole(self.graph, operand)
    }

    /// Return the node's operand at `place`.
    fn input(&self, place: usize) -> Option<ValueId> {
        self.inputs.get(place).copied().flatten()
    }

    fn set(&mut self, place: usize, id: ValueId) -> Option<()> {
        *self.inputs.get_mut(place)? = Some(id);
        Some(())
    }

    /// Return whether the node has no operands at `from` and after it.
    fn is_free(&self, from: usize) -> bool {
        self.inputs.iter().skip(from).all(Option::is_none)
    }
}

/// Add a value with one number per channel, computed from two such values. If both are constants,
/// it is computed once, before the first run.
fn of_channels(graph: &mut Graph, binary: Binary, a: ValueId, b: ValueId) -> Option<ValueId> {
    let tensor = graph.value(a).tensor.clone();
    let program = ElementwiseProgram {
        lane: NumberType::Float,
        instructions: vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(binary)],
    };
    let op = elementwise_over(program, &[tensor.elements()], &[vec![1], vec![1]])?;
    let made = ValueId(u32::try_from(graph.values.len()).ok()?);
    let source = ValueSource::Node { node: u32::try_from(graph.nodes.len()).ok()?, output: 0 };
    let name = graph.value(a).name.clone();
    graph.values.push(GraphValue { name: name.clone(), tensor, source });
    let inputs = vec![Some(a), Some(b)];
    let outputs = vec![Some(made)];
    graph.nodes.push(GraphNode { name, op: Op::Elementwise(op), inputs, outputs });
    Some(made)
}

impl Graph {
    /// Update the sources of values after nodes have moved.
    pub(super) fn tidy_sources(&mut self) {
        for (index, node) in (0..).zip(&self.nodes) {
            for (output, id) in (0..).zip(&node.outputs) {
                if let Some(value) = id.and_then(|id| self.values.get_mut(id.0 as usize)) {
                    value.source = ValueSource::Node { node: index, output };
                }
            }
        }
    }
}
