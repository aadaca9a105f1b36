//! Who reads what.

use crate::ir::{Graph, ValueId};

/// The nodes that read each buffer, directly or as a view; one that reads it twice is there twice. Outputs of the graph are read by nobody in particular.
pub(super) struct Readers {
    nodes: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl Readers {
    pub(super) fn new(graph: &Graph) -> Self {
        let (mut nodes, mut is_output) =
            (vec![Vec::new(); graph.values.len()], vec![false; graph.values.len()]);
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

    /// The only one that reads a buffer, and once.
    pub(super) fn only(&self, buffer: ValueId) -> Option<usize> {
        match self.nodes[buffer.0 as usize].as_slice() {
            [node] if !self.is_output[buffer.0 as usize] => Some(*node),
            _ => None,
        }
    }

    /// Whether anybody but `node` needs a buffer.
    pub(super) fn others(&self, buffer: ValueId, node: usize) -> bool {
        self.is_output[buffer.0 as usize]
            || self.nodes[buffer.0 as usize].iter().any(|reader| *reader != node)
    }

    /// `node` has taken over what `gone` did, which read `buffer` and made `made`: now it makes `buffer` in the place of `made`, and reads the rest.
    pub(super) fn take_over(&mut self, node: usize, gone: usize, buffer: ValueId, made: ValueId) {
        self.nodes[buffer.0 as usize] = std::mem::take(&mut self.nodes[made.0 as usize]);
        self.is_output[buffer.0 as usize] = self.is_output[made.0 as usize];
        self.rename(gone, node);
    }

    /// What `old` read, `new` reads.
    pub(super) fn rename(&mut self, old: usize, new: usize) {
        self.nodes.iter_mut().flatten().filter(|reader| **reader == old).for_each(|reader| *reader = new);
    }
}
