//! Checks of the driver, the devices and NVIDIA's libraries. The stage `Operations` checks the
//! libraries' results.

use crate::config::{CheckConfig, CheckFailure};
use crate::outcome::Check;
use crate::progress::Reporter;
use crate::stage::Stage;
use weir_device::cuda::{CublasLt, DeviceInfo, Devices, Library, Nvrtc, Unavailable};

const STAGE: Stage = Stage::Environment;

pub(super) fn check(
    devices: &Devices,
    config: &CheckConfig,
    report: &mut Reporter<'_>,
) -> Result<(), CheckFailure> {
    let driver = format!("CUDA {} in {}", devices.driver_version(), devices.driver_path().display());
    report.check(Check { detail: driver, ..Check::passed(STAGE, "driver") });
    for info in devices.infos() {
        report.check(device(info));
    }
    for (what, library) in [("cuBLASLt", Library::CublasLt), ("NVRTC", Library::Nvrtc)] {
        report.single(what, || Ok(open(devices, config, what, library)))?;
    }
    Ok(())
}

fn device(info: &DeviceInfo) -> Check {
    let (major, minor) = info.compute_capability;
    let detail = format!(
        "{}, compute capability {major}.{minor}, {} multiprocessors, {} MiB, at {}",
        info.name,
        info.multiprocessors,
        info.memory_bytes >> 20,
        info.pci
    );
    // Running models requires virtual memory management and kernels for the device's compute
    // capability.
    let is_known = info.maps_memory && weir_kernels::KernelModule::Gemm.ptx(major * 10 + minor).is_some();
    Check { passed: is_known, detail, ..Check::passed(STAGE, format!("cuda:{}", info.ordinal)) }
}

fn open(devices: &Devices, config: &CheckConfig, what: &str, library: Library) -> Check {
    let found = config.library(library, devices).and_then(|path| {
        let version = match library {
            Library::CublasLt => CublasLt::open(&path)?.version(),
            Library::Nvrtc => Nvrtc::open(&path)?.version(),
        };
        Ok(format!("{version} in {}", path.display()))
    });
    let check = Check::passed(STAGE, what);
    match found {
        Ok(detail) => Check { detail, ..check },
        // The library is optional: Weir's own kernels replace it.
        Err(why @ Unavailable::NotFound { .. }) => Check { detail: why.to_string(), ..check },
        Err(why) => Check::failed(STAGE, check.what, why),
    }
}
