//! Memory for a few small, long-lived objects.
#![allow(unsafe_code, reason = "the driver is called")]

use super::span::Span;
use crate::cuda::context::Context;
use crate::cuda::error::{CudaError, OUT_OF_MEMORY, OutOfMemory};
use std::sync::Arc;

/// Memory from the driver, outside any pool and not counted by one: for small objects that live as
/// long as the context. The contents are undefined at first.
///
/// Allocating and freeing may wait for the whole device.
#[derive(Debug)]
pub struct Allocation {
    context: Arc<Context>,
    span: Span,
}

impl Allocation {
    /// Allocates `bytes` bytes, at least one, aligned to 256.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let mut address = 0;
        let len = usize::try_from(bytes.max(1)).map_err(|error| CudaError::Invalid(error.to_string()))?;
        // SAFETY: `address` outlives the call; the allocation is freed on drop.
        let allocated = context.call(|driver| unsafe { driver.cuMemAlloc_v2(&mut address, len) });
        allocated.map_err(|error| device_full(context, error, bytes))?;
        Ok(Self { context: context.clone(), span: Span::new(address, bytes) })
    }

    /// The whole allocation.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the driver waits for work that may use it.
        self.context.release("memory", |driver| unsafe { driver.cuMemFree_v2(self.span.address()) });
    }
}

/// Converts a driver error of an allocation: if the device is out of memory, the result states the
/// missing bytes.
pub(super) fn device_full(context: &Context, error: CudaError, asked_bytes: u64) -> CudaError {
    if !error.is(OUT_OF_MEMORY) {
        return error;
    }
    let Ok(memory) = context.memory() else { return error };
    CudaError::OutOfMemory(OutOfMemory {
        asked_bytes,
        // Free memory may be fragmented: then the whole request counts as missing.
        missing_bytes: asked_bytes
            .checked_sub(memory.free_bytes)
            .filter(|bytes| *bytes > 0)
            .unwrap_or(asked_bytes),
        used_bytes: memory.total_bytes.saturating_sub(memory.free_bytes),
        capacity_bytes: memory.total_bytes,
    })
}
