//! Time that the driver takes to create, map and open one block of memory, by block size.
#![allow(unsafe_code, reason = "the driver is called")]

use super::addresses::ReservedAddresses;
use super::block::{BLOCK_BYTES, DeviceBlock};
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::CUmemAccess_flags_enum as Access;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Host time of each driver call that puts one block of memory behind reserved addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingCost {
    /// `cuMemCreate`.
    pub create: Duration,
    /// `cuMemMap`.
    pub map: Duration,
    /// `cuMemSetAccess`.
    pub set_access: Duration,
}

impl MappingCost {
    /// Time of the three calls together.
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

/// Measures creating, mapping and opening one block of `bytes`, a multiple of [`BLOCK_BYTES`], and
/// releases it again.
pub fn mapping_cost(context: &Arc<Context>, bytes: u64) -> Result<MappingCost, CudaError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(CudaError::Invalid(format!("{bytes} bytes are no multiple of {BLOCK_BYTES}")));
    }
    let addresses = ReservedAddresses::reserve(context, bytes)?;
    let began = Instant::now();
    let block = DeviceBlock::with_bytes(context, bytes)?;
    let create = began.elapsed();
    let began = Instant::now();
    let _mapping = Mapping::new(context, &addresses, &block)?;
    let map = began.elapsed();
    let blocks = usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
    let began = Instant::now();
    addresses.open(0..blocks, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
    Ok(MappingCost { create, map, set_access: began.elapsed() })
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
