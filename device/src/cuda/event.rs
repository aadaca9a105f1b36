//! Events: points in the work of a stream.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::{CudaError, NOT_READY};
use cudarc::driver::sys::CUevent;
use std::ptr;
use std::sync::Arc;

/// Waiting threads sleep instead of spinning.
const BLOCKING_SYNC: u32 = 1;
/// No timestamp is recorded, which makes the event cheaper.
const DISABLE_TIMING: u32 = 2;

/// A point in the work of a stream, which other streams and threads can wait for. It counts as
/// reached until it is [recorded](super::Stream::record). Recording it again moves it to the later
/// point; existing waits keep the earlier one.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

// SAFETY: the handle of an event may be used by several threads at once: the driver takes its own
// locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that orders work.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_flags(context, BLOCKING_SYNC | DISABLE_TIMING)
    }

    /// Creates an event that also records the time.
    pub fn with_timing(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_flags(context, BLOCKING_SYNC)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Self, CudaError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` outlives the call; the created event is destroyed on drop.
        context.call(|driver| unsafe { driver.cuEventCreate(&mut event, flags) })?;
        Ok(Self { context: context.clone(), handle: event })
    }

    /// Whether the device has reached the event; an event that was never recorded counts as
    /// reached.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is valid until the drop.
        match self.context.call(|driver| unsafe { driver.cuEventQuery(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.is(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the device has reached the event.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is valid until the drop.
        self.context.call(|driver| unsafe { driver.cuEventSynchronize(self.handle) })
    }

    /// Device time from `start` to this event, in nanoseconds. Both events record the time, and
    /// have been reached.
    pub fn since_ns(&self, start: &Self) -> Result<u64, CudaError> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: both handles are valid as long as their owners; `milliseconds` outlives the call.
        self.context.call(|driver| unsafe {
            driver.cuEventElapsedTime(&mut milliseconds, start.handle, self.handle)
        })?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped; the driver's steps are half a microsecond"
        )]
        let ns = (f64::from(milliseconds).max(0.0) * 1e6) as u64;
        Ok(ns)
    }

    pub(super) fn handle(&self) -> CUevent {
        self.handle
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`; the driver still completes existing waits.
        self.context.release("event", |driver| unsafe { driver.cuEventDestroy_v2(self.handle) });
    }
}
