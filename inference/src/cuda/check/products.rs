//! Whether NVIDIA's library for products of matrices is there. Its products are checked among the operations.

use super::{Check, CheckConfig, Stage};
use weir_device::cuda::{CublasLt, Devices, Unavailable};

pub(super) fn check(devices: &Devices, config: &CheckConfig, tell: &mut dyn FnMut(Check)) {
    let found = config.cublas_lt(devices).and_then(|path| {
        let version = CublasLt::open(&path)?.version();
        Ok(format!("{version} in {}", path.display()))
    });
    let check = Check::passed(Stage::Environment, "cuBLASLt");
    tell(match found {
        Ok(detail) => Check { detail, ..check },
        // Weir's own kernels do without.
        Err(why @ Unavailable::NotFound { .. }) => Check { detail: why.to_string(), ..check },
        Err(why) => Check::failed(Stage::Environment, check.what, why),
    });
}
