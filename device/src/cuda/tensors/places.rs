//! Places of tensors, and their loads.

use super::STORE;
use super::ledger::{TensorEntry, TensorKey, TensorLedger};
use crate::cuda::error::{CudaError, OutOfMemory};
use crate::cuda::memory::{AddressRange, BLOCK_BYTES, BlockMap, Span};
use crate::cuda::transfer::{CopySource, Transfer};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Memory of a store, and its tensors.
pub(super) struct TensorStoreState {
    pub(super) range: AddressRange,
    pub(super) map: BlockMap,
    /// Empty blocks that still have memory: the next load finds them mapped.
    pub(super) spare: BTreeSet<usize>,
    pub(super) spare_bytes_max: u64,
    pub(super) ledger: TensorLedger<Brought>,
    pub(super) now_ns: u64,
}

/// The part of a load that a tensor arrived with.
#[derive(Debug, Clone)]
pub(super) struct Brought {
    pub(super) load: Arc<TensorLoad>,
    pub(super) group: usize,
}

/// The load of tensors that were requested together.
#[derive(Debug, Default)]
pub(super) struct TensorLoad {
    /// Set before other threads see the load.
    pub(super) transfer: OnceLock<Arc<Transfer>>,
    /// Number of its tensors that are held.
    pub(super) held: AtomicUsize,
    /// Whether the load brought wrong contents.
    condemned: AtomicBool,
}

impl TensorStoreState {
    /// Holds the tensor with this key, if it is loaded or being loaded.
    pub(super) fn find(
        &mut self,
        key: &TensorKey,
        source: &CopySource,
        current: &Arc<TensorLoad>,
    ) -> Option<(u64, Span, Brought)> {
        let (id, entry) = self.ledger.find(key)?;
        // A tensor requested twice in one call belongs to a load that is still being assembled.
        if !Arc::ptr_eq(&entry.load.load, current) && entry.load.load.failed() {
            return None;
        }
        // Places are rounded up; a tensor is as long as its source.
        let span = self.range.span().slice(entry.offset, source.bytes().len() as u64)?;
        let (entry, was_idle) = self.ledger.hold(id)?;
        if was_idle {
            entry.load.load.held.fetch_add(1, Ordering::Relaxed);
        }
        Some((id, span, entry.load.clone()))
    }

    /// Finds a place for a new tensor, and holds it. Returns the whole place, and adds the blocks
    /// that need memory to `missing`.
    pub(super) fn place(
        &mut self,
        key: TensorKey,
        bytes: u64,
        brought: Brought,
        missing: &mut BTreeSet<usize>,
    ) -> Result<(u64, Span), CudaError> {
        let no_place = |state: &Self| CudaError::OutOfMemory(state.out_of_addresses(bytes));
        let placement = loop {
            if let Some(placement) = self.map.place(bytes) {
                break placement;
            }
            self.drop_oldest(u64::MAX).ok_or_else(|| no_place(self))?;
        };
        let whole = self.range.span().slice(placement.offset, placement.bytes);
        let Some(whole) = whole else {
            self.map.free(placement.offset);
            return Err(no_place(self));
        };
        for block in placement.new_blocks {
            if !self.spare.remove(&block) {
                missing.insert(block);
            }
        }
        brought.load.held.fetch_add(1, Ordering::Relaxed);
        let id = self.ledger.add(key, placement.offset, placement.bytes, brought);
        Ok((id, whole))
    }

    /// Maps memory for all blocks that need it, together. If memory is short, releases spare blocks
    /// first, then unheld tensors.
    pub(super) fn back(&mut self, missing: &BTreeSet<usize>) -> Result<(), CudaError> {
        loop {
            match self.range.back(missing.iter().copied(), STORE, None) {
                Err(CudaError::OutOfMemory(lacking)) if self.give_up(lacking.missing_bytes) > 0 => {}
                backed => return backed,
            }
        }
    }

    /// Returns memory to the pool: spare blocks, then unheld tensors, least recently used first.
    /// Returns the bytes released: less than `bytes` if there is no more, or more, because of whole
    /// blocks.
    pub(super) fn give_up(&mut self, bytes: u64) -> u64 {
        let before = self.range.mapped_bytes();
        let given_up = |state: &Self| before - state.range.mapped_bytes();
        while given_up(self) < bytes {
            let Some(block) = self.spare.pop_last() else {
                if self.drop_oldest(u64::MAX).is_none() {
                    break;
                }
                continue;
            };
            self.range.release(block..block + 1);
        }
        given_up(self)
    }

    /// Maps memory ahead, up to `bytes` and the limit on spare memory, if the pool has it.
    pub(super) fn map_ahead(&mut self, bytes: u64) -> Result<(), CudaError> {
        let bytes = bytes.min(self.spare_bytes_max);
        let count = usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        let count = count.saturating_sub(self.spare.len());
        // The lowest unmapped blocks, where the next tensors will be placed.
        let unmapped = (0..self.range.blocks()).filter(|block| !self.range.is_mapped(*block));
        let blocks: Vec<usize> = unmapped.take(count).collect();
        match self.range.back(blocks.iter().copied(), STORE, None) {
            Ok(()) => self.spare.extend(blocks),
            // Other consumers need the memory more.
            Err(CudaError::OutOfMemory(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Drops the longest unheld tensor, if it has been unheld since `limit_ns` or earlier. Returns
    /// its bytes.
    pub(super) fn drop_oldest(&mut self, limit_ns: u64) -> Option<u64> {
        let oldest = self.ledger.idle(|brought| brought.load.ended()).next();
        let (_, id) = oldest.filter(|(since_ns, _)| *since_ns <= limit_ns)?;
        let entry = self.ledger.remove(id)?;
        self.free(&entry);
        Some(entry.bytes)
    }

    fn free(&mut self, entry: &TensorEntry<Brought>) {
        let blocks = self.map.free(entry.offset).into_iter();
        // After a load that failed for lack of memory, some blocks have none.
        self.spare.extend(blocks.filter(|block| self.range.is_mapped(*block)));
        self.keep_spare(self.spare_bytes_max);
    }

    /// Returns spare memory to the pool, except `bytes`.
    pub(super) fn keep_spare(&mut self, bytes: u64) {
        while self.spare.len() as u64 * BLOCK_BYTES > bytes {
            let Some(block) = self.spare.pop_last() else { return };
            self.range.release(block..block + 1);
        }
    }

    pub(super) fn release(&mut self, id: u64) {
        let Some((entry, is_idle)) = self.ledger.release(id, self.now_ns) else { return };
        if !is_idle {
            return;
        }
        let load = entry.load.load.clone();
        if load.held.fetch_sub(1, Ordering::Relaxed) == 1 {
            load.cancel();
        }
        // A tensor that is unusable is dropped immediately, unless it is still being written.
        if load.failed()
            && load.ended()
            && let Some(entry) = self.ledger.remove(id)
        {
            self.free(&entry);
        }
    }

    fn out_of_addresses(&self, bytes: u64) -> OutOfMemory {
        let usage = self.range.pool().usage();
        OutOfMemory {
            asked_bytes: bytes,
            missing_bytes: bytes,
            used_bytes: usage.used_bytes,
            capacity_bytes: usage.capacity_bytes,
        }
    }
}

impl TensorLoad {
    /// Whether its tensors will never arrive, or have wrong contents.
    pub(super) fn failed(&self) -> bool {
        let failed =
            |transfer: &Arc<Transfer>| transfer.is_cancelled() || matches!(transfer.end(), Some(Err(_)));
        self.condemned.load(Ordering::Acquire) || self.transfer.get().is_none_or(failed)
    }

    pub(super) fn condemn(&self) {
        self.condemned.store(true, Ordering::Release);
    }

    /// Whether no copy writes to its tensors any more.
    fn ended(&self) -> bool {
        self.transfer.get().is_none_or(|transfer| transfer.end().is_some())
    }

    /// Cancels the load, which no caller waits for any more.
    fn cancel(&self) {
        if let Some(transfer) = self.transfer.get().filter(|transfer| transfer.end().is_none()) {
            transfer.cancel();
        }
    }
}
