//! Where copies are, and which was used when. Bookkeeping only.

use crate::cuda::memory::BlockMap;
use crate::cuda::pinned::PinnedSlice;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_types::ContentHash;

/// What lengths are rounded to.
const ALIGNMENT_BYTES: u64 = 256;

/// What a cache holds, in bytes, and how often it was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinnedCacheUsage {
    /// The most that it can hold: this much memory of the host is pinned.
    pub bytes_max: u64,
    /// What it holds.
    pub used_bytes: u64,
    /// Copies that were found.
    pub hits: u64,
    /// Copies that were asked for and not there.
    pub misses: u64,
}

/// The copies in one run of memory.
pub(super) struct Shelf {
    map: BlockMap,
    entries: HashMap<ContentHash, Entry>,
    /// The copies by their last use, the one used longest ago first.
    by_use: BTreeMap<u64, ContentHash>,
    uses: u64,
    usage: PinnedCacheUsage,
}

struct Entry {
    offset: u64,
    slice: Arc<PinnedSlice>,
    last_use: u64,
}

impl Shelf {
    pub(super) fn new(bytes_max: u64) -> Self {
        let bytes_max = bytes_max / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        let usage = PinnedCacheUsage { bytes_max, ..PinnedCacheUsage::default() };
        // All of the memory is there: one block.
        let map = BlockMap::new(bytes_max, 1);
        Self { map, entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, usage }
    }

    /// A copy, which counts as used.
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
        Some(Arc::clone(&entry.slice))
    }

    pub(super) fn contains(&self, hash: &ContentHash) -> bool {
        self.entries.contains_key(hash)
    }

    /// A place for a copy of so many bytes. Copies make way that nothing reads, those used longest ago first; none does for what never fits.
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

    /// Keep a copy at a place that was given for it.
    pub(super) fn add(&mut self, hash: ContentHash, offset: u64, slice: PinnedSlice) {
        self.uses += 1;
        let entry = Entry { offset, slice: Arc::new(slice), last_use: self.uses };
        self.by_use.insert(entry.last_use, hash);
        self.entries.insert(hash, entry);
    }

    /// Take back a place that nothing was put at.
    pub(super) fn take_back(&mut self, offset: u64) {
        self.map.free(offset);
    }

    pub(super) fn usage(&self) -> PinnedCacheUsage {
        PinnedCacheUsage { used_bytes: self.map.used_bytes(), ..self.usage }
    }

    fn evict_oldest(&mut self) -> Option<()> {
        // Slices are handed out under the same lock as this: one that nobody else has stays so.
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
