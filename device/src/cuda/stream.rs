//! Streams: ordered work on a device.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::{CudaError, NOT_READY};
use super::event::Event;
use super::launch::{KernelParameters, LaunchConfig};
use super::module::Function;
use cudarc::driver::sys::CUstream;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// The stream is not ordered with the driver's default stream, which this crate does not use.
const NON_BLOCKING: u32 = 1;

/// Priority of a stream's kernels when streams compete for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Default priority.
    Normal,
    /// Ahead of streams with normal priority.
    High,
}

/// Work that the device does in the order in which it was added. Streams run concurrently, except
/// as ordered by [`Event`]s.
///
/// A stream that is dropped with remaining work ends once that work is done: all objects that the
/// work uses must live until then.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    handle: CUstream,
}

// SAFETY: the handle of a stream may be used by several threads at once: the driver takes its own
// locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream without work.
    pub fn new(context: &Arc<Context>, priority: Priority) -> Result<Self, CudaError> {
        let mut least: c_int = 0;
        let mut greatest: c_int = 0;
        let mut stream = ptr::null_mut();
        context.call(|driver| {
            // SAFETY: both outlive the call.
            unsafe { driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }?;
            let priority = match priority {
                Priority::Normal => least,
                Priority::High => greatest,
            };
            // SAFETY: `stream` outlives the call; the created stream is destroyed on drop.
            unsafe { driver.cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, priority) }
        })?;
        Ok(Self { context: context.clone(), handle: stream })
    }

    /// The context of the stream.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until all work in the stream is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is valid until the drop.
        self.context.call(|driver| unsafe { driver.cuStreamSynchronize(self.handle) })
    }

    /// Whether all work in the stream is done.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is valid until the drop.
        match self.context.call(|driver| unsafe { driver.cuStreamQuery(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.is(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records `event` at the end of the work added so far.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners.
        self.context.call(|driver| unsafe { driver.cuEventRecord(event.handle(), self.handle) })
    }

    /// Makes later work wait for the current recording of `event`; no wait if it was never
    /// recorded.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners.
        self.context.call(|driver| unsafe { driver.cuStreamWaitEvent(self.handle, event.handle(), 0) })
    }

    /// Launches `function` with `parameters`, whose values are copied during the call.
    ///
    /// # Safety
    /// The parameters match those of the function in order, type and size. Memory whose address is
    /// among them, or is reachable from there, lives until the work is done, has the size that the
    /// kernel assumes, and is used in the meantime only by work ordered with this launch. The
    /// function's module is not dropped before the work is done.
    pub unsafe fn launch(
        &self,
        function: &Function,
        launch: &LaunchConfig,
        parameters: &KernelParameters,
    ) -> Result<(), CudaError> {
        if !function.context().is(&self.context) {
            return Err(CudaError::Invalid(
                "a function was launched on a stream of another device".to_owned(),
            ));
        }
        let mut addresses = parameters.addresses();
        let [grid_x, grid_y, grid_z] = launch.grid;
        let [block_x, block_y, block_z] = launch.block;
        // SAFETY: the handles are valid as long as their owners; the addresses point to values that
        // outlive the call; the rest is guaranteed by the caller.
        self.context.call(|driver| unsafe {
            driver.cuLaunchKernel(
                function.handle(),
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                launch.shared_bytes,
                self.handle,
                addresses.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`; the driver finishes the remaining work.
        self.context.release("stream", |driver| unsafe { driver.cuStreamDestroy_v2(self.handle) });
    }
}
