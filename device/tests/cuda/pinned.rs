//! Pinned memory: the cache of weights, and staging buffers of runs.

use crate::support::TestDevice;
use bytes::Bytes;
use std::sync::Arc;
use weir_device::cuda::{PinnedCache, PinnedSlice, StagingBuffer};
use weir_types::ContentHash;

const KIB: usize = 1 << 10;

fn bytes(len: usize, value: u8) -> (ContentHash, Bytes) {
    let bytes = Bytes::from(vec![value; len]);
    (ContentHash::from_content(&bytes), bytes)
}

fn cache(machine: &TestDevice, bytes_max: usize) -> PinnedCache {
    PinnedCache::new(&machine.context, bytes_max as u64).unwrap()
}

fn fill(cache: &PinnedCache, offers: impl IntoIterator<Item = (ContentHash, Bytes)>) {
    cache.offer(offers);
    cache.settle();
}

#[test]
fn cache_evicts_least_recently_used_copy() {
    let machine = TestDevice::new(1);
    let cache = cache(&machine, 4 * KIB);
    let weights: Vec<_> = (0..5).map(|value| bytes(KIB, value)).collect();
    for weight in &weights[..4] {
        fill(&cache, [weight.clone()]);
    }
    assert_eq!((cache.usage().used_bytes, cache.usage().bytes_max), (4 << 10, 4 << 10));
    // The first is used again, so the second is evicted.
    assert_eq!(cache.get(&weights[0].0).unwrap().bytes(), weights[0].1);
    fill(&cache, [weights[4].clone()]);
    let there: Vec<_> = weights.iter().map(|(hash, _)| cache.get(hash).is_some()).collect();
    assert_eq!(there, [true, false, true, true, true]);
    assert_eq!((cache.usage().hits, cache.usage().misses), (5, 1));
    // A copy that can never fit evicts nothing.
    fill(&cache, [bytes(5 * KIB, 9)]);
    assert_eq!(cache.usage().used_bytes, 4 << 10);
    // As many copies are evicted as needed.
    let longer = bytes(2 * KIB, 7);
    fill(&cache, [longer.clone()]);
    assert_eq!(cache.get(&longer.0).unwrap().bytes(), longer.1);
    assert!(cache.usage().used_bytes <= 4 << 10);
}

#[test]
fn copy_in_use_by_a_transfer_is_not_evicted() {
    let machine = TestDevice::new(1);
    let cache = cache(&machine, KIB);
    let first = bytes(KIB, 1);
    let second = bytes(KIB, 2);
    fill(&cache, [first.clone()]);
    let read: Arc<PinnedSlice> = cache.get(&first.0).unwrap();
    fill(&cache, [second.clone()]);
    assert!(cache.get(&second.0).is_none(), "there is no room");
    assert_eq!(read.bytes(), first.1);
    drop(read);
    fill(&cache, [second.clone()]);
    assert_eq!(cache.get(&second.0).unwrap().bytes(), second.1);
}

#[test]
fn copy_that_does_not_match_its_hash_is_never_returned() {
    let machine = TestDevice::new(1);
    let cache = cache(&machine, 4 * KIB);
    let (hash, right) = bytes(KIB, 1);
    let mut wrong = right.to_vec();
    wrong[KIB - 1] ^= 1;
    fill(&cache, [(hash, Bytes::from(wrong))]);
    assert!(cache.get(&hash).is_none());
    assert_eq!(cache.usage().used_bytes, 0);
    fill(&cache, [(hash, right.clone())]);
    assert_eq!(cache.get(&hash).unwrap().bytes(), right);
}

#[test]
fn a_cache_without_room_or_memory_holds_nothing() {
    let machine = TestDevice::new(1);
    let off = cache(&machine, 255);
    assert_eq!(off.usage().bytes_max, 0);
    fill(&off, [bytes(1, 1)]);
    assert!(off.get(&bytes(1, 1).0).is_none());
    machine.fake.set("host_memory_bytes", 0);
    let none = cache(&machine, 4 * KIB);
    fill(&none, [bytes(KIB, 1)]);
    assert!(none.get(&bytes(KIB, 1).0).is_none());
    assert_eq!(none.usage().bytes_max, 0, "no memory is pinned");
}

#[test]
fn slice_outlives_its_cache() {
    let machine = TestDevice::new(1);
    let cache = cache(&machine, KIB);
    let (hash, contents) = bytes(KIB, 3);
    fill(&cache, [(hash, contents.clone())]);
    let slice = cache.get(&hash).unwrap();
    drop(cache);
    assert_eq!(slice.bytes(), contents);
    assert_eq!(machine.fake.calls("cuMemFreeHost"), 0);
}

#[test]
fn staging_buffer_grows_without_freeing_segments() {
    let machine = TestDevice::new(1);
    let mut staging = StagingBuffer::new(&machine.context, KIB).unwrap();
    staging.get(KIB).unwrap().fill(1);
    assert_eq!(machine.fake.calls("cuMemHostAlloc"), 1, "as sized");
    staging.get(3 * KIB).unwrap().fill(2);
    assert_eq!(staging.get(4 * KIB).unwrap().len(), 4 * KIB);
    assert_eq!(staging.get(4 * KIB).unwrap()[..3 * KIB], vec![2; 3 * KIB], "the same memory");
    assert_eq!(staging.get(100).unwrap(), [1; 100], "as is what it had first");
    assert_eq!((machine.fake.calls("cuMemHostAlloc"), machine.fake.calls("cuMemFreeHost")), (2, 0));
    drop(staging);
    assert_eq!(machine.fake.calls("cuMemFreeHost"), 2);
}
