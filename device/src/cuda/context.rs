//! CUDA contexts: a process's handle of one device.
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

/// An open device. Everything on the device belongs to its context, and keeps the context alive.
/// One context per process and device is enough; further ones share the driver's primary context.
///
/// A fault ends the context permanently: see [`CudaError::ContextLost`].
pub struct Context {
    driver: Arc<Driver>,
    device: CUdevice,
    handle: CUcontext,
    info: DeviceInfo,
    lost: AtomicBool,
}

/// Memory of a device over all processes, as the driver counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free bytes.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}

// SAFETY: the handle of a context may be used by several threads at once: the driver takes its own
// locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(driver: Arc<Driver>, info: DeviceInfo) -> Result<Arc<Self>, CudaError> {
        let device = handle(&driver, info.ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` outlives the call; the retained context is released on drop.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        Ok(Arc::new(Self { driver, device, handle: context, info, lost: AtomicBool::new(false) }))
    }

    /// Properties of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether a fault that ended the context has been seen.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Makes the context current for the calling thread, for libraries that need this. This crate's
    /// functions do not.
    pub fn make_current(&self) -> Result<(), CudaError> {
        self.call(|_| Ok(()))
    }

    /// Waits until the device has finished all of its work. Blocks for as long as the device hangs:
    /// callers that need a limit must watch from another process.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the call has no arguments.
        self.call(|driver| unsafe { driver.cuCtxSynchronize() })
    }

    /// Total and free memory of the device.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        let mut free = 0;
        let mut total = 0;
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

    /// Calls the driver with this context current, and records whether it is found lost.
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

    /// Calls the driver to release a resource. A failure has no remedy, so it is only logged; in a
    /// lost context every release fails.
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
        // SAFETY: retained once, in `open`; every other object of the context holds an `Arc` of it,
        // so all of them were dropped.
        self.release("context", |driver| unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.device) });
    }
}
