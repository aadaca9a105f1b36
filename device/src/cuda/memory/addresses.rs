//! Reserved addresses, and what is mapped into them.
#![allow(unsafe_code, reason = "the driver is called")]

use super::block::{BLOCK_BYTES, Block, location};
use super::span::Span;
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::{CUmemAccess_flags, CUmemAccessDesc};
use std::ops::Range;
use std::sync::Arc;

/// A run of reserved addresses, in blocks. Reserving costs no memory. Before it is dropped, everything is unmapped.
#[derive(Debug)]
pub(super) struct Addresses {
    context: Arc<Context>,
    span: Span,
}

impl Addresses {
    /// Reserve addresses for `bytes` bytes, rounded up to blocks.
    pub(super) fn reserve(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let bytes = bytes.max(1).checked_next_multiple_of(BLOCK_BYTES);
        let bytes = bytes.ok_or_else(|| CudaError::Invalid("no device has so many addresses".to_owned()))?;
        let len = usize::try_from(bytes).map_err(|error| CudaError::Invalid(error.to_string()))?;
        let mut address = 0;
        // SAFETY: `address` outlives the call; what is reserved is freed on drop.
        context.call(|driver| unsafe {
            driver.cuMemAddressReserve(&mut address, len, BLOCK_BYTES as usize, 0, 0)
        })?;
        Ok(Self { context: Arc::clone(context), span: Span::new(address, bytes) })
    }

    /// All of them, with memory behind them or not.
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// The block at `place`, which lies within them.
    pub(super) fn at(&self, place: usize) -> Span {
        Span::new(self.span.address() + place as u64 * BLOCK_BYTES, BLOCK_BYTES)
    }

    /// Map a block to `place`, where there is none. The driver keeps its memory until that is unmapped.
    pub(super) fn map(&self, place: usize, block: &Block) -> Result<(), CudaError> {
        let (address, bytes) = (self.at(place).address(), BLOCK_BYTES as usize);
        // SAFETY: the addresses are reserved by us, and nothing is mapped there.
        self.context.call(|driver| unsafe { driver.cuMemMap(address, bytes, 0, block.handle(), 0) })
    }

    /// Let the device use what is mapped at all of `places`.
    pub(super) fn open(&self, places: Range<usize>, flags: CUmemAccess_flags) -> Result<(), CudaError> {
        let access = CUmemAccessDesc { location: location(&self.context), flags };
        let (address, bytes) = (self.at(places.start).address(), places.len() * BLOCK_BYTES as usize);
        // SAFETY: all of it is mapped; `access` outlives the call.
        self.context.call(|driver| unsafe { driver.cuMemSetAccess(address, bytes, &access, 1) })
    }

    /// Take away what is mapped at `place`, which nothing uses any more.
    pub(super) fn unmap(&self, place: usize) {
        let (address, bytes) = (self.at(place).address(), BLOCK_BYTES as usize);
        // SAFETY: mapped by us, whole; nothing uses it any more: the caller's part.
        self.context.release("mapping", |driver| unsafe { driver.cuMemUnmap(address, bytes) });
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let (address, bytes) = (self.span.address(), self.span.bytes());
        // SAFETY: reserved in `reserve`; nothing is mapped there any more.
        self.context.release("addresses", |driver| unsafe {
            driver.cuMemAddressFree(address, usize::try_from(bytes).unwrap_or(0))
        });
    }
}
