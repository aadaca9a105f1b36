//! Where a model runs.

use std::fmt;

/// One GPU, or the node's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processor and memory of the node itself.
    Cpu,
    /// One of NVIDIA's GPUs.
    Cuda {
        /// Its number among those that the process sees.
        ordinal: u32,
    },
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}
