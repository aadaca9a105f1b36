//! Bookkeeping of a pinned cache: places and last uses of the copies.

use crate::cuda::memory::BlockMap;
use crate::cuda::pinned::PinnedSlice;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_types::ContentHash;

/// Alignment of lengths.
const ALIGNMENT_BYTES: u64 = 256;

/// Usage of a pinned cache, in bytes, and counts of its lookups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinnedCacheUsage {
    /// Capacity of the cache: this much host memory is pinned.
    pub bytes_max: u64,
    /// Bytes of the copies.
    pub used_bytes: u64,
    /// Lookups that found a copy.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
}

/// The copies in one range of memory.
pub(super) struct Shelf {
    map: BlockMap,
    entries: HashMap<ContentHash, ShelfEntry>,
    /// Copies by last use, the least recently used first.
    by_use: BTreeMap<u64, ContentHash>,
    uses: u64,
    usage: PinnedCacheUsage,
}

struct ShelfEntry {
    offset: u64,
    slice: Arc<PinnedSlice>,
    last_use: u64,
}

impl Shelf {
    pub(super) fn new(bytes_max: u64) -> Self {
        let bytes_max = bytes_max / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        let usage = PinnedCacheUsage { bytes_max, ..PinnedCacheUsage::default() };
        // All of the memory exists, so it is one block.
        let map = BlockMap::new(bytes_max, 1);
        Self { map, entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, usage }
    }

    /// Looks up a copy, and counts it as used.
    pub(super) fn get(&mut self, hash: &ContentHash) -> Option<Arc<PinnedSlice>> {
        let Some(entry) = self.entries.get_mut(hash) else {
            self.usage.misses += 1;
            return None;
        };
        self.usage.hits += 1;
        self.by_use.remove(&entry.last_use);
        self.uses += 1;
        entry.last_use = self.uses;
        self.by_use.insert(entry.last_use, *hash);
        Some(entry.slice.clone())
    }

    pub(super) fn contains(&self, hash: &ContentHash) -> bool {
        self.entries.contains_key(hash)
    }

    /// A place for a copy of `bytes` bytes. Evicts copies that no transfer reads, least recently
    /// used first, but none for a copy that can never fit.
    pub(super) fn place(&mut self, bytes: u64) -> Option<u64> {
        if bytes > self.usage.bytes_max {
            return None;
        }
        loop {
            if let Some(placement) = self.map.place(bytes) {
                return Some(placement.offset);
            }
            self.evict_oldest()?;
        }
    }

    /// Adds a copy at its assigned place.
    pub(super) fn add(&mut self, hash: ContentHash, offset: u64, slice: PinnedSlice) {
        self.uses += 1;
        let entry = ShelfEntry { offset, slice: Arc::new(slice), last_use: self.uses };
        self.by_use.insert(entry.last_use, hash);
        self.entries.insert(hash, entry);
    }

    /// Frees a place that was assigned but not used.
    pub(super) fn take_back(&mut self, offset: u64) {
        self.map.free(offset);
    }

    pub(super) fn usage(&self) -> PinnedCacheUsage {
        PinnedCacheUsage { used_bytes: self.map.used_bytes(), ..self.usage }
    }

    fn evict_oldest(&mut self) -> Option<()> {
        // Slices are handed out under the same lock: a slice without other references cannot gain
        // one here.
        let is_free = |hash: &&ContentHash| {
            self.entries.get(hash).is_some_and(|entry| Arc::strong_count(&entry.slice) == 1)
        };
        let hash = *self.by_use.values().find(is_free)?;
        let entry = self.entries.remove(&hash)?;
        self.by_use.remove(&entry.last_use);
        self.map.free(entry.offset);
        Some(())
    }
}
