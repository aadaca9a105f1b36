//! Cache of weights in pinned memory, so that a model that is loaded again is copied to the device
//! directly from host memory.
//!
//! The cache's thread allocates the memory once, when the device is opened, and the memory is freed
//! with the cache; neither happens while runs wait. The thread copies [offered](PinnedCache::offer)
//! weights, hashes each copy, and drops a copy that does not match its hash. When room is short,
//! the least recently used copies are evicted, except those that a transfer reads.
#![allow(unsafe_code, reason = "copies are written into memory that is shared")]

mod shelf;
pub use shelf::PinnedCacheUsage;
use shelf::Shelf;

use super::context::Context;
use super::error::CudaError;
use super::pinned::{PinnedMemory, PinnedSlice};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use tracing::warn;
use weir_types::ContentHash;

/// The most weights that wait to be copied; further offers are ignored.
const OFFERS_MAX: usize = 4_096;

/// Pinned copies of weights, by the hash of their bytes.
pub struct PinnedCache {
    shared: Arc<PinnedCacheShared>,
    thread: Option<JoinHandle<()>>,
}

struct PinnedCacheShared {
    state: Mutex<PinnedCacheState>,
    /// Signals that weights were offered, or that the cache must stop.
    wake: Condvar,
    /// Signals that the thread is idle.
    idle: Condvar,
}

struct PinnedCacheState {
    shelf: Shelf,
    offers: VecDeque<(ContentHash, Bytes)>,
    /// Whether the thread works on an offer, or allocates the memory.
    is_busy: bool,
    /// Whether the cache is permanently without memory.
    is_off: bool,
    stop: bool,
}

impl PinnedCache {
    /// Creates a cache of at most `bytes_max` bytes, rounded down to a multiple of 256. With 0 the
    /// cache holds nothing, and has no thread.
    pub fn new(context: &Arc<Context>, bytes_max: u64) -> Result<Self, CudaError> {
        let shelf = Shelf::new(bytes_max);
        let is_off = shelf.usage().bytes_max == 0;
        let state =
            PinnedCacheState { shelf, offers: VecDeque::new(), is_busy: !is_off, is_off, stop: false };
        let state = Mutex::new(state);
        let wake = Condvar::new();
        let idle = Condvar::new();
        let shared = Arc::new(PinnedCacheShared { state, wake, idle });
        let start = || {
            let shared = shared.clone();
            let context = context.clone();
            Builder::new().name("pinned-cache".to_owned()).spawn(move || shared.run(&context))
        };
        let thread = (!is_off).then(start).transpose();
        let thread =
            thread.map_err(|error| CudaError::Invalid(format!("no thread for pinned copies: {error}")))?;
        Ok(Self { shared, thread })
    }

    /// The copy of the bytes with this hash, if the cache has it.
    #[must_use]
    pub fn get(&self, hash: &ContentHash) -> Option<Arc<PinnedSlice>> {
        self.shared.state.lock().shelf.get(hash)
    }

    /// Offers weights for copying, by their hashes. Returns immediately; weights that are cached or
    /// queued already, or do not fit, are ignored.
    pub fn offer(&self, offers: impl IntoIterator<Item = (ContentHash, Bytes)>) {
        let mut state = self.shared.state.lock();
        for (hash, bytes) in offers {
            let is_new = !state.shelf.contains(&hash) && state.offers.iter().all(|(other, _)| *other != hash);
            if is_new && !state.is_off && state.offers.len() < OFFERS_MAX {
                state.offers.push_back((hash, bytes));
            }
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Waits until all offers are copied or ignored.
    pub fn settle(&self) {
        let busy = |state: &mut PinnedCacheState| state.is_busy || !state.offers.is_empty();
        self.shared.idle.wait_while(&mut self.shared.state.lock(), busy);
    }

    /// Current usage. The capacity is 0 if the memory could not be allocated.
    #[must_use]
    pub fn usage(&self) -> PinnedCacheUsage {
        let state = self.shared.state.lock();
        let usage = state.shelf.usage();
        if state.is_off { PinnedCacheUsage { bytes_max: 0, ..usage } } else { usage }
    }
}

impl fmt::Debug for PinnedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedCache").field("usage", &self.usage()).finish()
    }
}

impl Drop for PinnedCache {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}

impl PinnedCacheShared {
    fn run(&self, context: &Arc<Context>) {
        let bytes = usize::try_from(self.state.lock().shelf.usage().bytes_max).unwrap_or(usize::MAX);
        match PinnedMemory::new(context, bytes) {
            Ok(memory) => self.fill(&Arc::new(memory)),
            Err(error) => {
                warn!(%error, bytes, "pinned cache disabled, because its memory cannot be pinned: loads copy from files (pinned_cache_bytes_max)");
                let mut state = self.state.lock();
                state.is_busy = false;
                state.is_off = true;
                state.offers.clear();
            }
        }
        self.idle.notify_all();
    }

    /// Copies offered weights until the cache stops.
    fn fill(&self, memory: &Arc<PinnedMemory>) {
        while let Some((hash, bytes)) = self.next() {
            let Some(offset) = self.state.lock().shelf.place(bytes.len() as u64) else { continue };
            let range =
                usize::try_from(offset).ok().and_then(|start| Some(start..start.checked_add(bytes.len())?));
            let slice = range.and_then(|range| {
                // SAFETY: the shelf assigns a place to one copy at a time, and reuses it only when
                // no slice of it exists.
                unsafe { PinnedSlice::filled(memory, range, |to| to.copy_from_slice(&bytes)) }
            });
            // The hash of the copy itself decides; the file may have changed before or since.
            let slice = slice.filter(|slice| ContentHash::from_content(slice.bytes()) == hash);
            let mut state = self.state.lock();
            match slice {
                Some(slice) => state.shelf.add(hash, offset, slice),
                None => state.shelf.take_back(offset),
            }
        }
    }

    fn next(&self) -> Option<(ContentHash, Bytes)> {
        let mut state = self.state.lock();
        state.is_busy = false;
        if state.offers.is_empty() {
            self.idle.notify_all();
        }
        let waits = |state: &mut PinnedCacheState| state.offers.is_empty() && !state.stop;
        self.wake.wait_while(&mut state, waits);
        let next = if state.stop { None } else { state.offers.pop_front() };
        state.is_busy = next.is_some();
        next
    }
}
