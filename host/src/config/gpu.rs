//! Settings of all GPUs: `[node.gpu]`.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// GPUs: the run time limit, the cache in pinned memory, and NVIDIA's libraries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpusConfig {
    /// Longest run on a GPU. A longer run counts as a hang, and the node restarts the device's
    /// worker.
    pub run_wall_ms_max: u64,
    /// Pinned host memory per GPU that caches model weights, so that models reload at the speed of
    /// the bus. 0: no cache. See docs/concepts/gpu.md.
    pub pinned_cache_bytes_max: u64,
    /// Use of NVIDIA's libraries (cuBLASLt, NVRTC), where installed, for operations that they
    /// compute or compile faster than Weir's own kernels: `auto` or `none`. See docs/concepts/gpu.md.
    pub libraries: GpuLibraries,
}

/// NVIDIA libraries used on GPUs, in addition to the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuLibraries {
    /// All libraries found.
    #[default]
    Auto,
    /// No libraries.
    None,
}

impl Default for GpusConfig {
    fn default() -> Self {
        Self {
            run_wall_ms_max: 60_000,
            pinned_cache_bytes_max: 256 * MIB,
            libraries: GpuLibraries::default(),
        }
    }
}
