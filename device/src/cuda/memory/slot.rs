//! Memory of one run slot.

use super::block::BLOCK_BYTES;
use super::demand::DemandEstimate;
use super::pool::BlockPool;
use super::range::AddressRange;
use super::span::{MemoryOwner, Span};
use crate::cuda::error::CudaError;
use crate::cuda::stream::Stream;
use std::sync::Arc;

/// Interval between updates of a slot's demand, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Memory of a run slot: stable addresses for the slot's lifetime, so that recorded graphs stay
/// valid, backed by as much memory as recent runs have needed. All models that run in the slot
/// share it, one run after another.
#[derive(Debug)]
pub struct SlotMemory {
    range: AddressRange,
    stream: Arc<Stream>,
    demand: DemandEstimate,
}

impl SlotMemory {
    /// Reserves addresses for runs that take up to `bytes_max`. All runs of the slot use `stream`.
    pub fn new(
        pool: &Arc<BlockPool>,
        stream: &Arc<Stream>,
        bytes_max: u64,
        now_ns: u64,
    ) -> Result<Self, CudaError> {
        let range = AddressRange::reserve(pool, bytes_max)?;
        Ok(Self { range, stream: stream.clone(), demand: DemandEstimate::new(INTERVAL_NS, now_ns) })
    }

    /// Maps `bytes` bytes at the start of the slot's address range for a run of `owner`. Fills
    /// memory of other owners with zeroes before the run. If the memory cannot be mapped, the slot
    /// is unchanged.
    pub fn prepare(&mut self, bytes: u64, owner: MemoryOwner, now_ns: u64) -> Result<Span, CudaError> {
        let span = self.range.span().slice(0, bytes).ok_or_else(|| {
            let bytes_max = self.range.span().bytes();
            CudaError::Invalid(format!("a run takes {bytes} bytes, and a slot has at most {bytes_max}"))
        })?;
        let places = usize::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX);
        self.range.back(0..places, owner, Some(&self.stream))?;
        self.range.hand_over(bytes, owner, &self.stream)?;
        self.demand.used(bytes, now_ns);
        Ok(span)
    }

    /// Returns memory that is not worth holding any more to the pool, and reports how much. Call it
    /// occasionally, between runs: it waits for the stream if it returns memory.
    pub fn settle(&mut self, now_ns: u64) -> Result<u64, CudaError> {
        let keep = self.demand.bytes(now_ns).div_ceil(BLOCK_BYTES);
        let before = self.range.mapped_bytes();
        if before <= keep * BLOCK_BYTES {
            return Ok(0);
        }
        self.stream.synchronize()?;
        self.range.release(usize::try_from(keep).unwrap_or(usize::MAX)..usize::MAX);
        Ok(before - self.range.mapped_bytes())
    }

    /// Returns all memory to the pool, for example when other consumers need it more. Waits for the
    /// stream.
    pub fn release(&mut self) -> Result<u64, CudaError> {
        let before = self.range.mapped_bytes();
        if before > 0 {
            self.stream.synchronize()?;
            self.range.release(0..usize::MAX);
        }
        Ok(before)
    }

    /// Start of the slot's addresses.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.range.span().address()
    }

    /// Bytes of memory that the slot holds.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.range.mapped_bytes()
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // Runs may still be in progress. If waiting fails, the context is lost, and the runs have
        // ended.
        let _ = self.stream.synchronize();
    }
}
