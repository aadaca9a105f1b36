//! State of NVIDIA's libraries on a device.

use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use weir_device::Device;

/// State of a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LibraryState {
    /// No library is configured.
    None,
    /// The library is in use, in this version.
    Used(String),
    /// The library is unusable for this reason.
    Unusable(String),
}

impl LibraryState {
    /// Logs the state of cuBLASLt.
    pub(crate) fn tell_of_products(&self, device: Device) {
        match self {
            Self::None => {}
            Self::Used(version) => {
                info!(%device, version, "cuBLASLt found: it computes large matrix products");
            }
            Self::Unusable(why) => {
                warn!(%device, why, "cuBLASLt cannot be used, Weir's own kernels replace it: repair or remove cuBLASLt, or set gpu.libraries = \"none\"");
            }
        }
    }

    /// Logs the state of NVRTC.
    pub(crate) fn tell_of_compiler(&self, device: Device) {
        match self {
            Self::None => {}
            Self::Used(version) => {
                info!(%device, version, "NVRTC found: it compiles chains of elementwise operations");
            }
            Self::Unusable(why) => {
                warn!(%device, why, "NVRTC cannot be used, chains of elementwise operations are interpreted: repair or remove NVRTC, or set gpu.libraries = \"none\"");
            }
        }
    }
}
