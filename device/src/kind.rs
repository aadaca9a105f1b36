//! Devices that models run on.

use std::fmt;
use weir_types::Platform;

/// One GPU, the node's CPU, or a simulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processor and memory of the node.
    Cpu,
    /// An NVIDIA GPU.
    Cuda {
        /// Number of the GPU among those that the process sees.
        ordinal: u32,
    },
    /// A simulated device, for tests and for experiments with the scheduler.
    Fake {
        /// Number of the device on the node.
        ordinal: u32,
    },
}

impl Device {
    /// Platform of the models that run on the device.
    #[must_use]
    pub fn platform(self) -> Platform {
        match self {
            Self::Cpu => Platform::Cpu,
            Self::Cuda { .. } => Platform::Cuda,
            Self::Fake { .. } => Platform::Fake,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
            Self::Fake { ordinal } => write!(f, "fake:{ordinal}"),
        }
    }
}
