//! Configuration of intermediates.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Workflow intermediates: tensors that a step leaves for the next step, on a node for steps that
/// are placed separately and on a GPU when the next step runs there too. See
/// docs/concepts/workflows.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntermediatesConfig {
    /// Percentage of the *free* memory that intermediates may take: of the memory for bodies and
    /// tensors, and of each GPU's memory. Tensors that do not fit return with the response. At 0
    /// all tensors do.
    pub free_percent_max: u64,
    /// Number of intermediates on this node, and on each GPU.
    pub len_max: usize,
    /// Host memory, per GPU, for intermediates that were evicted from the GPU.
    pub spilled_bytes_max: u64,
}

impl Default for IntermediatesConfig {
    fn default() -> Self {
        Self { free_percent_max: 50, len_max: 4_096, spilled_bytes_max: 256 * MIB }
    }
}
