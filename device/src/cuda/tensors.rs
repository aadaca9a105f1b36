//! Weights on a device, each once.
//!
//! A tensor is known by what is in it, so models that share weights share the memory. What ends a tensor's stay: nobody has held it for the keep-alive time
//! ([`TensorStore::sweep`]); others need the room, and of those that nobody holds it is the one left for longest; its load failed, or was cancelled since nobody
//! waits for it any more.
//!
//! A load finds places for all of its tensors first and then maps memory behind them at once: `cuMemSetAccess` takes longer than copying a block and stalls the
//! device, so there is one for each run of blocks. Blocks that tensors leave stay mapped, up to a limit, and so do some that are mapped ahead of the next load.
//!
//! Every byte of a tensor's place is written by its load, before anybody is let near it: what others had there is not seen.

mod ledger;
pub use ledger::{StoreUsage, TensorKey};

mod places;
use places::{Brought, Load, State};

mod tensor;
pub use tensor::Tensor;

use super::error::CudaError;
use super::memory::{AddressRange, BLOCK_BYTES, BlockMap, BlockPool, Owner, Span};
use super::transfer::{Segment, Source, TransferEngine, TransferError};
use ledger::Ledger;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// On whose behalf the store holds memory: its own.
const STORE: Owner = Owner(u64::MAX);

/// How many times as many addresses as memory the store has, so that there is always a place in one piece.
const REACH: u64 = 8;

/// The tensors on one device. Cheap to clone.
#[derive(Clone)]
pub struct TensorStore(Arc<Shared>);

/// A tensor that somebody needs.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// What it is known by.
    pub key: TensorKey,
    /// Its bytes, for the case that it is not there.
    pub source: Source,
}

struct Shared {
    /// On its own, since loads keep it: they must not keep the engine that runs them.
    state: Arc<Mutex<State>>,
    engine: Arc<TransferEngine>,
}

impl TensorStore {
    /// A store in memory of `pool`, loaded by `engine`, which keeps up to `spare_bytes_max` mapped that nothing lies in.
    pub fn new(
        pool: &Arc<BlockPool>,
        engine: &Arc<TransferEngine>,
        spare_bytes_max: u64,
    ) -> Result<Self, CudaError> {
        let blocks = (pool.usage().limit_bytes / BLOCK_BYTES).saturating_mul(REACH).max(1);
        let range = AddressRange::reserve(pool, blocks.saturating_mul(BLOCK_BYTES))?;
        let map = BlockMap::new(BLOCK_BYTES, blocks);
        let (spare, ledger) = (BTreeSet::new(), Ledger::new());
        let state = State { range, map, spare, spare_bytes_max, ledger, now_ns: 0 };
        Ok(Self(Arc::new(Shared { state: Arc::new(Mutex::new(state)), engine: Arc::clone(engine) })))
    }

    /// Hold tensors, in groups that can be waited for one by one, in order. Those that are not there are loaded, by one transfer that is under way when this
    /// returns; those that others are loading already are waited for like one's own. For want of room, tensors that nobody holds make way.
    ///
    /// The result has the tensors in the order of the groups. On error nothing is held.
    pub fn acquire(&self, groups: Vec<Vec<Wanted>>) -> Result<Vec<Vec<Tensor>>, TransferError> {
        let mut state = self.0.state();
        let load = Arc::new(Load::default());
        let mut segments: Vec<Vec<Segment>> = Vec::with_capacity(groups.len());
        let mut held: Vec<Vec<Tensor>> = Vec::with_capacity(groups.len());
        let mut missing = BTreeSet::new();
        let mut result = Ok(());
        'groups: for (group, wanted) in groups.into_iter().enumerate() {
            segments.push(Vec::new());
            held.push(Vec::new());
            for Wanted { key, source } in wanted {
                let tensor = match state.find(&key, &source, &load) {
                    Some((id, span, brought)) => Tensor::new(&self.0, id, span, brought),
                    None => match state.place(
                        key,
                        source.bytes().len() as u64,
                        Brought { load: Arc::clone(&load), group },
                        &mut missing,
                    ) {
                        Ok((id, whole)) => {
                            let span = Span::new(whole.address(), source.bytes().len() as u64);
                            if let Some(segments) = segments.last_mut() {
                                segments.push(Segment { from: source, to: whole });
                            }
                            Tensor::new(&self.0, id, span, Brought { load: Arc::clone(&load), group })
                        }
                        Err(error) => {
                            result = Err(error);
                            break 'groups;
                        }
                    },
                };
                if let Some(held) = held.last_mut() {
                    held.push(tensor);
                }
            }
        }
        let backed = result.and_then(|()| state.back(&missing)).map_err(TransferError::from);
        let result = backed.and_then(|()| {
            let transfer = self.0.engine.load(&segments, Box::new(Arc::clone(&self.0.state)))?;
            let _ = load.transfer.set(transfer);
            Ok(())
        });
        drop(state);
        // On error the tensors go here, outside the lock, and those just placed with them: their load has no transfer.
        result.map(|()| held)
    }

    /// Give up spare memory, and tensors that nobody holds, those left for longest first, until `bytes` of memory are back in the pool or none is left. Gives
    /// how much memory that was: whole blocks, so it may be more, and nothing where others are in the same ones.
    pub fn reclaim(&self, bytes: u64) -> u64 {
        self.0.state().give_up(bytes)
    }

    /// Let go of all tensors that nobody holds. Their memory stays mapped for the next load, as far as it may be spare.
    pub fn trim(&self) {
        let mut state = self.0.state();
        while state.drop_oldest(u64::MAX).is_some() {}
    }

    /// Map memory ahead of the next load, until `bytes` of it are spare or as many as may be: while the device is idle, as before serving and behind a load.
    pub fn map_ahead(&self, bytes: u64) -> Result<(), CudaError> {
        self.0.state().map_ahead(bytes)
    }

    /// Let go of tensors that nobody has held for `keep_alive_ns`. Call it every few seconds; `now_ns` is the time until the next call.
    pub fn sweep(&self, now_ns: u64, keep_alive_ns: u64) -> u64 {
        let mut state = self.0.state();
        state.now_ns = state.now_ns.max(now_ns);
        let Some(limit_ns) = state.now_ns.checked_sub(keep_alive_ns) else { return 0 };
        let mut gone = 0;
        while let Some(went) = state.drop_oldest(limit_ns) {
            gone += went;
        }
        gone
    }

    /// What it has now.
    #[must_use]
    pub fn usage(&self) -> StoreUsage {
        let state = self.0.state();
        let (held_bytes, idle_bytes) = state.ledger.bytes();
        StoreUsage {
            held_bytes,
            idle_bytes,
            mapped_bytes: state.range.mapped_bytes(),
            spare_bytes: state.spare.len() as u64 * BLOCK_BYTES,
        }
    }

    /// Whether a tensor is there, or on its way.
    #[must_use]
    pub fn contains(&self, key: &TensorKey) -> bool {
        self.0.state().ledger.find(key).is_some_and(|(_, entry)| !entry.load.load.failed())
    }
}

impl fmt::Debug for TensorStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorStore").field("usage", &self.usage()).finish()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
