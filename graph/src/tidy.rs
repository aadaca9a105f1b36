//! Cleanup of a graph after it was made or changed.

use crate::ir::{Graph, GraphNode, GraphValue, ValueId, ValueSource};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

impl Graph {
    /// Remove unused nodes and values, and sort nodes into execution order: nodes that depend on no
    /// input first, otherwise in their previous order.
    ///
    /// The outputs of nodes are authoritative. The sources of values may be stale before the call,
    /// and are correct after it.
    pub(crate) fn tidy(&mut self) {
        self.relink();
        let is_used = self.used();
        let is_live: Vec<bool> = self
            .nodes
            .iter()
            .map(|node| node.outputs.iter().flatten().any(|id| is_used[id.0 as usize]))
            .collect();
        let order = self.order(&is_live);
        self.prologue_len = order.prologue_len;
        let mut nodes: Vec<Option<GraphNode>> =
            std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        self.nodes = order.nodes.iter().filter_map(|index| nodes[*index].take()).collect();
        for node in &mut self.nodes {
            for output in node.outputs.iter_mut().skip(1) {
                *output = output.filter(|id| is_used[id.0 as usize]);
            }
        }
        self.renumber(&is_used);
        self.relink();
    }

    /// Update the source of each value that a node makes.
    fn relink(&mut self) {
        for (index, node) in self.nodes.iter().enumerate() {
            for (output, id) in node.outputs.iter().enumerate() {
                if let Some(value) = id.and_then(|id| self.values.get_mut(id.0 as usize)) {
                    value.source = ValueSource::Node { node: index as u32, output: output as u32 };
                }
            }
        }
    }

    /// For each value, whether an output depends on it.
    fn used(&self) -> Vec<bool> {
        let mut is_used = vec![false; self.values.len()];
        let mut open: Vec<ValueId> = self.outputs.iter().map(|port| port.value).collect();
        let mut is_read = vec![false; self.nodes.len()];
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut is_used[id.0 as usize], true) {
                continue;
            }
            match self.value(id).source {
                ValueSource::View(of) => open.push(of),
                ValueSource::Node { node, .. } => {
                    if let Some(node) = self
                        .nodes
                        .get(node as usize)
                        .filter(|_| !std::mem::replace(&mut is_read[node as usize], true))
                    {
                        open.extend(node.inputs.iter().flatten());
                    }
                }
                ValueSource::Input | ValueSource::Weight(_) | ValueSource::Constant(_) => {}
            }
        }
        is_used
    }

    fn order(&self, is_live: &[bool]) -> Order {
        let live = || (0..self.nodes.len()).filter(|index| is_live[*index]);
        let mut missing = vec![0_usize; self.nodes.len()];
        let mut needed_by = vec![Vec::new(); self.nodes.len()];
        for index in live() {
            for maker in self.nodes[index].inputs.iter().flatten().filter_map(|id| self.maker(*id)) {
                missing[index] += 1;
                needed_by[maker].push(index);
            }
        }
        let reads_input = |node: &GraphNode| {
            let mut buffers = node.inputs.iter().flatten().map(|id| self.buffer(*id));
            buffers.any(|id| self.value(id).source == ValueSource::Input)
        };
        // Whether a node depends on an input of the graph, directly or through others. Otherwise,
        // it is in the prologue.
        let mut waits: Vec<bool> = self.nodes.iter().map(reads_input).collect();
        let mut ready: BinaryHeap<_> =
            live().filter(|index| missing[*index] == 0).map(|index| Reverse((waits[index], index))).collect();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut prologue_len = 0;
        while let Some(Reverse((waited, index))) = ready.pop() {
            nodes.push(index);
            prologue_len += usize::from(!waited);
            for &other in &needed_by[index] {
                waits[other] |= waited;
                missing[other] -= 1;
                if missing[other] == 0 {
                    ready.push(Reverse((waits[other], other)));
                }
            }
        }
        Order { nodes, prologue_len }
    }

    /// Keep values that are used, that nodes must write, and that are inputs; renumber them.
    fn renumber(&mut self, is_used: &[bool]) {
        let mut keep = is_used.to_vec();
        let written = self.nodes.iter().flat_map(|node| node.outputs.iter().flatten());
        for id in written.chain(self.inputs.iter().map(|port| &port.value)) {
            keep[id.0 as usize] = true;
        }
        let mut next = 0;
        let new: Vec<ValueId> = keep
            .iter()
            .map(|keep| {
                let id = ValueId(next);
                next += u32::from(*keep);
                id
            })
            .collect();
        let rename = |id: &mut ValueId| *id = new[id.0 as usize];
        let old = std::mem::take(&mut self.values);
        let kept = old.into_iter().zip(&keep).filter_map(|(value, keep)| keep.then_some(value));
        self.values = kept
            .map(|mut value: GraphValue| {
                if let ValueSource::View(of) = &mut value.source {
                    rename(of);
                }
                value
            })
            .collect();
        for node in &mut self.nodes {
            node.inputs.iter_mut().chain(&mut node.outputs).flatten().for_each(rename);
        }
        self.inputs.iter_mut().chain(&mut self.outputs).for_each(|port| rename(&mut port.value));
    }
}

/// Indices of live nodes in execution order, the prologue first.
struct Order {
    nodes: Vec<usize>,
    prologue_len: usize,
}
