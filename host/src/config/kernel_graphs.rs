//! Settings of kernel graphs: `[node.kernel_graphs]`.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Compilation and execution limits of user-provided kernels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KernelGraphsConfig {
    /// Enables kernel graphs. They run native code on a device: enable them only where all
    /// deployers may run native code.
    pub enabled: bool,
    /// Time that an unused graph stays loaded. A tenant's worker exits with the last of the
    /// tenant's graphs.
    pub keep_alive_ms: u64,
    /// Time limit of one run. The worker of a longer run is killed.
    pub run_wall_ms_max: u64,
    /// Device memory for the buffers of one tenant's runs.
    pub memory_bytes_max: u64,
    /// Estimated device memory of a worker's context, charged to its tenant.
    pub context_bytes: u64,
    /// Memory limit of the process that compiles CUDA C.
    pub compile_memory_bytes_max: u64,
    /// CPU time limit of the process that compiles CUDA C.
    pub compile_cpu_ms_max: u64,
}

impl Default for KernelGraphsConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            keep_alive_ms: 60_000,
            run_wall_ms_max: 10_000,
            memory_bytes_max: 256 * MIB,
            context_bytes: 512 * MIB,
            compile_memory_bytes_max: 4096 * MIB,
            compile_cpu_ms_max: 60_000,
        }
    }
}
