//! Tests of kernel loading: machine code or PTX, from several threads, and in advance.

use super::{Fake, Setup};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use weir_kernels::{Kernel, KernelModule};

/// Timeout for events that happen immediately or never.
const PATIENCE: Duration = Duration::from_secs(30);
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
const NO_BINARY_FOR_GPU: u32 = 209;

fn kernel(module: KernelModule, name: &str) -> Kernel {
    Kernel { module, name: name.to_owned() }
}

fn loads(setup: &Setup) -> (u64, u64) {
    (setup.fake.count("cubin_loads"), setup.fake.count("ptx_loads"))
}

/// Opens a device of this compute capability, with a driver of this CUDA version.
fn setup(compute_capability: u32, driver_version: u32) -> Setup {
    let fake = Fake::new(1);
    fake.set("sm", compute_capability).set("driver_version", driver_version);
    Setup::with(fake, super::MEMORY_BYTES_MAX, weir_kernels::Precision::Fp32)
}

#[test]
fn machine_code_is_loaded_once_for_each_module() {
    let setup = Setup::new(1);
    for name in ["fill_1", "fill_4", "copy_4"] {
        setup.gpu.kernels.function(&kernel(KernelModule::Copy, name), 0).unwrap();
    }
    setup.gpu.kernels.function(&kernel(KernelModule::Gather, "gather_4"), 0).unwrap();
    assert_eq!(loads(&setup), (2, 0));
    let missing = setup.gpu.kernels.function(&kernel(KernelModule::Copy, "gather_4"), 0).unwrap_err();
    assert!(missing.to_string().contains("gather_4"), "{missing}");
}

#[test]
fn refused_machine_code_falls_back_to_ptx() {
    let setup = Setup::new(1);
    setup.fake.set("cubin_refusal", NO_BINARY_FOR_GPU);
    for name in ["fill_1", "fill_4"] {
        setup.gpu.kernels.function(&kernel(KernelModule::Copy, name), 0).unwrap();
    }
    assert_eq!(loads(&setup), (0, 1));
}

#[test]
fn devices_newer_than_all_machine_code_get_ptx() {
    for (compute_capability, driver_version, expected) in [
        // The oldest supported driver loads the format of CUDA 12.
        (75, 12040, (1, 0)),
        (90, 12040, (1, 0)),
        // A later minor version of a generation runs the machine code of an earlier one.
        (121, 13000, (1, 0)),
        (110, 13000, (0, 1)),
    ] {
        let setup = setup(compute_capability, driver_version);
        setup.gpu.kernels.function(&kernel(KernelModule::Copy, "fill_4"), 0).unwrap();
        assert_eq!(loads(&setup), expected, "{compute_capability} with CUDA {driver_version}");
    }
}

#[test]
fn module_load_does_not_block_other_modules() {
    let setup = Setup::new(1);
    setup.fake.set("held_kernel", "gather_4");
    let (done, finished) = mpsc::channel();
    thread::scope(|scope| {
        let ask = |module, name| {
            let done = done.clone();
            let gpu = &setup.gpu;
            scope.spawn(move || {
                gpu.kernels.function(&kernel(module, name), 0).unwrap();
                done.send(module).unwrap();
            });
        };
        ask(KernelModule::Gather, "gather_4");
        ask(KernelModule::Gather, "gather_8");
        // The first of the two loads has started, and is blocked.
        while loads(&setup) == (0, 0) {
            thread::yield_now();
        }
        ask(KernelModule::Copy, "fill_4");
        let first = finished.recv_timeout(PATIENCE);
        setup.fake.set("held_kernel", "");
        assert_eq!(first, Ok(KernelModule::Copy));
    });
    assert_eq!(finished.try_iter().collect::<Vec<_>>(), [KernelModule::Gather; 2]);
    assert_eq!(loads(&setup), (2, 0));
}

#[test]
fn modules_loaded_in_advance_are_not_loaded_again() {
    let Setup { mut gpu, fake, .. } = Setup::new(1);
    let kernels = &mut Arc::get_mut(&mut gpu).unwrap().kernels;
    kernels.load_ahead();
    // Runs concurrently with the background loading.
    kernels.function(&kernel(KernelModule::Gather, "gather_4"), 0).unwrap();
    kernels.wait_until_loaded();
    let all = KernelModule::ALL.len() as u64;
    assert_eq!(fake.count("cubin_loads"), all);
    kernels.function(&kernel(KernelModule::Gemm, "gemv_f32"), 0).unwrap();
    assert_eq!(fake.count("cubin_loads"), all);
    drop(gpu);
}
