//! What the runs of one slot work in.

use super::block::BLOCK_BYTES;
use super::demand::Demand;
use super::pool::BlockPool;
use super::range::AddressRange;
use super::span::{Owner, Span};
use crate::cuda::error::CudaError;
use crate::cuda::stream::Stream;
use std::sync::Arc;

/// How often a slot's demand is looked at anew, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

/// The memory of a slot: addresses that stay for as long as the slot, so that recorded graphs stay right, and as much memory behind them as its runs have
/// needed lately. All models that run in the slot share it, one run after the other.
#[derive(Debug)]
pub struct SlotMemory {
    range: AddressRange,
    stream: Arc<Stream>,
    demand: Demand,
}

impl SlotMemory {
    /// Reserve addresses for runs that take up to `bytes_max`, on `stream`, which all of them are given to.
    pub fn new(
        pool: &Arc<BlockPool>,
        stream: &Arc<Stream>,
        bytes_max: u64,
        now_ns: u64,
    ) -> Result<Self, CudaError> {
        let range = AddressRange::reserve(pool, bytes_max)?;
        Ok(Self { range, stream: Arc::clone(stream), demand: Demand::new(INTERVAL_NS, now_ns) })
    }

    /// Have `bytes` bytes ready for a run of `owner`: the first of the slot's addresses, with nobody else's bytes in them. On error the slot is as before.
    pub fn prepare(&mut self, bytes: u64, owner: Owner, now_ns: u64) -> Result<Span, CudaError> {
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

    /// Give back what is not worth holding any more, and say how much that was. Call it now and then, between runs: it waits for the stream if there is
    /// something to give back.
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

    /// Give back everything, as when others need the memory more. Waits for the stream.
    pub fn release(&mut self) -> Result<u64, CudaError> {
        let before = self.range.mapped_bytes();
        if before > 0 {
            self.stream.synchronize()?;
            self.range.release(0..usize::MAX);
        }
        Ok(before)
    }

    /// Where its addresses begin.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.range.span().address()
    }

    /// How much memory it holds.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.range.mapped_bytes()
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // Runs may still be under way. If waiting fails, the context is lost, and they are over.
        let _ = self.stream.synchronize();
    }
}
