//! Readers of each buffer.

use crate::ir::{Graph, ValueId};

/// Nodes that read each buffer, directly or through a view. A node that reads a buffer twice
/// appears twice. Graph outputs are tracked apart, in `is_output`.
pub(super) struct Readers {
    nodes: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl Readers {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut nodes = vec![Vec::new(); graph.values.len()];
        let mut is_output = vec![false; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in node.inputs.iter().flatten() {
                nodes[graph.buffer(*id).0 as usize].push(index);
            }
        }
        for port in &graph.outputs {
            is_output[graph.buffer(port.value).0 as usize] = true;
        }
        Self { nodes, is_output }
    }

    /// Return the only reader of a buffer, if it reads the buffer exactly once.
    pub(super) fn only(&self, buffer: ValueId) -> Option<usize> {
        match self.nodes[buffer.0 as usize].as_slice() {
            [node] if !self.is_output[buffer.0 as usize] => Some(*node),
            _ => None,
        }
    }

    /// Whether a node other than `node`, or a graph output, needs a buffer.
    pub(super) fn others(&self, buffer: ValueId, node: usize) -> bool {
        self.is_output[buffer.0 as usize]
            || self.nodes[buffer.0 as usize].iter().any(|reader| *reader != node)
    }

    /// Record that `node` replaced `gone`, which read `buffer` and made `made`: `node` now makes
    /// `buffer` in place of `made`, and reads the other operands of `gone`.
    pub(super) fn take_over(&mut self, node: usize, gone: usize, buffer: ValueId, made: ValueId) {
        self.nodes[buffer.0 as usize] = std::mem::take(&mut self.nodes[made.0 as usize]);
        self.is_output[buffer.0 as usize] = self.is_output[made.0 as usize];
        self.rename(gone, node);
    }

    /// Replace the reader `old` with `new` in every buffer.
    pub(super) fn rename(&mut self, old: usize, new: usize) {
        self.nodes.iter_mut().flatten().filter(|reader| **reader == old).for_each(|reader| *reader = new);
    }
}
