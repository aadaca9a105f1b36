//! Where a model runs.

use std::fmt;
use weir_types::Platform;

/// One GPU, or the node's CPU; or one that is made up.
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
    /// A device that is made up, for tests and for trying out the scheduler.
    Fake {
        /// Which of the node's.
        ordinal: u32,
    },
}

impl Device {
    /// What runs models on it.
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
