//! Device-resident intermediates: outputs of one workflow step for the next, without a copy through
//! the host.
//!
//! An intermediate has an index that is unique across nodes. It stays on the device within a share
//! of the memory that is *free* there, and on the host otherwise: free memory is for bursts of
//! requests, and the store must not take it from them. An intermediate moves to the host when a
//! newer one needs its room, or when another consumer of device memory calls
//! [`CommStore::relieve`]. Before memory is short, a supervisor of several stores may move
//! [intermediates beyond a part of the share](CommStore::beyond) to another store, as
//! [guests](CommStore::put_guest). An intermediate ends when its consumer
//! [removes](CommStore::remove) it, or when it has been unused for a while ([`CommStore::sweep`]).
//! After the elastic communication store of StreamBox (Wu et al., USENIX ATC 2024).

mod error;
pub use error::CommError;

mod guard;
mod ledger;
mod limits;
mod places;
pub use guard::{IntermediateGuard, IntermediatePlace};
pub use limits::{CommLimits, CommUsage};

use super::error::CudaError;
use super::memory::{AddressRange, BLOCK_BYTES, BlockMap, BlockPool, DemandEstimate, MemoryOwner, Span};
use super::stream::Stream;
use super::transfer::{TransferEngine, TransferError};
use crate::{Arena, Buffer};
use ledger::IntermediateLedger;
use parking_lot::{Mutex, MutexGuard};
use places::{CommState, IntermediateTier, KeptIntermediate};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Owner of the store's memory. The store checks the owners of the intermediates.
const STORE: MemoryOwner = MemoryOwner(u64::MAX - 1);

/// Limit for guests, in per cent of the share: the store accepts guests up to it, and offers
/// intermediates beyond it to other stores. The rest is for bursts.
const GUESTS_PERCENT_MAX: u64 = 75;

/// Interval between updates of the demand for memory, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Number of blocks that are returned to the pool while the store is locked: about a millisecond.
const SETTLED_AT_ONCE: u64 = 32;

/// Size of the address range as a multiple of the memory.
const REACH: u64 = 4;

/// Identity of an intermediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommIndex {
    /// Number of the store, unique among all stores.
    pub store: u64,
    /// Number of the intermediate in the store, never reused.
    pub number: u64,
}

/// The intermediates of one device. Cheap to clone.
#[derive(Clone)]
pub struct CommStore(Arc<CommShared>);

struct CommShared {
    id: u64,
    limits: CommLimits,
    arena: Arena,
    engine: Arc<TransferEngine>,
    /// Bytes moved to the host since the last query.
    spilled_bytes: AtomicU64,
    /// A separate `Arc`, because transfers hold it: they must not keep alive the engine that runs
    /// them.
    state: Arc<Mutex<CommState>>,
}

impl CommStore {
    /// Creates a store called `id`, in memory of `pool` and, beyond its share, of `arena`.
    pub fn new(
        id: u64,
        limits: CommLimits,
        pool: &Arc<BlockPool>,
        engine: &Arc<TransferEngine>,
        arena: &Arena,
    ) -> Result<Self, CudaError> {
        let blocks = (pool.usage().limit_bytes / BLOCK_BYTES).saturating_mul(REACH).max(1);
        let range = AddressRange::reserve(pool, blocks.saturating_mul(BLOCK_BYTES))?;
        let map = BlockMap::new(BLOCK_BYTES, blocks);
        let state = CommState {
            range,
            map,
            idle: BTreeSet::new(),
            idle_bytes_max: limits.idle_bytes_max,
            demand: DemandEstimate::new(INTERVAL_NS, 0),
            now_ns: 0,
            ledger: IntermediateLedger::new(),
            next_number: 0,
        };
        let arena = arena.clone();
        let engine = engine.clone();
        let state = Arc::new(Mutex::new(state));
        Ok(Self(Arc::new(CommShared { id, limits, arena, engine, spilled_bytes: AtomicU64::new(0), state })))
    }

    /// Stores a copy of `from`, which work on `stream` has written, for `owner`. A copy on the
    /// device is made in the order of `stream`, and the call returns immediately; a copy to the
    /// host blocks the call.
    pub fn put(
        &self,
        from: Span,
        stream: &Stream,
        owner: MemoryOwner,
        now_ns: u64,
    ) -> Result<CommIndex, CommError> {
        loop {
            let (share_bytes, used_bytes) = self.0.state().share(self.0.limits.free_percent_max);
            if used_bytes.saturating_add(from.bytes()) <= share_bytes {
                break;
            }
            // An intermediate that does not fit anyway moves no other one.
            if from.bytes() > share_bytes || !self.move_oldest()? {
                return self.put_on_host(from, stream, owner, now_ns);
            }
        }
        let kept = self.0.state().copy_in(from, stream, now_ns);
        match kept {
            Ok(tier) => self.add(KeptIntermediate { owner, tier, is_guest: false }, now_ns),
            Err(CudaError::OutOfMemory(_)) => self.put_on_host(from, stream, owner, now_ns),
            Err(error) => Err(TransferError::from(error).into()),
        }
    }

    /// Stores host bytes for `owner`.
    pub fn put_buffer(&self, bytes: Buffer, owner: MemoryOwner, now_ns: u64) -> Result<CommIndex, CommError> {
        self.add(KeptIntermediate { owner, tier: IntermediateTier::Host(bytes), is_guest: false }, now_ns)
    }

    /// Stores a copy of `from`, which is on another device and which `stream` can read, for
    /// `owner`, as a guest. `None` if there is no room without moving other intermediates. The copy
    /// is made in the order of `stream`. Guests are the first to be moved.
    pub fn put_guest(
        &self,
        from: Span,
        stream: &Stream,
        owner: MemoryOwner,
        now_ns: u64,
    ) -> Result<Option<CommIndex>, CommError> {
        let mut state = self.0.state();
        let (guests_bytes, used_bytes) = self.for_guests(&state);
        if used_bytes.saturating_add(from.bytes()) > guests_bytes {
            return Ok(None);
        }
        let kept = state.copy_in(from, stream, now_ns);
        drop(state);
        match kept {
            Ok(tier) => self.add(KeptIntermediate { owner, tier, is_guest: true }, now_ns).map(Some),
            Err(CudaError::OutOfMemory(_)) => Ok(None),
            Err(error) => Err(TransferError::from(error).into()),
        }
    }

    /// Intermediates that should become guests elsewhere, so that bursts find room here: those
    /// beyond a part of the share, least recently used first, at most `count`. Guests are excluded,
    /// so that they do not circulate.
    #[must_use]
    pub fn beyond(&self, count: usize) -> Vec<CommIndex> {
        let state = self.0.state();
        let (guests_bytes, used_bytes) = self.for_guests(&state);
        let mut beyond_bytes = used_bytes.saturating_sub(guests_bytes);
        let mut beyond = Vec::new();
        for (number, kept) in state.ledger.idle() {
            let IntermediateTier::Device { span, .. } = &kept.tier else { continue };
            if beyond_bytes == 0 || beyond.len() == count {
                break;
            }
            if !kept.is_guest {
                beyond_bytes = beyond_bytes.saturating_sub(span.bytes());
                beyond.push(CommIndex { store: self.0.id, number });
            }
        }
        beyond
    }

    /// Bytes moved to the host since the last call.
    #[must_use]
    pub fn take_spilled_bytes(&self) -> u64 {
        self.0.spilled_bytes.swap(0, Ordering::Relaxed)
    }

    /// Pins an intermediate of `owner`, which is not moved while it is held.
    pub fn get(
        &self,
        index: CommIndex,
        owner: MemoryOwner,
        now_ns: u64,
    ) -> Result<IntermediateGuard, CommError> {
        let not_found = || CommError::NotFound(index);
        if index.store != self.0.id {
            return Err(not_found());
        }
        let kept = self.0.state().ledger.pin(index.number, now_ns).cloned().ok_or_else(not_found)?;
        let of = kept.owner;
        let held = IntermediateGuard::new(&self.0, index.number, kept.tier);
        // `held` exists before the owner check, so that its drop releases the pin.
        if of == owner { Ok(held) } else { Err(not_found()) }
    }

    /// Removes an intermediate of `owner`: immediately, or when its last user releases it.
    pub fn remove(&self, index: CommIndex, owner: MemoryOwner) -> Result<(), CommError> {
        drop(self.get(index, owner, 0)?);
        let gone = self.0.state().ledger.remove(index.number);
        self.0.free(gone);
        Ok(())
    }

    /// Returns all empty blocks to the pool.
    pub fn trim(&self) {
        self.0.state().give_up_beyond(0);
    }

    /// Returns empty blocks that recent intermediates have not needed to the pool. Callers should
    /// settle every second.
    pub fn settle(&self, now_ns: u64) {
        // Intermediates do not wait until all of them are unmapped.
        while self.0.state().settle(now_ns, SETTLED_AT_ONCE) {}
    }

    /// Returns empty blocks to the pool, until `bytes` are back or none is left. Returns the bytes
    /// released.
    pub fn release_idle(&self, bytes: u64) -> u64 {
        let mut state = self.0.state();
        let before_bytes = state.idle_bytes();
        state.give_up_beyond(before_bytes.saturating_sub(bytes));
        before_bytes - state.idle_bytes()
    }

    /// Releases empty blocks, and moves unused intermediates to the host, least recently used
    /// first, until `bytes` of device memory are free or no such intermediate is left. Returns the
    /// bytes returned to the pool. For callers whose allocation on the device failed.
    pub fn relieve(&self, bytes: u64) -> Result<u64, CommError> {
        let before = self.usage().mapped_bytes;
        self.trim();
        while before.saturating_sub(self.usage().mapped_bytes) < bytes {
            if !self.move_oldest()? {
                break;
            }
            self.trim();
        }
        Ok(before.saturating_sub(self.usage().mapped_bytes))
    }

    /// Removes intermediates that have been unused for `keep_ns`, and returns their number. Callers
    /// should sweep every few seconds.
    pub fn sweep(&self, now_ns: u64, keep_ns: u64) -> usize {
        let Some(limit_ns) = now_ns.checked_sub(keep_ns) else { return 0 };
        let expired = self.0.state().ledger.unused_since(limit_ns);
        let mut went = 0;
        for number in expired {
            let gone = self.0.state().ledger.remove(number);
            went += usize::from(gone.is_some());
            self.0.free(gone);
        }
        went
    }

    /// Current usage.
    #[must_use]
    pub fn usage(&self) -> CommUsage {
        let state = self.0.state();
        let mut usage = CommUsage { mapped_bytes: state.range.mapped_bytes(), ..CommUsage::default() };
        for kept in state.ledger.places() {
            match &kept.tier {
                IntermediateTier::Device { span, .. } => usage.device_bytes += span.bytes(),
                IntermediateTier::Host(buffer) => usage.host_bytes += buffer.len() as u64,
            }
        }
        usage
    }

    fn put_on_host(
        &self,
        from: Span,
        stream: &Stream,
        owner: MemoryOwner,
        now_ns: u64,
    ) -> Result<CommIndex, CommError> {
        stream.synchronize().map_err(TransferError::from)?;
        // The caller keeps `from` valid until this function returns.
        let buffer = self.0.engine.fetch(from, &self.0.arena, Box::new(()))?.wait()?;
        let index = self.put_buffer(buffer, owner, now_ns)?;
        self.0.spilled_bytes.fetch_add(from.bytes(), Ordering::Relaxed);
        Ok(index)
    }

    fn add(&self, kept: KeptIntermediate, now_ns: u64) -> Result<CommIndex, CommError> {
        let mut state = self.0.state();
        let entries_max = self.0.limits.entries_max;
        if state.ledger.len() >= entries_max {
            drop(state);
            self.0.free(Some(kept));
            return Err(CommError::TooMany { entries_max });
        }
        let number = state.next_number;
        state.next_number += 1;
        state.ledger.add(number, kept, now_ns);
        Ok(CommIndex { store: self.0.id, number })
    }

    /// Moves one intermediate from the device to the host: the least recently used of those that
    /// other devices moved here, otherwise the least recently used of all. Returns false if there
    /// was none.
    fn move_oldest(&self) -> Result<bool, CommError> {
        let mut state = self.0.state();
        let is_here = |kept: &KeptIntermediate| matches!(kept.tier, IntermediateTier::Device { .. });
        let mut oldest = |is_guest: bool| {
            let begun = state.ledger.begin_move(|kept| is_here(kept) && kept.is_guest == is_guest);
            begun.map(|(number, kept)| (number, kept.clone()))
        };
        let Some((number, kept)) = oldest(true).or_else(|| oldest(false)) else { return Ok(false) };
        drop(state);
        let moved = self.fetch(&kept);
        let place = moved
            .as_ref()
            .ok()
            .map(|buffer| KeptIntermediate { tier: IntermediateTier::Host(buffer.clone()), ..kept.clone() });
        let free = self.0.state().ledger.end_move(number, place);
        self.0.free(free);
        self.0.spilled_bytes.fetch_add(moved?.len() as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Bytes of the device that may be in use with guests, and bytes in use.
    fn for_guests(&self, state: &CommState) -> (u64, u64) {
        let (share_bytes, used_bytes) = state.share(self.0.limits.free_percent_max);
        (share_bytes / 100 * GUESTS_PERCENT_MAX, used_bytes)
    }

    fn fetch(&self, kept: &KeptIntermediate) -> Result<Buffer, TransferError> {
        match &kept.tier {
            IntermediateTier::Host(buffer) => Ok(buffer.clone()),
            IntermediateTier::Device { span, ready, .. } => {
                ready.synchronize()?;
                self.0.engine.fetch(*span, &self.0.arena, Box::new(self.0.state.clone()))?.wait()
            }
        }
    }
}

impl fmt::Debug for CommStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommStore").field("id", &self.0.id).field("usage", &self.usage()).finish()
    }
}

impl CommShared {
    fn state(&self) -> MutexGuard<'_, CommState> {
        // Consistent between any two statements that can panic.
        self.state.lock()
    }

    /// Frees the memory of an intermediate that has been removed.
    fn free(&self, kept: Option<KeptIntermediate>) {
        if let Some(KeptIntermediate { tier: IntermediateTier::Device { offset, ready, .. }, .. }) = kept {
            // The copy may still be in progress. If waiting fails, the context is lost, and the
            // copy will never run.
            let _ = ready.synchronize();
            self.state().release(offset);
        }
    }
}
