//! Kernel graphs: what `[node.kernel_graphs]` says.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// How kernels that users bring are compiled and run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KernelGraphsConfig {
    /// Whether there are any. They run native code on a device: turn it on where those who deploy may do that.
    pub enabled: bool,
    /// How long a graph that nobody calls stays loaded. A tenant's worker ends with the last of its graphs.
    pub keep_alive_ms: u64,
    /// How long a run may take before its worker is killed.
    pub run_time_ms_max: u64,
    /// Memory of a device that the buffers of a tenant's runs may take.
    pub memory_bytes_max: u64,
    /// What a worker's context is taken to hold of a device, for the account of its tenant.
    pub context_bytes: u64,
    /// Memory of the process that compiles CUDA C.
    pub compile_memory_bytes_max: u64,
    /// Processor time of the process that compiles CUDA C.
    pub compile_time_ms_max: u64,
}

impl Default for KernelGraphsConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            keep_alive_ms: 60_000,
            run_time_ms_max: 10_000,
            memory_bytes_max: 256 * MIB,
            context_bytes: 512 * MIB,
            compile_memory_bytes_max: 4096 * MIB,
            compile_time_ms_max: 60_000,
        }
    }
}
