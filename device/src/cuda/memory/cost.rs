//! Time that the driver takes to create, map and open one block of memory, by block size.
#![allow(unsafe_code, reason = "the driver is called")]

use super::addresses::ReservedAddresses;
use super::block::{BLOCK_BYTES, DeviceBlock};
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::CUmemAccess_flags_enum as Access;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Host time of each driver call that maps one block of memory to reserved addresses, or unmaps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingCost {
    /// `cuMemCreate`.
    pub create: Duration,
    /// `cuMemMap`.
    pub map: Duration,
    /// `cuMemSetAccess`.
    pub set_access: Duration,
    /// `cuMemUnmap`.
    pub unmap: Duration,
    /// `cuMemRelease`.
    pub release: Duration,
}

impl MappingCost {
    /// Time of the first three calls together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.create + self.map + self.set_access
    }
}

/// A block mapped at the start of `addresses`. Unmapped on drop.
struct Mapping<'a> {
    context: &'a Context,
    addresses: &'a ReservedAddresses,
}

/// Measures creating, mapping, opening, unmapping and releasing one block of `bytes`, a multiple of
/// [`BLOCK_BYTES`].
pub fn mapping_cost(context: &Arc<Context>, bytes: u64) -> Result<MappingCost, CudaError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(CudaError::Invalid(format!("{bytes} bytes are no multiple of {BLOCK_BYTES}")));
    }
    let addresses = ReservedAddresses::reserve(context, bytes)?;
    let began = Instant::now();
    let block = DeviceBlock::with_bytes(context, bytes)?;
    let create = began.elapsed();
    let began = Instant::now();
    let mapping = Mapping::new(context, &addresses, &block)?;
    let map = began.elapsed();
    let blocks = usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
    let began = Instant::now();
    addresses.open(0..blocks, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
    let set_access = began.elapsed();
    let began = Instant::now();
    drop(mapping);
    let unmap = began.elapsed();
    let began = Instant::now();
    drop(block);
    Ok(MappingCost { create, map, set_access, unmap, release: began.elapsed() })
}

impl<'a> Mapping<'a> {
    fn new(
        context: &'a Context,
        addresses: &'a ReservedAddresses,
        block: &DeviceBlock,
    ) -> Result<Self, CudaError> {
        let span = addresses.span();
        let bytes = usize::try_from(span.bytes()).unwrap_or_default();
        // SAFETY: the caller has reserved the addresses, which are as long as the block and
        // unmapped.
        context.call(|driver| unsafe { driver.cuMemMap(span.address(), bytes, 0, block.handle(), 0) })?;
        Ok(Self { context, addresses })
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        let span = self.addresses.span();
        let bytes = usize::try_from(span.bytes()).unwrap_or_default();
        // SAFETY: mapped as a whole in `new`; no work uses it.
        self.context.release("mapping", |driver| unsafe { driver.cuMemUnmap(span.address(), bytes) });
    }
}
