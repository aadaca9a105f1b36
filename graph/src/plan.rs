//! Memory planning: the address of each value of a graph ([`MemoryPlan`]).

mod pack;

pub use pack::{ALIGNMENT_BYTES, Packed, PlannedBlock, pack};

use crate::ir::{Elementwise, Graph, GraphNode, Op, ValueId, ValueSource};
use crate::tensor_type::row_major;

/// Place of each value of a graph in memory. The same graph always gets the same plan.
///
/// There are two regions. The *arena* is needed during a run, and runs of other graphs may reuse it
/// afterwards; it holds the inputs before a run and the outputs after the run. The *resident*
/// region holds results of the prologue, and lives as long as the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Size of the arena.
    pub arena_bytes: usize,
    /// Size of the region that holds results of the prologue and lives as long as the graph.
    pub resident_bytes: usize,
    places: Vec<ValuePlace>,
}

/// Place of a value in memory. Offsets are multiples of [`ALIGNMENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValuePlace {
    /// In the arena.
    Arena {
        /// Offset in bytes from the start of the arena.
        offset: usize,
    },
    /// In the resident region.
    Resident {
        /// Offset in bytes from the start of the region.
        offset: usize,
    },
    /// In the model's weight of this index.
    Weight(u32),
    /// In the constant that is this value.
    Constant(ValueId),
}

/// Lifetime of a buffer: from the step that writes it to the last step that reads it.
#[derive(Debug, Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
    /// Whether the buffer outlives the prologue that made it.
    stays: bool,
}

impl MemoryPlan {
    /// Plan the memory of `graph`, which must be sound.
    #[must_use]
    pub fn new(graph: &Graph) -> Self {
        let lives = lives(graph);
        let mut arena = Vec::new();
        let mut resident = Vec::new();
        // Index of each buffer's block in its region.
        let mut block_of: Vec<Option<usize>> = vec![None; graph.values.len()];
        let written = graph
            .nodes
            .iter()
            .flat_map(|node| node.outputs.iter().flatten().map(move |id| (Some(node), *id)));
        for (node, id) in graph.inputs.iter().map(|port| (None, port.value)).chain(written) {
            let Some(life) = lives[id.0 as usize] else { continue };
            let bytes = graph.value(id).tensor.bytes();
            let block = PlannedBlock { bytes, first: life.first, last: life.last };
            let list = if life.stays { &mut resident } else { &mut arena };
            let taken = node.filter(|_| !life.stays).and_then(|node| giver(graph, node, &lives));
            let index = match taken.and_then(|giver| block_of[giver.0 as usize]) {
                Some(index) => {
                    list[index] = PlannedBlock { last: life.last, ..list[index] };
                    index
                }
                None => {
                    list.push(block);
                    list.len() - 1
                }
            };
            block_of[id.0 as usize] = Some(index);
        }
        // Resident buffers live forever, so none shares memory with another.
        resident.iter_mut().for_each(|block: &mut PlannedBlock| (block.first, block.last) = (0, usize::MAX));
        let arena = pack(&arena);
        let resident = pack(&resident);
        let place = |id: ValueId| {
            let buffer = graph.buffer(id);
            let stays = lives[buffer.0 as usize].is_some_and(|life| life.stays);
            let offsets = if stays { &resident.offsets } else { &arena.offsets };
            let offset =
                || block_of[buffer.0 as usize].and_then(|index| offsets.get(index)).copied().unwrap_or(0);
            match graph.value(buffer).source {
                ValueSource::Weight(index) => ValuePlace::Weight(index),
                ValueSource::Constant(_) => ValuePlace::Constant(buffer),
                _ if stays => ValuePlace::Resident { offset: offset() },
                _ => ValuePlace::Arena { offset: offset() },
            }
        };
        let places = graph.ids().map(place).collect();
        Self { arena_bytes: arena.bytes, resident_bytes: resident.bytes, places }
    }

    /// Place of a value of the graph.
    #[must_use]
    pub fn place(&self, id: ValueId) -> ValuePlace {
        self.places[id.0 as usize]
    }
}

/// Lifetimes of inputs and outputs of nodes, by value; a step is the index of a node. Inputs live
/// from the start, and outputs until the end.
fn lives(graph: &Graph) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; graph.values.len()];
    for port in &graph.inputs {
        lives[port.value.0 as usize] = Some(Life { first: 0, last: 0, stays: false });
    }
    let read = |lives: &mut Vec<Option<Life>>, id: ValueId, step: usize| {
        let buffer = graph.buffer(id);
        let is_kept =
            graph.maker(buffer).is_some_and(|maker| maker < graph.prologue_len) && step >= graph.prologue_len;
        if let Some(life) = &mut lives[buffer.0 as usize] {
            life.last = step;
            life.stays |= is_kept;
        }
    };
    for (step, node) in graph.nodes.iter().enumerate() {
        for id in node.outputs.iter().flatten() {
            lives[id.0 as usize] = Some(Life { first: step, last: step, stays: false });
        }
        node.inputs.iter().flatten().for_each(|id| read(&mut lives, *id, step));
    }
    graph.outputs.iter().for_each(|port| read(&mut lives, port.value, graph.nodes.len()));
    lives
}

/// Return an operand whose memory the output of `node` can reuse: no later step needs it, and each
/// of its elements is read only where the output element is written.
///
/// Inputs are never reused, so that a caller can read them again.
fn giver(graph: &Graph, node: &GraphNode, lives: &[Option<Life>]) -> Option<ValueId> {
    let Op::Elementwise(op) = &node.op else { return None };
    let output = node.output(0)?;
    let step = graph.maker(output)?;
    let is_given = |buffer: ValueId| {
        let life = lives[buffer.0 as usize];
        let dies = life.is_some_and(|life| life.last == step && !life.stays);
        let is_made = matches!(graph.value(buffer).source, ValueSource::Node { .. });
        let size = |id: ValueId| (graph.value(id).tensor.bytes(), graph.value(id).tensor.elements());
        dies && is_made && size(buffer) == size(output) && reads_in_step(graph, node, op, buffer)
    };
    node.inputs.iter().flatten().map(|id| graph.buffer(*id)).find(|buffer| is_given(*buffer))
}

/// Whether a node reads a buffer only at the element that it writes.
fn reads_in_step(graph: &Graph, node: &GraphNode, op: &Elementwise, buffer: ValueId) -> bool {
    let in_step = row_major(&op.dims);
    let operands = node.inputs.iter().zip(&op.strides);
    operands.filter(|(id, _)| id.is_some_and(|id| graph.buffer(id) == buffer)).all(|(_, strides)| {
        let same = strides.iter().zip(&in_step).zip(&op.dims);
        same.into_iter().all(|((stride, in_step), dim)| *dim == 1 || stride == in_step)
    })
}

#[cfg(test)]
mod tests;
