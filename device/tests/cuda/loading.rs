//! Costs of loads, by the prices of the fake driver: see `fake-cuda/README.md`.

use crate::support::TestDevice;
use bytes::Bytes;
use weir_device::cuda::{
    BLOCK_BYTES, CopySource, PIECE_BYTES, PinnedCache, TensorGuard, TensorKey, TensorStore, Wanted,
};
use weir_fake_cuda::{CopyThreadCosts, DriverCosts};
use weir_types::ContentHash;

/// Bytes of each group of weights.
const GROUP_BYTES: usize = 8 << 20;

/// Lengths of the weights of ResNet-50 in fp32, batch normalisation folded: 102 MB in all.
fn resnet50_lengths() -> Vec<usize> {
    let mut elements = vec![64 * 3 * 49, 64];
    let mut channels_in = 64;
    for (planes, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..blocks {
            let convolutions = [(channels_in, planes, 1), (planes, planes, 9), (planes, 4 * planes, 1)];
            let shortcut = (block == 0).then_some((channels_in, 4 * planes, 1));
            for (from, to, kernel) in convolutions.into_iter().chain(shortcut) {
                elements.extend([from * to * kernel, to]);
            }
            channels_in = 4 * planes;
        }
    }
    elements.extend([2048 * 1000, 1000]);
    elements.into_iter().map(|count| 4 * count).collect()
}

/// Bytes in which no two blocks are equal.
fn contents(len: usize, number: usize) -> Bytes {
    let mut word = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Weights in groups, in the order in which runs read them.
fn wanted(lengths: &[usize]) -> Vec<Vec<Wanted>> {
    let mut groups: Vec<Vec<Wanted>> = Vec::new();
    let mut group_bytes = GROUP_BYTES;
    for (number, len) in lengths.iter().enumerate() {
        if group_bytes >= GROUP_BYTES {
            groups.push(Vec::new());
            group_bytes = 0;
        }
        group_bytes += len;
        let key = TensorKey { hash: ContentHash::from_content(&number.to_le_bytes()), layout: 0 };
        let wanted = Wanted { key, source: CopySource::Pageable(contents(*len, number)) };
        groups.last_mut().unwrap().push(wanted);
    }
    groups
}

fn resnet50() -> Vec<Vec<Wanted>> {
    wanted(&resnet50_lengths())
}

/// The same weights, directly from the copies of a cache.
fn from_cache(cache: &PinnedCache, wanted: &[Vec<Wanted>]) -> Vec<Vec<Wanted>> {
    let pinned = |wanted: &Wanted| {
        let slice = cache.get(&ContentHash::from_content(wanted.source.bytes())).unwrap();
        Wanted { key: wanted.key, source: CopySource::Pinned(slice) }
    };
    wanted.iter().map(|group| group.iter().map(pinned).collect()).collect()
}

fn offer(cache: &PinnedCache, wanted: &[Vec<Wanted>]) {
    let pageable = wanted.iter().flatten().filter_map(|wanted| match &wanted.source {
        CopySource::Pageable(bytes) => Some((ContentHash::from_content(bytes), bytes.clone())),
        CopySource::Pinned(_) => None,
    });
    cache.offer(pageable);
    cache.settle();
}

fn store(machine: &TestDevice, spare_bytes_max: u64) -> TensorStore {
    TensorStore::new(&machine.pool(256 * BLOCK_BYTES), &machine.engine(), spare_bytes_max).unwrap()
}

/// Loads missing tensors.
fn load(store: &TensorStore, wanted: &[Vec<Wanted>]) -> Vec<Vec<TensorGuard>> {
    let held = store.acquire(wanted.to_vec()).unwrap();
    held.iter().flatten().try_for_each(TensorGuard::wait).unwrap();
    held
}

/// The costs of a load whose tensors are dropped immediately.
fn costs_of(machine: &TestDevice, store: &TensorStore, wanted: &[Vec<Wanted>]) -> DriverCosts {
    let before = machine.fake.costs();
    drop(load(store, wanted));
    machine.fake.costs().since(&before)
}

/// The rate of a load, in per cent of the rate of one copy from pinned memory.
fn percent_of_pinned(costs: &DriverCosts, threads: CopyThreadCosts) -> u64 {
    let bare_ns = 3_000 + costs.bytes * 1_000_000_000 / 55_500_000_000;
    bare_ns * 100 / costs.load_ns(threads)
}

#[test]
fn load_sets_access_once_for_all_tensors() {
    let machine = TestDevice::new(1);
    let store = store(&machine, 0);
    let held = load(&store, &resnet50());
    assert!(held.iter().flatten().count() > 100);
    assert_eq!(machine.fake.calls("cuMemSetAccess"), 1);
    assert_eq!(machine.fake.calls("cuMemMap"), store.usage().mapped_bytes / BLOCK_BYTES);
    assert_eq!(machine.fake.calls("cuMemFreeHost"), 0);
}

#[test]
fn load_into_memory_mapped_ahead_maps_nothing() {
    let machine = TestDevice::new(1);
    let store = store(&machine, 64 * BLOCK_BYTES);
    store.map_ahead(64 * BLOCK_BYTES).unwrap();
    assert_eq!(store.usage().spare_bytes, 64 * BLOCK_BYTES);
    assert_eq!(machine.fake.calls("cuMemSetAccess"), 1);
    let weights = resnet50();
    for _ in 0..3 {
        assert_eq!(costs_of(&machine, &store, &weights).mapping_ns, 0);
        store.trim();
        assert_eq!(store.usage().spare_bytes, 64 * BLOCK_BYTES, "what the tensors leave stays mapped");
    }
}

#[test]
fn spare_memory_is_released_on_demand() {
    let machine = TestDevice::new(1);
    let pool = machine.pool(64 * BLOCK_BYTES);
    let store = TensorStore::new(&pool, &machine.engine(), 60 * BLOCK_BYTES).unwrap();
    store.map_ahead(u64::MAX).unwrap();
    assert_eq!(pool.usage().used_bytes, 60 * BLOCK_BYTES);
    assert_eq!(store.reclaim(10 * BLOCK_BYTES), 10 * BLOCK_BYTES);
    assert_eq!(pool.usage().used_bytes, 50 * BLOCK_BYTES);
    // A contiguous tensor for which the spare blocks after held blocks have no room.
    let lengths = [20 << 21, 1 << 21, 20 << 21, 40 << 21];
    let weights = wanted(&lengths);
    let weights: Vec<Wanted> = weights.into_iter().flatten().collect();
    let mut held = load(&store, &[vec![weights[0].clone()], vec![weights[1].clone()]]);
    held.remove(0);
    drop(load(&store, &[vec![weights[2].clone()]]));
    store.trim();
    held.extend(load(&store, &[vec![weights[3].clone()]]));
    assert!(machine.read(held[1][0].span()) == weights[3].source.bytes());
    assert!(machine.read(held[0][0].span()) == weights[1].source.bytes());
}

/// Weights that are adjacent in the cache and on the device are copied together.
#[test]
fn adjacent_pinned_copies_are_loaded_together() {
    let machine = TestDevice::new(2);
    let store = store(&machine, 0);
    let cache = PinnedCache::new(&machine.context, 32 << 20).unwrap();
    let lengths = vec![256 << 10; 64];
    let weights = vec![wanted(&lengths).into_iter().flatten().collect::<Vec<_>>()];
    offer(&cache, &weights);
    let before = machine.fake.costs();
    let held = load(&store, &from_cache(&cache, &weights));
    for (tensor, wanted) in held.iter().flatten().zip(weights.iter().flatten()) {
        assert!(machine.read(tensor.span()) == wanted.source.bytes());
    }
    let costs = machine.fake.costs().since(&before);
    assert_eq!((costs.bytes, costs.copies), (16 << 20, 2));
}

#[test]
fn pinned_copy_loads_identically_without_host_copies() {
    for seed in 0..4 {
        let machine = TestDevice::new(seed);
        let store = store(&machine, 0);
        let cache = PinnedCache::new(&machine.context, 32 << 20).unwrap();
        let weights = wanted(&[3 << 20, 1000, (5 << 20) + 4, 256, 512 << 10]);
        offer(&cache, &weights);
        let before = machine.fake.costs();
        let held = load(&store, &from_cache(&cache, &weights));
        for (tensor, wanted) in held.iter().flatten().zip(weights.iter().flatten()) {
            assert!(machine.read(tensor.span()) == wanted.source.bytes(), "seed {seed}");
        }
        drop(held);
        store.reclaim(u64::MAX);
        let first = machine.fake.costs().since(&before);
        let again = costs_of(&machine, &store, &from_cache(&cache, &weights));
        assert_eq!((again.bytes, again.pinning_ns), (first.bytes, 0));
        // The host only gathers short weights, and the remainder of odd lengths.
        let short_ns = 10 * 40;
        assert!(first.page_fault_ns > 2_000 * 40, "the copies were made by the host, once: {first:?}");
        assert!(again.page_fault_ns <= short_ns, "{again:?}");
    }
}

/// Copy threads that copy whole blocks, or [pieces](PIECE_BYTES) of the same block.
fn copy_threads(count: u64, piece_bytes: usize) -> CopyThreadCosts {
    CopyThreadCosts { count, start_ns: 5_000, piece_bytes: piece_bytes as u64 }
}

/// The target of the design, by the prices of the fake driver: at most a tenth below the rate of
/// one copy from pinned memory. `cargo test -p weir-device --features cuda --test cuda loads_from
/// -- --nocapture` prints the figures.
#[test]
fn loads_from_host_memory_reach_nine_tenths_of_the_bus() {
    let machine = TestDevice::new(0);
    let store = store(&machine, 64 * BLOCK_BYTES);
    let cache = PinnedCache::new(&machine.context, 128 << 20).unwrap();
    let weights = resnet50();
    let unmapped = costs_of(&machine, &store, &weights);
    store.reclaim(u64::MAX);
    store.map_ahead(u64::MAX).unwrap();
    let cold = costs_of(&machine, &store, &weights);
    store.trim();
    offer(&cache, &weights);
    let pinned = from_cache(&cache, &weights);
    // The fake counts each copy as new contents once: these are the cache's own copies, which no
    // load waits for.
    costs_of(&machine, &store, &pinned);
    store.trim();
    // The host gathers short weights, from memory that is resident.
    let warm = DriverCosts { page_fault_ns: 0, ..costs_of(&machine, &store, &pinned) };
    let cold_400 = DriverCosts { page_fault_ns: cold.page_fault_ns * 10, ..cold };
    let cases = [
        ("page cache, memory not mapped ahead", unmapped),
        ("page cache", cold),
        ("page cache, 400 ns per page fault", cold_400),
        ("pinned cache", warm),
    ];
    for (what, costs) in cases {
        for (how, piece_bytes) in [("blocks", BLOCK_BYTES as usize), ("pieces", PIECE_BYTES)] {
            for count in [1, 4, 8, 12] {
                let threads = copy_threads(count, piece_bytes);
                let us = costs.load_ns(threads) / 1_000;
                let percent = percent_of_pinned(&costs, threads);
                println!("from the {what}, {count} threads copy {how}: {us} us, {percent} % of pinned");
            }
        }
    }
    println!("cold: {cold:?}\nwarm: {warm:?}");
    assert!(percent_of_pinned(&warm, copy_threads(4, PIECE_BYTES)) >= 95);
    assert!(percent_of_pinned(&cold, copy_threads(8, PIECE_BYTES)) >= 90);
    assert!(percent_of_pinned(&cold_400, copy_threads(12, PIECE_BYTES)) >= 88);
}
