//! Places of intermediates.

use super::STORE;
use super::ledger::IntermediateLedger;
use crate::cuda::error::CudaError;
use crate::cuda::event::Event;
use crate::cuda::memory::{AddressRange, BLOCK_BYTES, BlockMap, DemandEstimate, MemoryOwner, Span};
use crate::cuda::stream::Stream;
use crate::{Buffer, share_of_free_bytes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Memory of a store, and its intermediates.
pub(super) struct CommState {
    pub(super) range: AddressRange,
    pub(super) map: BlockMap,
    /// Empty blocks that still have memory.
    pub(super) idle: BTreeSet<usize>,
    pub(super) idle_bytes_max: u64,
    /// The most memory that intermediates have needed at once recently.
    pub(super) demand: DemandEstimate,
    pub(super) now_ns: u64,
    pub(super) ledger: IntermediateLedger<KeptIntermediate>,
    pub(super) next_number: u64,
}

/// An intermediate, on the device or the host.
#[derive(Debug, Clone)]
pub(super) struct KeptIntermediate {
    pub(super) owner: MemoryOwner,
    pub(super) tier: IntermediateTier,
    /// Whether it was moved here from another device, to make room there.
    pub(super) is_guest: bool,
}

#[derive(Debug, Clone)]
pub(super) enum IntermediateTier {
    /// At an offset of the range; written once the event is reached.
    Device {
        offset: u64,
        span: Span,
        ready: Arc<Event>,
    },
    Host(Buffer),
}

impl CommState {
    /// Device memory that the store may use now, and the memory that it uses.
    pub(super) fn share(&self, free_percent_max: u64) -> (u64, u64) {
        let usage = self.range.pool().usage();
        let own = self.range.mapped_bytes();
        let share_bytes = share_of_free_bytes(usage.capacity_bytes, usage.used_bytes, own, free_percent_max);
        (share_bytes, self.map.used_bytes())
    }

    /// Copies `from` to a new place in the store, in the order of `stream`.
    pub(super) fn copy_in(
        &mut self,
        from: Span,
        stream: &Stream,
        now_ns: u64,
    ) -> Result<IntermediateTier, CudaError> {
        let ready = Arc::new(Event::new(stream.context())?);
        let no_place = || CudaError::Invalid("there is no place for so large an intermediate".to_owned());
        let placement = self.map.place(from.bytes()).ok_or_else(no_place)?;
        let offset = placement.offset;
        placement.new_blocks.iter().for_each(|block| _ = self.idle.remove(block));
        let first = placement.new_blocks.first().copied().unwrap_or(0);
        let end = placement.new_blocks.last().map_or(0, |last| last + 1);
        let copied = self.range.back(first..end, STORE, None).and_then(|()| {
            let span = self.range.span().slice(offset, from.bytes()).ok_or_else(no_place)?;
            stream.copy(from, span)?;
            stream.record(&ready)?;
            Ok(span)
        });
        self.now_ns = self.now_ns.max(now_ns);
        match copied {
            Ok(span) => {
                self.demand.used(self.block_bytes(), self.now_ns);
                Ok(IntermediateTier::Device { offset, span, ready })
            }
            Err(error) => {
                self.release(offset);
                Err(error)
            }
        }
    }

    pub(super) fn release(&mut self, offset: u64) {
        // After a copy that failed for lack of memory, some blocks have none.
        let free = self.map.free(offset).into_iter();
        self.idle.extend(free.filter(|block| self.range.is_mapped(*block)));
        let keep_bytes = self.keep_bytes();
        self.give_up_beyond(keep_bytes);
    }

    /// Returns up to `count` empty blocks that are not worth keeping any more to the pool. Returns
    /// whether there are more.
    pub(super) fn settle(&mut self, now_ns: u64, count: u64) -> bool {
        self.now_ns = self.now_ns.max(now_ns);
        let keep_bytes = self.keep_bytes();
        self.give_up_beyond(keep_bytes.max(self.idle_bytes().saturating_sub(count * BLOCK_BYTES)));
        self.idle_bytes() > keep_bytes
    }

    /// Returns empty blocks to the pool, until at most `bytes` are left.
    pub(super) fn give_up_beyond(&mut self, bytes: u64) {
        while self.idle.len() as u64 * BLOCK_BYTES > bytes {
            let Some(block) = self.idle.pop_last() else { return };
            self.range.release(block..block + 1);
        }
    }

    /// Bytes of empty blocks.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.idle.len() as u64 * BLOCK_BYTES
    }

    /// Bytes of empty blocks to keep: recent demand less the blocks in use.
    fn keep_bytes(&mut self) -> u64 {
        let demanded_bytes = self.demand.bytes(self.now_ns);
        demanded_bytes.saturating_sub(self.block_bytes()).min(self.idle_bytes_max)
    }

    /// Bytes of the blocks in use.
    fn block_bytes(&self) -> u64 {
        self.map.used_blocks() as u64 * BLOCK_BYTES
    }
}
