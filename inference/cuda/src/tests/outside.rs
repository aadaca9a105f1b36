//! Tests of memory that the driver allocates outside the pool for weights and runs.

use super::*;
use weir_device::cuda::MemoryOwner;

const MIB: u64 = 1 << 20;

/// Opens a device of 64 MiB, on which the driver allocates `bytes` for each object of this kind.
fn setup(kind: &str, bytes: u64) -> Setup {
    let fake = Fake::new(0);
    fake.set("memory_bytes", 64 * MIB).set(kind, bytes);
    Setup::with(fake, 64 * MIB, Precision::Fp32)
}

#[test]
fn graphs_and_modules_leave_less_for_weights() {
    for (kind, at_least) in [("context_bytes", 0), ("module_bytes", 1), ("graph_bytes", 1)] {
        let setup = setup(kind, 3 * MIB);
        let opened = setup.gpu.measured();
        let model = setup.load("digits", read(DIGITS));
        let mut session = model.session(1).unwrap();
        let input = setup.floats(&[1, 1, 8, 8], |at| at as f32 / 64.0);
        for _ in 0..3 {
            run(&mut *session, &input).unwrap();
        }
        let used = setup.gpu.measured();
        let taken_bytes = used.outside_bytes - opened.outside_bytes;
        assert!(taken_bytes >= at_least * 3 * MIB && taken_bytes.is_multiple_of(3 * MIB), "{kind}: {used:?}");
        assert_eq!(used.outside_bytes + used.capacity_bytes, 63 * MIB, "{kind}: {used:?}");
        assert!(used.outside_bytes > 0, "{kind}");
    }
}

#[test]
fn library_leaves_less_for_weights() {
    let fake = Fake::new(0);
    fake.set("memory_bytes", 64 * MIB).set("library_bytes", 5 * MIB);
    let library = LibraryConfig { path: fake.cublas_lt(12), flops_min: 0 };
    let setup = Setup::with_library(fake, 64 * MIB, Precision::Fp32, Some(library));
    assert_eq!(setup.gpu.measured().outside_bytes, 5 * MIB);
}

#[test]
fn idle_blocks_make_room_for_modules_and_graphs() {
    for (kind, bytes) in [("module_bytes", 2 * MIB), ("graph_bytes", 20 * MIB)] {
        let setup = setup(kind, bytes);
        let model = setup.load("digits", read(DIGITS));
        let mut session = model.session(1).unwrap();
        let input = setup.floats(&[1, 1, 8, 8], |at| at as f32 / 64.0);
        for _ in 0..3 {
            setup.gpu.pool.warm(64 * MIB).unwrap();
            let found = run(&mut *session, &input).unwrap();
            assert_close(&values(&found[0]), &expected(read(DIGITS), &input), 1e-5);
        }
        assert_eq!(setup.fake.count("graph_launches"), 2, "{kind}");
    }
}

#[test]
fn module_without_room_is_refused_as_out_of_memory() {
    let setup = setup("module_bytes", 1);
    let model = setup.load("digits", read(DIGITS));
    let mut session = model.session(1).unwrap();
    let input = setup.floats(&[1, 1, 8, 8], |at| at as f32 / 64.0);
    // Use all memory of the device.
    let mut held = weir_device::cuda::AddressRange::reserve(&setup.gpu.pool, 64 * MIB).unwrap();
    let free_bytes = setup.gpu.measured().capacity_bytes - setup.gpu.pool.usage().used_bytes;
    let places = usize::try_from(free_bytes / weir_device::cuda::BLOCK_BYTES).unwrap();
    held.back(0..places, MemoryOwner(1), None).unwrap();
    setup.fake.set("module_bytes", 8 * MIB);
    let error = run(&mut *session, &input).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    drop(held);
    assert!(run(&mut *session, &input).is_ok());
}
