//! Putting neighbouring operations together: [`Graph::fuse`].
//!
//! One pass for each kind of neighbours, in an order in which they do not get in each other's way: what is a pattern of small operations is
//! looked for first, then who takes what follows, and chains of what is left come last. Every pass leaves a graph that is sound.

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

use crate::GraphError;
use crate::ir::{Graph, Source, ValueId};

impl Graph {
    /// The same computation in fewer operations.
    ///
    /// Results differ from those of the graph as it was by rounding only: sums are taken in another order, and products with constants in another place.
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

    /// Let everybody who reads `old` read `new` instead, which has the same elements in the same order. Whatever made `old` does not any more.
    fn substitute(&mut self, old: ValueId, new: ValueId) {
        let new = self.buffer(new);
        if let Some(maker) = self.maker(old).and_then(|maker| self.nodes.get_mut(maker)) {
            maker.outputs.iter_mut().filter(|output| **output == Some(old)).for_each(|output| *output = None);
        }
        for (index, value) in (0..).zip(&mut self.values) {
            if ValueId(index) == old || value.source == Source::View(old) {
                value.source = Source::View(new);
            }
        }
    }
}

/// Put elementwise operations behind each other together, once more.
pub(crate) fn chains(graph: &mut Graph) {
    chains::fuse(graph);
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
