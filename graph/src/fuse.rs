//! Putting neighbouring operations together: [`Graph::fuse`].

#[expect(dead_code, reason = "the passes that need them follow")]
mod strides;

use crate::GraphError;
use crate::ir::Graph;

impl Graph {
    /// The same computation in fewer operations.
    pub fn fuse(mut self) -> Result<Self, GraphError> {
        self.tidy();
        self.check()?;
        Ok(self)
    }
}
