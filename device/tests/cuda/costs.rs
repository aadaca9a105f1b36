//! Costs that the fake driver charges.

use crate::support::TestDevice;
use weir_device::cuda::{AddressRange, BLOCK_BYTES, MemoryOwner, PinnedMemory};
use weir_fake_cuda::{CopyThreadCosts, DriverCosts};

const OWNER: MemoryOwner = MemoryOwner(1);

#[test]
fn mapping_is_charged_per_call_and_per_piece() {
    let machine = TestDevice::new(0);
    let prices = [("create_ns", 1_000), ("create_mib_ns", 500), ("map_ns", 100), ("set_access_ns", 10_000)];
    for (price, ns) in prices.into_iter().chain([("set_access_piece_ns", 10)]) {
        machine.fake.set(price, ns);
    }
    let pool = machine.pool(16 * BLOCK_BYTES);
    let mut range = AddressRange::reserve(&pool, 16 * BLOCK_BYTES).unwrap();
    range.back(0..8, OWNER, None).unwrap();
    assert_eq!(machine.fake.costs().mapping_ns, 8 * (1_000 + 2 * 500 + 100 + 10) + 10_000);
    let before = machine.fake.costs();
    machine.fake.set("unmap_ns", 7);
    range.release(0..8);
    assert_eq!(machine.fake.costs().since(&before).mapping_ns, 8 * 7);
}

#[test]
fn host_is_charged_only_for_new_contents() {
    let machine = TestDevice::new(0);
    machine.fake.set("host_copy_bytes_per_s", 4_096_000_000_u64).set("page_fault_ns", 100);
    let to = machine.allocate(8 << 10);
    let mut pinned = PinnedMemory::copy_of(&machine.context, &[1; 8 << 10]).unwrap();
    for (contents, pages) in [(1, 2), (1, 0), (2, 2)] {
        pinned.as_mut_slice().fill(contents);
        let before = machine.fake.costs();
        machine.stream.write(pinned.as_slice(), to.span()).unwrap();
        let costs = machine.fake.costs().since(&before);
        assert_eq!((costs.host_copy_ns, costs.page_fault_ns), (pages * 1_000, pages * 100), "{contents}");
        assert_eq!((costs.copies, costs.bytes), (1, 8 << 10));
    }
}

#[test]
fn freeing_pinned_memory_is_charged_for_stalled_work() {
    let machine = TestDevice::new(0);
    machine.fake.set("host_free_mib_ns", 1_000);
    let pinned = PinnedMemory::new(&machine.context, 2 << 20).unwrap();
    let memory = machine.allocate(1 << 10);
    machine.fake.pause();
    machine.stream.fill(memory.span(), 0).unwrap();
    let before = machine.fake.costs();
    drop(pinned);
    let costs = machine.fake.costs().since(&before);
    assert_eq!(
        (costs.pinning_ns, costs.synchronisation_ns),
        (2 * 1_000, 1_000),
        "one fill of 1 us is queued"
    );
    assert_eq!(machine.fake.calls("cuMemFreeHost"), 1);
    machine.fake.resume();
    machine.stream.synchronize().unwrap();
}

#[test]
fn load_time_is_bounded_by_the_slower_of_host_and_bus() {
    let threads = |count, piece_bytes| CopyThreadCosts { count, start_ns: 5, piece_bytes };
    let host =
        DriverCosts { host_copy_ns: 350, host_copies: 10, host_copy_bytes: 1_000, ..DriverCosts::default() };
    let costs = DriverCosts { mapping_ns: 1_000, bus_ns: 200, copies: 10, ..host };
    // Whole blocks: 400 ns of host time, plus 40 for the first block.
    assert_eq!(costs.load_ns(threads(1, 100)), 1_000 + 40 + 400);
    assert_eq!(costs.load_ns(threads(4, 100)), 1_000 + 40 + 200);
    // Four pieces for each block: 550 ns of host time, and 13 ns for each piece of the first block.
    assert_eq!(costs.load_ns(threads(1, 25)), 1_000 + 55 + 550);
    assert_eq!(costs.load_ns(threads(2, 25)), 1_000 + 27 + 275, "two rounds");
    assert_eq!(costs.load_ns(threads(4, 25)), 1_000 + 13 + 200);
    let direct = DriverCosts { mapping_ns: 1_000, bus_ns: 200, copies: 10, ..DriverCosts::default() };
    assert_eq!(direct.load_ns(threads(4, 25)), 1_000 + 200, "nobody copies what lies in pinned memory");
}
