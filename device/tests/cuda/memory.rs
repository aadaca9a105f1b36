use crate::support::{SEEDS, TestDevice, launch_fill};
use weir_device::cuda::{
    AddressRange, Allocation, BLOCK_BYTES, CudaError, MemoryOwner, Module, OutOfMemory, SlotMemory,
    mapping_cost,
};
use weir_fake_cuda::{Fake, TEST_KERNELS};

const ONE: MemoryOwner = MemoryOwner(1);
const OTHER: MemoryOwner = MemoryOwner(2);
const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn range_maps_only_requested_blocks_and_kernels_cross_them() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let pool = machine.pool(16 * BLOCK_BYTES);
        let mut range = AddressRange::reserve(&pool, 100 * BLOCK_BYTES).unwrap();
        assert_eq!((range.mapped_bytes(), pool.usage().used_bytes), (0, 0));
        range.back(3..6, ONE, Some(&machine.stream)).unwrap();
        assert_eq!(pool.usage().used_bytes, 3 * BLOCK_BYTES);
        let span = range.span().slice(3 * BLOCK_BYTES, 3 * BLOCK_BYTES).unwrap();
        let function = machine.kernel("weir_test_fill");
        launch_fill(&machine.stream, &function, span, 0x0102_0304);
        assert!(machine.read(span) == [4, 3, 2, 1].repeat(6 << 18), "seed {seed}");
        range.release(4..5);
        assert_eq!(machine.stream.read(span, &mut vec![0; 6 << 20]).unwrap_err(), refused());
        range.back(0..8, ONE, Some(&machine.stream)).unwrap();
        assert_eq!(pool.usage().used_bytes, 8 * BLOCK_BYTES);
        assert!(range.back(99..101, ONE, None).is_err(), "past the end");
        machine.stream.synchronize().unwrap();
    }
}

fn all_are(bytes: &[u8], value: u8) -> bool {
    bytes == vec![value; bytes.len()]
}

fn refused() -> CudaError {
    CudaError::Failed {
        call: "cuMemcpyDtoHAsync_v2",
        code: 1,
        name: "CUDA_ERROR_INVALID_VALUE".to_owned(),
        what: "invalid argument".to_owned(),
    }
}

#[test]
fn blocks_never_expose_another_owners_bytes() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let pool = machine.pool(4 * BLOCK_BYTES);
        let mut range = AddressRange::reserve(&pool, 4 * BLOCK_BYTES).unwrap();
        let all = range.span();
        range.back(0..4, ONE, Some(&machine.stream)).unwrap();
        assert!(all_are(&machine.read(all), 0), "fresh from the driver");
        machine.stream.fill(all, 7).unwrap();
        machine.stream.synchronize().unwrap();
        range.release(0..4);
        // The owner's own blocks come back unchanged, in any order; other owners see zeroes.
        range.back(0..2, ONE, Some(&machine.stream)).unwrap();
        range.back(2..4, OTHER, Some(&machine.stream)).unwrap();
        let bytes = machine.read(all);
        assert!(all_are(&bytes[..4 << 20], 7), "seed {seed}");
        assert!(all_are(&bytes[4 << 20..], 0), "seed {seed}");
    }
}

#[test]
fn full_pool_reports_missing_bytes_and_takes_nothing() {
    let machine = TestDevice::new(1);
    let pool = machine.pool(10 * BLOCK_BYTES + 5);
    let mut range = AddressRange::reserve(&pool, 100 * BLOCK_BYTES).unwrap();
    range.back(0..7, ONE, None).unwrap();
    let error = range.back(5..12, ONE, None).unwrap_err();
    let expected = OutOfMemory {
        asked_bytes: 5 * BLOCK_BYTES,
        missing_bytes: 2 * BLOCK_BYTES,
        used_bytes: 7 * BLOCK_BYTES,
        capacity_bytes: 10 * BLOCK_BYTES,
    };
    assert_eq!(error, CudaError::OutOfMemory(expected));
    assert_eq!(range.mapped_bytes(), 7 * BLOCK_BYTES);
    range.back(5..10, ONE, None).unwrap();
}

#[test]
fn device_filled_by_others_is_out_of_memory() {
    let machine = TestDevice::new(1);
    let pool = machine.pool(1 << 40);
    let mut range = AddressRange::reserve(&pool, 1 << 30).unwrap();
    let _others = Allocation::new(&machine.context, (1 << 30) - 3 * BLOCK_BYTES).unwrap();
    let error = range.back(0..5, ONE, None).unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory(out) if out.missing_bytes == 2 * BLOCK_BYTES), "{error}");
    assert_eq!((range.mapped_bytes(), pool.usage().used_bytes), (0, 0));
    range.back(0..3, ONE, None).unwrap();
    let error = Allocation::new(&machine.context, 1 << 20).unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory(out) if out.missing_bytes == 1 << 20), "{error}");
}

#[test]
fn driver_out_of_memory_leaves_no_partial_mapping() {
    for left in 0..6 {
        let machine = TestDevice::new(left);
        let pool = machine.pool(64 * BLOCK_BYTES);
        let mut range = AddressRange::reserve(&pool, 64 * BLOCK_BYTES).unwrap();
        range.back(0..2, ONE, None).unwrap();
        machine.fake.fail_allocations(left, 1);
        let error = range.back(0..8, ONE, None).unwrap_err();
        assert!(matches!(error, CudaError::OutOfMemory(_)), "{error}");
        assert_eq!((range.mapped_bytes(), pool.usage().used_bytes), (2 * BLOCK_BYTES, 2 * BLOCK_BYTES));
        range.back(0..8, ONE, None).unwrap();
    }
}

#[test]
fn idle_blocks_are_reused_and_freed_by_trim() {
    let machine = TestDevice::new(1);
    let pool = machine.pool(64 * BLOCK_BYTES);
    let mut range = AddressRange::reserve(&pool, 64 * BLOCK_BYTES).unwrap();
    range.back(0..8, ONE, None).unwrap();
    range.release(0..64);
    assert_eq!((pool.usage().used_bytes, pool.usage().idle_bytes), (0, 8 * BLOCK_BYTES));
    range.back(0..8, OTHER, None).unwrap();
    assert_eq!(machine.fake.count("blocks_created"), 8);
    range.release(0..64);
    pool.trim(3 * BLOCK_BYTES);
    assert_eq!((pool.usage().idle_bytes, machine.fake.count("live_blocks")), (3 * BLOCK_BYTES, 3));
}

#[test]
fn warmed_pool_needs_no_driver_allocations() {
    let machine = TestDevice::new(1);
    let pool = machine.pool(10 * BLOCK_BYTES);
    pool.warm(4 * BLOCK_BYTES + 5).unwrap();
    pool.warm(3 * BLOCK_BYTES).unwrap();
    assert_eq!((pool.usage().idle_bytes, pool.usage().used_bytes), (4 * BLOCK_BYTES, 0));
    machine.fake.fail_allocations(0, 1);
    let mut range = AddressRange::reserve(&pool, 10 * BLOCK_BYTES).unwrap();
    range.back(0..4, ONE, Some(&machine.stream)).unwrap();
    let first = range.span().slice(0, 4 * BLOCK_BYTES).unwrap();
    assert!(all_are(&machine.read(first), 0), "and is scrubbed like any other");
    assert!(pool.warm(u64::MAX).is_err());
    pool.warm(u64::MAX).unwrap();
    assert_eq!(pool.usage().idle_bytes, 6 * BLOCK_BYTES);
    assert!(pool.usage().used_bytes + pool.usage().idle_bytes <= pool.usage().capacity_bytes);
}

#[test]
fn slot_grows_at_once_shrinks_gradually_and_keeps_its_addresses() {
    let machine = TestDevice::new(5);
    let pool = machine.pool(64 * BLOCK_BYTES);
    let mut slot = SlotMemory::new(&pool, &machine.stream, 32 * BLOCK_BYTES, 0).unwrap();
    let span = slot.prepare(16 * BLOCK_BYTES, ONE, 0).unwrap();
    assert_eq!((span.address(), slot.held_bytes()), (slot.address(), 16 * BLOCK_BYTES));
    assert_eq!(slot.settle(SECOND_NS / 2).unwrap(), 0, "it has just been used");
    let mut held = Vec::new();
    for second in 2..10 {
        let small = slot.prepare(1000, ONE, second * SECOND_NS).unwrap();
        assert_eq!((small.address(), small.bytes()), (span.address(), 1000));
        slot.settle(second * SECOND_NS).unwrap();
        held.push(slot.held_bytes() / BLOCK_BYTES);
    }
    assert!(held.is_sorted_by(|one, next| one >= next) && held[0] <= 16 && held[7] == 1, "{held:?}");
    assert!(slot.settle(100 * SECOND_NS).unwrap() > 0);
    assert_eq!(
        (slot.held_bytes(), pool.usage().used_bytes),
        (0, 0),
        "a slot that runs nothing holds nothing"
    );
    assert_eq!(slot.prepare(5 * BLOCK_BYTES, ONE, 100 * SECOND_NS).unwrap().address(), span.address());
    let error = slot.prepare(33 * BLOCK_BYTES, ONE, 100 * SECOND_NS).unwrap_err();
    assert!(matches!(error, CudaError::Invalid(_)), "{error}");
    assert_eq!(slot.release().unwrap(), 5 * BLOCK_BYTES);
}

#[test]
fn slot_is_zeroed_for_a_new_owner() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let pool = machine.pool(8 * BLOCK_BYTES);
        let mut slot = SlotMemory::new(&pool, &machine.stream, 8 * BLOCK_BYTES, 0).unwrap();
        let span = slot.prepare(3 * BLOCK_BYTES, ONE, 0).unwrap();
        machine.stream.fill(span, 9).unwrap();
        let same = slot.prepare(3 * BLOCK_BYTES, ONE, 1).unwrap();
        assert!(all_are(&machine.read(same), 9));
        let other = slot.prepare(BLOCK_BYTES, OTHER, 2).unwrap();
        assert!(all_are(&machine.read(other), 0), "seed {seed}");
        let more = slot.prepare(3 * BLOCK_BYTES, OTHER, 3).unwrap();
        assert!(all_are(&machine.read(more), 0), "seed {seed}");
    }
}

#[test]
fn slot_can_be_dropped_with_pending_work() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let pool = machine.pool(8 * BLOCK_BYTES);
        let mut slot = SlotMemory::new(&pool, &machine.stream, 8 * BLOCK_BYTES, 0).unwrap();
        let span = slot.prepare(3 * BLOCK_BYTES, ONE, 0).unwrap();
        machine.stream.fill(span, 9).unwrap();
        drop(slot);
        assert_eq!(pool.usage().used_bytes, 0);
        drop(pool.clone());
    }
}

#[test]
fn measured_pool_stays_within_device_capacity() {
    const MIB: u64 = 1 << 20;
    let fake = Fake::new(0);
    fake.set("memory_bytes", 64 * MIB).set("context_bytes", 9 * MIB).set("module_bytes", 10 * MIB);
    let machine = TestDevice::from_fake(fake);
    let pool = machine.pool(64 * MIB);
    // A sixty-fourth of the device stays free.
    let measured = pool.measure().unwrap();
    assert_eq!((measured.outside_bytes, measured.capacity_bytes), (9 * MIB, 54 * MIB));
    let mut range = AddressRange::reserve(&pool, 64 * MIB).unwrap();
    range.back(0..20, ONE, None).unwrap();
    pool.warm(54 * MIB).unwrap();

    // Idle blocks make room for a module, and less is left for blocks afterwards.
    assert!(Module::load(&machine.context, TEST_KERNELS.as_bytes()).unwrap_err().is_out_of_memory());
    pool.trim(0);
    let module = Module::load(&machine.context, TEST_KERNELS.as_bytes()).unwrap();
    let measured = pool.measure().unwrap();
    assert_eq!((measured.outside_bytes, measured.capacity_bytes), (19 * MIB, 44 * MIB));
    pool.warm(64 * MIB).unwrap();
    assert_eq!(pool.usage().idle_bytes, 4 * MIB);
    let error = range.back(0..23, ONE, None).unwrap_err();
    assert!(
        matches!(&error, CudaError::OutOfMemory(lacking) if lacking.capacity_bytes == 44 * MIB),
        "{error}: the pool says so, and not the driver"
    );

    // Other consumers take the last memory: lent blocks stay, idle ones are released, and the
    // capacity returns with the memory.
    let others = machine.allocate(MIB);
    pool.measure().unwrap();
    assert_eq!((pool.usage().used_bytes, pool.usage().idle_bytes), (40 * MIB, 2 * MIB));
    assert_eq!(pool.usage().capacity_bytes, 42 * MIB);
    pool.trim(0);
    let more = machine.allocate(4 * MIB);
    pool.measure().unwrap();
    assert_eq!(pool.usage().capacity_bytes, 38 * MIB);
    range.back(0..20, ONE, None).unwrap();
    assert!(range.back(0..21, ONE, None).is_err());
    drop(more);
    drop((module, others));
    assert_eq!(pool.measure().unwrap().capacity_bytes, 54 * MIB);
}

#[test]
fn mapping_cost_leaves_no_memory_behind() {
    let machine = TestDevice::new(0);
    let before = machine.fake.count("used_bytes");
    for blocks in [1, 4] {
        let cost = mapping_cost(&machine.context, blocks * BLOCK_BYTES).unwrap();
        assert_eq!(cost.total(), cost.create + cost.map + cost.set_access);
    }
    assert_eq!((machine.fake.count("used_bytes"), machine.fake.count("live_reservations")), (before, 0));
    for bytes in [0, BLOCK_BYTES + 1] {
        assert!(matches!(mapping_cost(&machine.context, bytes), Err(CudaError::Invalid(_))), "{bytes}");
    }
    machine.fake.fail_allocations(0, 1);
    assert!(mapping_cost(&machine.context, BLOCK_BYTES).is_err());
    assert_eq!(machine.fake.count("live_reservations"), 0);
}
