//! What a GPU says of itself while it works.

use serde::{Deserialize, Serialize};

/// Figures of one GPU at one time. What it does not tell is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuFigures {
    /// What its maker calls this very one: `GPU-` and a UUID.
    pub uuid: String,
    /// The part of the time for which something ran on it lately, from 0 to 1.
    pub utilization: Option<f64>,
    /// All of its memory.
    pub memory_total_bytes: Option<u64>,
    /// What of that is in use, by whichever process.
    pub memory_used_bytes: Option<u64>,
    /// What it draws, in watts.
    pub power_w: Option<f64>,
    /// What it may draw, in watts.
    pub power_limit_w: Option<f64>,
    /// What it has used up since the first time that it was asked, in joules.
    pub energy_j: Option<f64>,
}

/// Operating point of a GPU: the clocks, the power and the PCIe link that a timing on it depends on.
/// A value that the GPU does not report is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Power draw, in watts.
    pub power_w: Option<f64>,
    /// Generation of the PCIe link as it is negotiated now.
    pub pcie_generation: Option<u32>,
    /// Lanes of the PCIe link as they are negotiated now.
    pub pcie_width: Option<u32>,
}
