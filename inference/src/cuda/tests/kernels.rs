//! Loading kernels: machine code or PTX, by several threads, and ahead.

use super::{Fake, Setup};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use weir_kernels::{Kernel, Module};

/// How long is waited for what comes at once, or never.
const PATIENCE: Duration = Duration::from_secs(30);
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
const NO_BINARY_FOR_GPU: u32 = 209;

fn kernel(module: Module, name: &str) -> Kernel {
    Kernel { module, name: name.to_owned() }
}

fn loads(setup: &Setup) -> (u64, u64) {
    (setup.fake.count("cubin_loads"), setup.fake.count("ptx_loads"))
}

/// A device of this compute capability, whose driver is of this version of CUDA.
fn setup(compute_capability: u32, driver_version: u32) -> Setup {
    let fake = Fake::new(1);
    fake.set("sm", compute_capability).set("driver_version", driver_version);
    Setup::with(fake, super::MEMORY_BYTES_MAX, weir_kernels::Precision::Fp32)
}

#[test]
fn machine_code_is_loaded_once_for_each_module() {
    let setup = Setup::new(1);
    for name in ["fill_1", "fill_4", "copy_4"] {
        setup.gpu.kernels.function(&kernel(Module::Copy, name), 0).unwrap();
    }
    setup.gpu.kernels.function(&kernel(Module::Gather, "gather_4"), 0).unwrap();
    assert_eq!(loads(&setup), (2, 0));
    let missing = setup.gpu.kernels.function(&kernel(Module::Copy, "gather_4"), 0).unwrap_err();
    assert!(missing.to_string().contains("gather_4"), "{missing}");
}

#[test]
fn refused_machine_code_falls_back_to_ptx() {
    let setup = Setup::new(1);
    setup.fake.set("cubin_refusal", NO_BINARY_FOR_GPU);
    for name in ["fill_1", "fill_4"] {
        setup.gpu.kernels.function(&kernel(Module::Copy, name), 0).unwrap();
    }
    assert_eq!(loads(&setup), (0, 1));
}

#[test]
fn devices_newer_than_all_machine_code_get_ptx() {
    for (compute_capability, driver_version, expected) in [
        // The oldest driver that is supported loads the format of CUDA 12.
        (75, 12040, (1, 0)),
        (90, 12040, (1, 0)),
        // The next minor number of a generation runs the code of the one before.
        (121, 13000, (1, 0)),
        (110, 13000, (0, 1)),
    ] {
        let setup = setup(compute_capability, driver_version);
        setup.gpu.kernels.function(&kernel(Module::Copy, "fill_4"), 0).unwrap();
        assert_eq!(loads(&setup), expected, "{compute_capability} with CUDA {driver_version}");
    }
}

#[test]
fn users_of_one_module_do_not_wait_for_another() {
    let setup = Setup::new(1);
    setup.fake.set("held_kernel", "gather_4");
    let (done, finished) = mpsc::channel();
    thread::scope(|scope| {
        let ask = |module, name| {
            let (done, gpu) = (done.clone(), &setup.gpu);
            scope.spawn(move || {
                gpu.kernels.function(&kernel(module, name), 0).unwrap();
                done.send(module).unwrap();
            });
        };
        ask(Module::Gather, "gather_4");
        ask(Module::Gather, "gather_8");
        // The first of them has begun to load, and does not come to its end.
        while loads(&setup) == (0, 0) {
            thread::yield_now();
        }
        ask(Module::Copy, "fill_4");
        let first = finished.recv_timeout(PATIENCE);
        setup.fake.set("held_kernel", "");
        assert_eq!(first, Ok(Module::Copy));
    });
    assert_eq!(finished.try_iter().collect::<Vec<_>>(), [Module::Gather; 2]);
    assert_eq!(loads(&setup), (2, 0));
}

#[test]
fn modules_loaded_ahead_are_there_for_their_first_user() {
    let Setup { mut gpu, fake, .. } = Setup::new(1);
    let kernels = &mut Arc::get_mut(&mut gpu).unwrap().kernels;
    kernels.load_ahead();
    // Beside the thread that loads ahead.
    kernels.function(&kernel(Module::Gather, "gather_4"), 0).unwrap();
    kernels.wait_until_loaded();
    let all = Module::ALL.len() as u64;
    assert_eq!(fake.count("cubin_loads"), all);
    kernels.function(&kernel(Module::Gemm, "gemv_f32"), 0).unwrap();
    assert_eq!(fake.count("cubin_loads"), all);
    drop(gpu);
}
