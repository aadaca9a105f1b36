//! What becomes of NVIDIA's libraries on a device.

use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use weir_device::Device;

/// What became of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LibraryState {
    /// There is none to use.
    None,
    /// It is used, in this version.
    Used(String),
    /// It cannot be used; why not.
    Unusable(String),
}

impl LibraryState {
    /// Say of cuBLASLt in the log what became of it.
    pub(super) fn tell_of_products(&self, device: Device) {
        match self {
            Self::None => {}
            Self::Used(version) => info!(%device, version, "cuBLASLt computes large products of matrices"),
            Self::Unusable(why) => {
                warn!(%device, why, "cuBLASLt is not used, Weir's own kernels are: repair or remove it, or set gpu_libraries = \"none\"");
            }
        }
    }

    /// The same of NVRTC.
    pub(super) fn tell_of_compiler(&self, device: Device) {
        match self {
            Self::None => {}
            Self::Used(version) => {
                info!(%device, version, "NVRTC compiles chains of elementwise operations");
            }
            Self::Unusable(why) => {
                warn!(%device, why, "NVRTC is not used, chains of elementwise operations are interpreted: repair or remove it, or set gpu_libraries = \"none\"");
            }
        }
    }
}
