//! Memory for a few small things that stay.
#![allow(unsafe_code, reason = "the driver is called")]

use super::span::Span;
use crate::cuda::context::Context;
use crate::cuda::error::{CudaError, OUT_OF_MEMORY, OutOfMemory};
use std::sync::Arc;

/// Memory from the driver, outside any pool and uncounted by it: for what is small and lasts as long as the context. Its contents are undefined.
///
/// Getting it and letting go of it may wait for the whole device.
#[derive(Debug)]
pub struct Allocation {
    context: Arc<Context>,
    span: Span,
}

impl Allocation {
    /// Get `bytes` bytes, at least one, aligned to 256.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let mut address = 0;
        let len = usize::try_from(bytes.max(1)).map_err(|error| CudaError::Invalid(error.to_string()))?;
        // SAFETY: `address` outlives the call; what is allocated is freed on drop.
        let allocated = context.call(|driver| unsafe { driver.cuMemAlloc_v2(&mut address, len) });
        allocated.map_err(|error| device_full(context, error, bytes))?;
        Ok(Self { context: Arc::clone(context), span: Span::new(address, bytes) })
    }

    /// All of it.
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

/// What an error of the driver means to somebody who asked for memory: where there is none, how much is missing.
pub(super) fn device_full(context: &Context, error: CudaError, asked_bytes: u64) -> CudaError {
    if !error.is(OUT_OF_MEMORY) {
        return error;
    }
    let Ok(memory) = context.memory() else { return error };
    CudaError::OutOfMemory(OutOfMemory {
        asked_bytes,
        // Free memory may be in pieces of no use: then what was asked for is missing as a whole.
        missing_bytes: asked_bytes
            .checked_sub(memory.free_bytes)
            .filter(|bytes| *bytes > 0)
            .unwrap_or(asked_bytes),
        used_bytes: memory.total_bytes.saturating_sub(memory.free_bytes),
        capacity_bytes: memory.total_bytes,
    })
}
