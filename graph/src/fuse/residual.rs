//! Fusion of a sum into the layer normalisation that follows it.

use super::readers::Readers;
use crate::ir::{Binary, Graph, Instruction, LayerNorm, Op, ValueId};

pub(super) fn fuse(graph: &mut Graph) {
    let mut readers = Readers::new(graph);
    for index in 0..graph.nodes.len() {
        let Some((maker, sum, operands)) = found(graph, index) else { continue };
        // Other readers of the sum get it from the normalisation's second output.
        let is_wanted = readers.others(sum, index);
        if let Some(output) = graph.nodes[maker].outputs.first_mut() {
            *output = None;
        }
        graph.nodes[maker].inputs.clear();
        let node = &mut graph.nodes[index];
        node.inputs[LayerNorm::X] = Some(operands[0]);
        node.inputs[LayerNorm::RESIDUAL] = Some(operands[1]);
        node.outputs.resize(2, None);
        node.outputs[LayerNorm::SUM] = is_wanted.then_some(sum);
        readers.rename(maker, index);
        graph.tidy_sources();
    }
}

/// Return the node that makes the operand of the normalisation at `index`, if the node adds just
/// two values of that size: its index, the sum, and both summands.
fn found(graph: &Graph, index: usize) -> Option<(usize, ValueId, [ValueId; 2])> {
    let node = graph.nodes.get(index)?;
    if !matches!(node.op, Op::LayerNorm(_)) || node.input(LayerNorm::RESIDUAL).is_some() {
        return None;
    }
    let sum = graph.buffer(node.input(LayerNorm::X)?);
    let maker = graph.maker(sum)?;
    let Op::Elementwise(op) = &graph.nodes.get(maker)?.op else { return None };
    let adds = [Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Add)];
    let &[Some(a), Some(b)] = graph.nodes.get(maker)?.inputs.as_slice() else { return None };
    let tensor = &graph.value(sum).tensor;
    let is_whole = |id: ValueId| {
        let other = &graph.value(id).tensor;
        other.elements() == tensor.elements() && other.element_type() == tensor.element_type()
    };
    (op.program.instructions == adds && is_whole(a) && is_whole(b)).then_some((maker, sum, [a, b]))
}
