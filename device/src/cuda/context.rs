//! What a process holds of one device.
#![allow(unsafe_code, reason = "the driver is called")]

use super::devices::{DeviceInfo, handle};
use super::driver::Driver;
use super::error::CudaError;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::warn;

/// A device, held: everything on it belongs to its context, and keeps it alive. One per process and device is enough; more share the driver's own.
///
/// A fault ends it for good: see [`CudaError::ContextLost`].
pub struct Context {
    driver: Arc<Driver>,
    device: CUdevice,
    handle: CUcontext,
    info: DeviceInfo,
    lost: AtomicBool,
}

/// A device's memory, as the driver counts it: of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What nobody holds.
    pub free_bytes: u64,
    /// All there is.
    pub total_bytes: u64,
}

// SAFETY: the handle of a context may be used by any thread, and by several: the driver takes its own locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(driver: Arc<Driver>, info: DeviceInfo) -> Result<Arc<Self>, CudaError> {
        let device = handle(&driver, info.ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` outlives the call; what is retained is released on drop.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        Ok(Arc::new(Self { driver, device, handle: context, info, lost: AtomicBool::new(false) }))
    }

    /// What is known of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether a fault has been seen that ended the context.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Make it the calling thread's, for libraries that take it from there. What this crate does needs no such call.
    pub fn make_current(&self) -> Result<(), CudaError> {
        self.call(|_| Ok(()))
    }

    /// Wait until the device has done everything that it was given. A device that hangs keeps the caller: whoever needs an end
    /// to that watches from another process.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes nothing.
        self.call(|driver| unsafe { driver.cuCtxSynchronize() })
    }

    /// How much memory the device has, and how much of it is free.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call.
        self.call(|driver| unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    pub(super) fn handle(&self) -> CUcontext {
        self.handle
    }

    /// Whether both are the same context of the same device.
    pub(super) fn is(&self, other: &Self) -> bool {
        ptr::eq(self.handle, other.handle)
    }

    /// Call the driver with this context as the thread's own, and remember if it is found lost.
    pub(super) fn call<T>(&self, call: impl FnOnce(&Driver) -> Result<T, CudaError>) -> Result<T, CudaError> {
        // SAFETY: the handle is valid until the drop.
        let current = unsafe { self.driver.cuCtxSetCurrent(self.handle) };
        let result = current.and_then(|()| call(&self.driver));
        if let Err(error) = &result
            && error.is_context_lost()
        {
            self.lost.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Call the driver to let go of something. There is nobody to tell if that fails, and nothing to be done; in a lost context it always does.
    pub(super) fn release(&self, what: &'static str, call: impl FnOnce(&Driver) -> Result<(), CudaError>) {
        let was_lost = self.is_lost();
        if let Err(error) = self.call(call)
            && !was_lost
        {
            warn!(device = self.info.ordinal, what, %error, "device resource not released");
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.info.ordinal).field("lost", &self.is_lost()).finish()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`; everything else of the context holds an `Arc` of us and is gone.
        self.release("context", |driver| unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.device) });
    }
}
