//! Operator fusion: [`Graph::fuse`].
//!
//! Each pass fuses one kind of neighbours. The order keeps passes from blocking each other:
//! patterns of small operations first, then epilogues of larger operations, and chains of the
//! remaining elementwise operations last. Every pass leaves a sound graph.

mod activations;
mod attention;
mod chains;
mod copies;
mod epilogue;
mod follower;
mod layer_norm;
mod products;
mod readers;
mod residual;
mod softmax;
mod strides;
mod tree;

pub(crate) use strides::StridedWalk;

use crate::GraphError;
use crate::ir::{Graph, ValueId, ValueSource};

impl Graph {
    /// Return the same computation in fewer operations.
    ///
    /// Results differ from the unfused graph's only by rounding: fusion reorders sums, and moves
    /// products with constants.
    pub fn fuse(mut self) -> Result<Self, GraphError> {
        let passes: [fn(&mut Self); 9] = [
            activations::fuse,
            layer_norm::fuse,
            copies::fuse,
            products::fuse,
            attention::fuse,
            copies::fuse,
            softmax::fuse,
            epilogue::fuse,
            residual::fuse,
        ];
        for pass in passes {
            pass(&mut self);
            self.tidy();
        }
        chains::fuse(&mut self);
        products::collapse(&mut self);
        self.tidy();
        self.check()?;
        Ok(self)
    }

    /// Redirect all readers of `old` to `new`, which has the same elements in the same order. The
    /// node that made `old` loses that output.
    fn substitute(&mut self, old: ValueId, new: ValueId) {
        let new = self.buffer(new);
        if let Some(maker) = self.maker(old).and_then(|maker| self.nodes.get_mut(maker)) {
            maker.outputs.iter_mut().filter(|output| **output == Some(old)).for_each(|output| *output = None);
        }
        for (index, value) in (0..).zip(&mut self.values) {
            if ValueId(index) == old || value.source == ValueSource::View(old) {
                value.source = ValueSource::View(new);
            }
        }
    }
}

/// Fuse consecutive elementwise operations once more.
pub(crate) fn chains(graph: &mut Graph) {
    chains::fuse(graph);
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
