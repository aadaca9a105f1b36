//! Whether NVIDIA's libraries are there. What they compute is checked among the operations.

use super::{Check, CheckConfig, Stage};
use weir_device::cuda::{CublasLt, Devices, Library, Nvrtc, Unavailable};

pub(super) fn check(devices: &Devices, config: &CheckConfig, tell: &mut dyn FnMut(Check)) {
    for (what, library) in [("cuBLASLt", Library::CublasLt), ("NVRTC", Library::Nvrtc)] {
        let found = config.library(library, devices).and_then(|path| {
            let version = match library {
                Library::CublasLt => CublasLt::open(&path)?.version(),
                Library::Nvrtc => Nvrtc::open(&path)?.version(),
            };
            Ok(format!("{version} in {}", path.display()))
        });
        let check = Check::passed(Stage::Environment, what);
        tell(match found {
            Ok(detail) => Check { detail, ..check },
            // Weir's own kernels do without.
            Err(why @ Unavailable::NotFound { .. }) => Check { detail: why.to_string(), ..check },
            Err(why) => Check::failed(Stage::Environment, check.what, why),
        });
    }
}
