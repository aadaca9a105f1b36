//! Figures that a GPU reports about itself.

use serde::{Deserialize, Serialize};

/// Figures of one GPU at one time. Values that the GPU does not report are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuFigures {
    /// Unique identifier of the GPU: `GPU-` and a UUID.
    pub uuid: String,
    /// Fraction of recent time in which the GPU was busy, from 0 to 1.
    pub utilization: Option<f64>,
    /// Total memory.
    pub memory_total_bytes: Option<u64>,
    /// Memory in use by all processes.
    pub memory_used_bytes: Option<u64>,
    /// Power draw, in watts.
    pub power_w: Option<f64>,
    /// Power limit, in watts.
    pub power_limit_w: Option<f64>,
    /// Energy used since the first reading, in joules.
    pub energy_j: Option<f64>,
}

/// Operating point of a GPU: the clocks, the power and the PCIe link that a timing on it depends
/// on. Values that the GPU does not report are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Power draw, in watts.
    pub power_w: Option<f64>,
    /// Currently negotiated generation of the PCIe link.
    pub pcie_generation: Option<u32>,
    /// Currently negotiated number of lanes of the PCIe link.
    pub pcie_width: Option<u32>,
}
