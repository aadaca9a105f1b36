//! Tensor store: weights on a device, each stored once.
//!
//! A tensor is identified by the hash of its content, so models with equal weights share the
//! memory. A tensor is dropped when it has been unheld for the keep-alive time
//! ([`TensorStore::sweep`]), when other tensors need its room and it is the least recently used
//! unheld tensor, or when its load failed or was cancelled for lack of waiting callers.
//!
//! A load first finds places for all of its tensors, and then maps memory for them together:
//! `cuMemSetAccess` takes longer than copying a block and stalls the device, so the store calls it
//! once per contiguous run of blocks. Blocks that tensors leave stay mapped, up to a limit, and
//! some blocks are mapped ahead of the next load.
//!
//! A load writes every byte of a tensor's place before the tensor can be read, so earlier contents
//! are never visible.

mod ledger;
pub use ledger::{TensorKey, TensorStoreUsage};

mod places;
use places::{Brought, TensorLoad, TensorStoreState};

mod tensor;
pub use tensor::TensorGuard;

use super::error::CudaError;
use super::memory::{AddressRange, BLOCK_BYTES, BlockMap, BlockPool, MemoryOwner, Span};
use super::transfer::{CopySource, Segment, TransferEngine, TransferError};
use ledger::TensorLedger;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Owner of the store's memory.
const STORE: MemoryOwner = MemoryOwner(u64::MAX);

/// Size of the address range as a multiple of the memory, so that a contiguous place always exists.
const REACH: u64 = 8;

/// The tensors on one device. Cheap to clone.
#[derive(Clone)]
pub struct TensorStore(Arc<TensorStoreShared>);

/// A requested tensor.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Key of the tensor.
    pub key: TensorKey,
    /// Its bytes, used if the tensor is not on the device.
    pub source: CopySource,
}

struct TensorStoreShared {
    /// A separate `Arc`, because loads hold it: they must not keep alive the engine that runs them.
    state: Arc<Mutex<TensorStoreState>>,
    engine: Arc<TransferEngine>,
}

impl TensorStore {
    /// Creates a store in memory of `pool`, loaded by `engine`, with up to `spare_bytes_max` of
    /// mapped but empty memory.
    pub fn new(
        pool: &Arc<BlockPool>,
        engine: &Arc<TransferEngine>,
        spare_bytes_max: u64,
    ) -> Result<Self, CudaError> {
        let blocks = (pool.usage().limit_bytes / BLOCK_BYTES).saturating_mul(REACH).max(1);
        let range = AddressRange::reserve(pool, blocks.saturating_mul(BLOCK_BYTES))?;
        let map = BlockMap::new(BLOCK_BYTES, blocks);
        let spare = BTreeSet::new();
        let ledger = TensorLedger::new();
        let state = TensorStoreState { range, map, spare, spare_bytes_max, ledger, now_ns: 0 };
        Ok(Self(Arc::new(TensorStoreShared { state: Arc::new(Mutex::new(state)), engine: engine.clone() })))
    }

    /// Holds tensors, in groups that can be waited for separately, in order. Missing tensors are
    /// loaded by one transfer, which has started when this function returns. Tensors that other
    /// calls are loading already are awaited like the call's own. When room is short, unheld
    /// tensors are evicted.
    ///
    /// The result has the tensors in the order of the groups. On error nothing is held.
    pub fn acquire(&self, groups: Vec<Vec<Wanted>>) -> Result<Vec<Vec<TensorGuard>>, TransferError> {
        let mut state = self.0.state();
        let load = Arc::new(TensorLoad::default());
        let mut segments: Vec<Vec<Segment>> = Vec::with_capacity(groups.len());
        let mut held: Vec<Vec<TensorGuard>> = Vec::with_capacity(groups.len());
        let mut missing = BTreeSet::new();
        let mut result = Ok(());
        'groups: for (group, wanted) in groups.into_iter().enumerate() {
            segments.push(Vec::new());
            held.push(Vec::new());
            for Wanted { key, source } in wanted {
                let tensor = match state.find(&key, &source, &load) {
                    Some((id, span, brought)) => TensorGuard::new(&self.0, id, span, brought),
                    None => match state.place(
                        key,
                        source.bytes().len() as u64,
                        Brought { load: load.clone(), group },
                        &mut missing,
                    ) {
                        Ok((id, whole)) => {
                            let span = Span::new(whole.address(), source.bytes().len() as u64);
                            if let Some(segments) = segments.last_mut() {
                                segments.push(Segment { from: source, to: whole });
                            }
                            TensorGuard::new(&self.0, id, span, Brought { load: load.clone(), group })
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
            let transfer = self.0.engine.load(&segments, Box::new(self.0.state.clone()))?;
            let _ = load.transfer.set(transfer);
            Ok(())
        });
        drop(state);
        // On error the tensors drop here, outside the lock, including the newly placed ones: their
        // load has no transfer.
        result.map(|()| held)
    }

    /// Releases spare memory and then unheld tensors, least recently used first, until `bytes` of
    /// memory are back in the pool or none is left. Returns the bytes released: whole blocks, so it
    /// may be more, and 0 where other tensors share the blocks.
    pub fn reclaim(&self, bytes: u64) -> u64 {
        self.0.state().give_up(bytes)
    }

    /// Drops all unheld tensors. Their memory stays mapped for the next load, up to the limit on
    /// spare memory.
    pub fn trim(&self) {
        let mut state = self.0.state();
        while state.drop_oldest(u64::MAX).is_some() {}
    }

    /// Maps memory ahead of the next load, until `bytes` of it are spare or the limit is reached.
    /// For times when the device is idle, such as before serving and after a load.
    pub fn map_ahead(&self, bytes: u64) -> Result<(), CudaError> {
        self.0.state().map_ahead(bytes)
    }

    /// Returns spare memory to the pool.
    pub fn release_spare(&self) {
        self.0.state().keep_spare(0);
    }

    /// Drops tensors that have been unheld for `keep_alive_ns`, and returns their bytes. Callers
    /// should sweep every few seconds; the store uses `now_ns` as the current time until the next
    /// call.
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

    /// Current usage.
    #[must_use]
    pub fn usage(&self) -> TensorStoreUsage {
        let state = self.0.state();
        let (held_bytes, idle_bytes) = state.ledger.bytes();
        TensorStoreUsage {
            held_bytes,
            idle_bytes,
            mapped_bytes: state.range.mapped_bytes(),
            spare_bytes: state.spare.len() as u64 * BLOCK_BYTES,
        }
    }

    /// Whether a tensor is loaded or being loaded.
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

impl TensorStoreShared {
    fn state(&self) -> MutexGuard<'_, TensorStoreState> {
        // Consistent between any two statements that can panic.
        self.state.lock()
    }
}
