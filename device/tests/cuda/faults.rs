use crate::support::{SEEDS, TestDevice, devices, launch_fill, launch_scale_add};
use weir_device::cuda::{
    AddressRange, BLOCK_BYTES, CudaError, KernelParameters, LaunchConfig, MemoryOwner, TransferError,
};
use weir_fake_cuda::Fake;

#[test]
fn out_of_bounds_kernel_loses_only_its_context() {
    for seed in SEEDS {
        let fake = Fake::new(seed);
        fake.set("devices", 2);
        let neighbour = devices(&fake).open(1).unwrap();
        let machine = TestDevice::from_fake(fake);
        let function = machine.kernel("weir_test_fill");
        let memory = machine.allocate(4096);
        let mut parameters = KernelParameters::default();
        // The page after the memory is unmapped.
        parameters.address(memory.span().address()).u32(1).u64(8192);
        // SAFETY: the fake catches accesses beyond the memory, which is the subject of this test.
        unsafe { machine.stream.launch(&function, &LaunchConfig::linear(8192, 256), &parameters) }.unwrap();
        let error = machine.stream.synchronize().unwrap_err();
        assert!(error.is_context_lost() && error.to_string().contains("must be restarted"), "{error}");
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        assert!(machine.context.is_lost());
        let error = machine.stream.fill(memory.span(), 1).unwrap_err();
        assert!(error.is_context_lost(), "every call fails from now on: {error}");
        assert!(!neighbour.is_lost());
        neighbour.synchronize().unwrap();
        // Must drop before its fake driver.
        drop(neighbour);
    }
}

#[test]
fn failed_launch_is_reported_to_waiters() {
    let machine = TestDevice::new(1);
    let function = machine.kernel("weir_test_fill");
    let memory = machine.allocate(4096);
    machine.fake.fail_launch(2);
    for _ in 0..4 {
        let mut parameters = KernelParameters::default();
        parameters.address(memory.span().address()).u32(1).u64(1024);
        // SAFETY: as declared, on memory that is kept.
        let launched =
            unsafe { machine.stream.launch(&function, &LaunchConfig::linear(1024, 256), &parameters) };
        assert!(launched.is_ok() || launched.unwrap_err().is_context_lost());
    }
    assert!(machine.stream.synchronize().unwrap_err().is_context_lost());
}

#[test]
fn only_the_named_kernel_fails() {
    let machine = TestDevice::new(1);
    let fill = machine.kernel("weir_test_fill");
    let add = machine.kernel("weir_test_scale_add");
    let memory = machine.allocate(4096);
    // Launch failed: the kernel hit an unrecoverable error.
    machine.fake.set("fault_kernel", "weir_test_scale_add").set("fault", 719);
    launch_fill(&machine.stream, &fill, memory.span(), 1);
    machine.stream.synchronize().unwrap();
    launch_scale_add(&machine.stream, &add, memory.span(), memory.span(), 1.0);
    let error = machine.stream.synchronize().unwrap_err();
    assert!(error.is_context_lost() && error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
}

#[test]
fn kernel_cannot_access_unmapped_memory() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let function = machine.kernel("weir_test_fill");
        let pool = machine.pool(8 * BLOCK_BYTES);
        let mut range = AddressRange::reserve(&pool, 8 * BLOCK_BYTES).unwrap();
        range.back(0..2, MemoryOwner(1), Some(&machine.stream)).unwrap();
        machine.stream.synchronize().unwrap();
        range.release(1..2);
        launch_fill(&machine.stream, &function, range.span().slice(0, 2 * BLOCK_BYTES).unwrap(), 1);
        assert!(machine.stream.synchronize().unwrap_err().is_context_lost(), "seed {seed}");
    }
}

#[test]
fn everything_can_be_dropped_in_a_lost_context() {
    let machine = TestDevice::new(1);
    let function = machine.kernel("weir_test_fill");
    let pool = machine.pool(8 * BLOCK_BYTES);
    let mut range = AddressRange::reserve(&pool, 8 * BLOCK_BYTES).unwrap();
    range.back(0..4, MemoryOwner(1), Some(&machine.stream)).unwrap();
    let memory = machine.allocate(4096);
    let engine = machine.engine();
    machine.fake.fail_launch(0);
    launch_fill(&machine.stream, &function, memory.span(), 1);
    assert!(machine.stream.synchronize().unwrap_err().is_context_lost());
    let arena = weir_device::Arena::new(1 << 20);
    let fetched = engine.fetch(memory.span(), &arena, Box::new(())).unwrap().wait();
    let lost = |error: &TransferError| matches!(error, TransferError::Device(CudaError::ContextLost { .. }));
    assert!(fetched.as_ref().is_err_and(lost), "{fetched:?}");
    // The fake reports objects that are still alive after this.
}
