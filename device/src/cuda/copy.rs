//! Stream-ordered copies and fills.
#![allow(unsafe_code, reason = "the driver is called, with addresses of host memory")]

use super::error::CudaError;
use super::memory::Span;
use super::stream::Stream;

impl Stream {
    /// Sets every byte of `to`.
    pub fn fill(&self, to: Span, value: u8) -> Result<(), CudaError> {
        let Some(bytes) = size(to) else { return Ok(()) };
        // SAFETY: spans are memory on devices, on whose contents no Rust code relies.
        self.context()
            .call(|driver| unsafe { driver.cuMemsetD8Async(to.address(), value, bytes, self.handle()) })
    }

    /// Copies `from` to `to`, both on this device and of the same size.
    pub fn copy(&self, from: Span, to: Span) -> Result<(), CudaError> {
        same_size(from.bytes(), to.bytes())?;
        let Some(bytes) = size(to) else { return Ok(()) };
        // SAFETY: spans are memory on devices, on whose contents no Rust code relies.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, self.handle())
        })
    }

    /// Copies `from`, which is on the device of `source`, to `to` on this device.
    pub fn copy_from_device(&self, source: &Stream, from: Span, to: Span) -> Result<(), CudaError> {
        same_size(from.bytes(), to.bytes())?;
        let Some(bytes) = size(to) else { return Ok(()) };
        let here = self.context().handle();
        let there = source.context().handle();
        // SAFETY: spans are memory on devices, on whose contents no Rust code relies; both contexts
        // live as long as their streams.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyPeerAsync(to.address(), here, from.address(), there, bytes, self.handle())
        })
    }

    /// Copies `from` to the device, and waits until the copy and all earlier work are done.
    pub fn write(&self, from: &[u8], to: Span) -> Result<(), CudaError> {
        same_size(from.len() as u64, to.bytes())?;
        // SAFETY: `from` is borrowed until the copy is done. If waiting fails, the context is lost,
        // and the device copies no more.
        unsafe { self.copy_from_host(from.as_ptr(), to) }?;
        self.synchronize()
    }

    /// Copies `from` to the host, and waits until the copy and all earlier work are done.
    pub fn read(&self, from: Span, to: &mut [u8]) -> Result<(), CudaError> {
        same_size(from.bytes(), to.len() as u64)?;
        // SAFETY: `to` is borrowed until the copy is done. If waiting fails, the context is lost,
        // and the device copies no more.
        unsafe { self.copy_to_host(from, to.as_mut_ptr()) }?;
        self.synchronize()
    }

    /// Copies as many bytes as `to` has from the host at `from`. The device reads pinned memory
    /// when the stream reaches the copy; other memory is staged before the call returns.
    ///
    /// # Safety
    /// The source bytes are readable until the work is done, and are not written in the meantime.
    pub unsafe fn copy_from_host(&self, from: *const u8, to: Span) -> Result<(), CudaError> {
        let Some(bytes) = size(to) else { return Ok(()) };
        // SAFETY: guaranteed by the caller; no Rust code relies on contents of device memory.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyHtoDAsync_v2(to.address(), from.cast(), bytes, self.handle())
        })
    }

    /// Copies all of `from` to the host at `to`. The device writes pinned memory when the stream
    /// reaches the copy; for other memory, the call waits.
    ///
    /// # Safety
    /// The target has room, and is neither read nor written until the work is done.
    pub unsafe fn copy_to_host(&self, from: Span, to: *mut u8) -> Result<(), CudaError> {
        let Some(bytes) = size(from) else { return Ok(()) };
        // SAFETY: guaranteed by the caller.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyDtoHAsync_v2(to.cast(), from.address(), bytes, self.handle())
        })
    }
}

/// Number of bytes to copy; `None` for zero bytes, which the driver rejects.
fn size(span: Span) -> Option<usize> {
    usize::try_from(span.bytes()).ok().filter(|bytes| *bytes > 0)
}

fn same_size(from: u64, to: u64) -> Result<(), CudaError> {
    if from == to {
        return Ok(());
    }
    Err(CudaError::Invalid(format!("a copy of {from} bytes to a place for {to}")))
}
