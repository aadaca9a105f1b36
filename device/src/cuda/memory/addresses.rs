//! Reserved addresses, and the blocks mapped into them.
#![allow(unsafe_code, reason = "the driver is called")]

use super::block::{BLOCK_BYTES, DeviceBlock, location};
use super::span::Span;
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::{CUmemAccess_flags, CUmemAccessDesc};
use std::ops::Range;
use std::sync::Arc;

/// A range of reserved addresses, in blocks. Reserving costs no memory. All blocks must be unmapped
/// before it drops.
#[derive(Debug)]
pub(super) struct ReservedAddresses {
    context: Arc<Context>,
    span: Span,
}

impl ReservedAddresses {
    /// Reserves addresses for `bytes` bytes, rounded up to blocks.
    pub(super) fn reserve(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let bytes = bytes.max(1).checked_next_multiple_of(BLOCK_BYTES);
        let bytes = bytes.ok_or_else(|| CudaError::Invalid("no device has so many addresses".to_owned()))?;
        let len = usize::try_from(bytes).map_err(|error| CudaError::Invalid(error.to_string()))?;
        let mut address = 0;
        // SAFETY: `address` outlives the call; the reservation is freed on drop.
        context.call(|driver| unsafe {
            driver.cuMemAddressReserve(&mut address, len, BLOCK_BYTES as usize, 0, 0)
        })?;
        Ok(Self { context: context.clone(), span: Span::new(address, bytes) })
    }

    /// The whole range, mapped or not.
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// The block at `place`, which lies within the range.
    pub(super) fn at(&self, place: usize) -> Span {
        Span::new(self.span.address() + place as u64 * BLOCK_BYTES, BLOCK_BYTES)
    }

    /// Maps a block to `place`, which must be unmapped. The driver keeps its memory until the place
    /// is unmapped.
    pub(super) fn map(&self, place: usize, block: &DeviceBlock) -> Result<(), CudaError> {
        let address = self.at(place).address();
        let bytes = BLOCK_BYTES as usize;
        // SAFETY: the addresses are reserved by `self`, and unmapped.
        self.context.call(|driver| unsafe { driver.cuMemMap(address, bytes, 0, block.handle(), 0) })
    }

    /// Gives the device access to the mappings at all of `places`.
    pub(super) fn open(&self, places: Range<usize>, flags: CUmemAccess_flags) -> Result<(), CudaError> {
        let access = CUmemAccessDesc { location: location(&self.context), flags };
        let address = self.at(places.start).address();
        let bytes = places.len() * BLOCK_BYTES as usize;
        // SAFETY: all of it is mapped; `access` outlives the call.
        self.context.call(|driver| unsafe { driver.cuMemSetAccess(address, bytes, &access, 1) })
    }

    /// Unmaps the block at `place`, which no work uses any more.
    pub(super) fn unmap(&self, place: usize) {
        let address = self.at(place).address();
        let bytes = BLOCK_BYTES as usize;
        // SAFETY: mapped as a whole by `map`; the caller guarantees that no work uses it.
        self.context.release("mapping", |driver| unsafe { driver.cuMemUnmap(address, bytes) });
    }
}

impl Drop for ReservedAddresses {
    fn drop(&mut self) {
        let address = self.span.address();
        let bytes = self.span.bytes();
        // SAFETY: reserved in `reserve`; all blocks have been unmapped.
        self.context.release("addresses", |driver| unsafe {
            driver.cuMemAddressFree(address, usize::try_from(bytes).unwrap_or(0))
        });
    }
}
