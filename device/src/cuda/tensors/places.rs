//! Where tensors are, and what brought them there.

use super::STORE;
use super::ledger::{Entry, Ledger, TensorKey};
use crate::cuda::error::{CudaError, OutOfMemory};
use crate::cuda::memory::{AddressRange, BlockMap, Span};
use crate::cuda::transfer::{Source, Transfer};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The memory of a store, and what is in it.
pub(super) struct State {
    pub(super) range: AddressRange,
    pub(super) map: BlockMap,
    pub(super) ledger: Ledger<Brought>,
    pub(super) now_ns: u64,
}

/// The part of a load that a tensor came with.
#[derive(Debug, Clone)]
pub(super) struct Brought {
    pub(super) load: Arc<Load>,
    pub(super) group: usize,
}

/// What brings tensors that were asked for together.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Set before anybody else sees the load.
    pub(super) transfer: OnceLock<Arc<Transfer>>,
    /// How many of its tensors somebody holds.
    pub(super) held: AtomicUsize,
    /// It brought something else than was asked for.
    condemned: AtomicBool,
}

impl State {
    /// Hold the tensor of that key, if it is there or on its way.
    pub(super) fn find(
        &mut self,
        key: &TensorKey,
        source: &Source,
        current: &Arc<Load>,
    ) -> Option<(u64, Span, Brought)> {
        let (id, entry) = self.ledger.find(key)?;
        // What is asked for twice together comes with a load that is still being put together.
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

    /// Make a place for a new tensor, and hold it. Gives all of the place.
    pub(super) fn place(
        &mut self,
        key: TensorKey,
        bytes: u64,
        brought: Brought,
    ) -> Result<(u64, Span), CudaError> {
        loop {
            let error = match self.map.place(bytes) {
                None => CudaError::OutOfMemory(self.out_of_addresses(bytes)),
                Some(placement) => {
                    let first = placement.new_blocks.first().copied().unwrap_or(0);
                    let end = placement.new_blocks.last().map_or(0, |last| last + 1);
                    let backed = self.range.back(first..end, STORE, None);
                    let whole = self.range.span().slice(placement.offset, placement.bytes);
                    match (backed, whole) {
                        (Ok(()), Some(whole)) => {
                            brought.load.held.fetch_add(1, Ordering::Relaxed);
                            let id = self.ledger.add(key, placement.offset, placement.bytes, brought);
                            return Ok((id, whole));
                        }
                        (backed, _) => {
                            self.map.free(placement.offset);
                            backed
                                .err()
                                .unwrap_or_else(|| CudaError::OutOfMemory(self.out_of_addresses(bytes)))
                        }
                    }
                }
            };
            if !matches!(error, CudaError::OutOfMemory(_)) || self.drop_oldest(u64::MAX).is_none() {
                return Err(error);
            }
        }
    }

    /// Let go of the tensor that nobody has held for longest, if that is since `limit_ns` or before. Gives how many bytes it had.
    pub(super) fn drop_oldest(&mut self, limit_ns: u64) -> Option<u64> {
        let oldest = self.ledger.idle(|brought| brought.load.ended()).next();
        let (_, id) = oldest.filter(|(since_ns, _)| *since_ns <= limit_ns)?;
        let entry = self.ledger.remove(id)?;
        self.free(&entry);
        Some(entry.bytes)
    }

    fn free(&mut self, entry: &Entry<Brought>) {
        for block in self.map.free(entry.offset) {
            self.range.release(block..block + 1);
        }
    }

    pub(super) fn release(&mut self, id: u64) {
        let Some((entry, is_idle)) = self.ledger.release(id, self.now_ns) else { return };
        if !is_idle {
            return;
        }
        let load = Arc::clone(&entry.load.load);
        if load.held.fetch_sub(1, Ordering::Relaxed) == 1 {
            load.cancel();
        }
        // What is not good for anybody any more goes at once, unless it is still being written to.
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

impl Load {
    /// Whether its tensors will never be there, or are not what they should be.
    pub(super) fn failed(&self) -> bool {
        let failed =
            |transfer: &Arc<Transfer>| transfer.is_cancelled() || matches!(transfer.end(), Some(Err(_)));
        self.condemned.load(Ordering::Acquire) || self.transfer.get().is_none_or(failed)
    }

    pub(super) fn condemn(&self) {
        self.condemned.store(true, Ordering::Release);
    }

    /// Whether nothing writes to its tensors any more.
    fn ended(&self) -> bool {
        self.transfer.get().is_none_or(|transfer| transfer.end().is_some())
    }

    /// Nobody waits for it any more.
    fn cancel(&self) {
        if let Some(transfer) = self.transfer.get().filter(|transfer| transfer.end().is_none()) {
            transfer.cancel();
        }
    }
}
