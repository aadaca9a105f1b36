//! Work in order.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::{CudaError, NOT_READY};
use super::event::Event;
use super::launch::{Launch, Parameters};
use super::module::Function;
use cudarc::driver::sys::CUstream;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// The stream has no order with the driver's default stream, which nothing here uses.
const NON_BLOCKING: u32 = 1;

/// Which streams' kernels begin first where they compete for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// As others.
    Normal,
    /// Before others.
    High,
}

/// Work that the device does in the order in which it was given. Streams run beside each other, but for what [`Event`]s order.
///
/// Dropped with work left, it ends once that is done: what the work uses must live until then.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    handle: CUstream,
}

// SAFETY: the handle of a stream may be used by any thread, and by several: the driver takes its own locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream without work.
    pub fn new(context: &Arc<Context>, priority: Priority) -> Result<Self, CudaError> {
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        let mut stream = ptr::null_mut();
        context.call(|driver| {
            // SAFETY: both outlive the call.
            unsafe { driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }?;
            let priority = match priority {
                Priority::Normal => least,
                Priority::High => greatest,
            };
            // SAFETY: `stream` outlives the call; what is created is destroyed on drop.
            unsafe { driver.cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, priority) }
        })?;
        Ok(Self { context: Arc::clone(context), handle: stream })
    }

    /// What it runs on.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Wait until all its work is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is valid until the drop.
        self.context.call(|driver| unsafe { driver.cuStreamSynchronize(self.handle) })
    }

    /// Whether all its work is done.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is valid until the drop.
        match self.context.call(|driver| unsafe { driver.cuStreamQuery(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.is(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Make `event` the point that the work given so far ends at.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners.
        self.context.call(|driver| unsafe { driver.cuEventRecord(event.handle(), self.handle) })
    }

    /// Do what is given from now on only after `event` as it is recorded now; at once if it never was.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners.
        self.context.call(|driver| unsafe { driver.cuStreamWaitEvent(self.handle, event.handle(), 0) })
    }

    /// Run `function` with `parameters`, whose values are copied now.
    ///
    /// # Safety
    /// The parameters are those of the function, in order, type and size. Memory whose address is among them, or that is reached from there, lives until
    /// the work is done, is as large as the kernel takes it to be, and is meanwhile used by nobody whose work is not ordered with it. The function's
    /// module is not dropped before the work is done.
    pub unsafe fn launch(
        &self,
        function: &Function,
        launch: &Launch,
        parameters: &Parameters,
    ) -> Result<(), CudaError> {
        if !function.context().is(&self.context) {
            return Err(CudaError::Invalid(
                "a function was launched on a stream of another device".to_owned(),
            ));
        }
        let mut addresses = parameters.addresses();
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        // SAFETY: the handles are valid as long as their owners; the addresses are of values that outlive the call; the rest is the caller's part.
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
        // SAFETY: created in `new`; the driver finishes the work that is left.
        self.context.release("stream", |driver| unsafe { driver.cuStreamDestroy_v2(self.handle) });
    }
}
