//! Moving and filling bytes, in a stream's order.
#![allow(unsafe_code, reason = "the driver is called, with addresses of host memory")]

use super::error::CudaError;
use super::memory::Span;
use super::stream::Stream;

impl Stream {
    /// Set every byte of `to`.
    pub fn fill(&self, to: Span, value: u8) -> Result<(), CudaError> {
        let Some(bytes) = size(to) else { return Ok(()) };
        // SAFETY: spans are of memory on devices, whose contents nothing in Rust relies on.
        self.context()
            .call(|driver| unsafe { driver.cuMemsetD8Async(to.address(), value, bytes, self.handle()) })
    }

    /// Copy `from` to `to`, both on this device and of the same size.
    pub fn copy(&self, from: Span, to: Span) -> Result<(), CudaError> {
        same_size(from.bytes(), to.bytes())?;
        let Some(bytes) = size(to) else { return Ok(()) };
        // SAFETY: spans are of memory on devices, whose contents nothing in Rust relies on.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, self.handle())
        })
    }

    /// Copy `from`, which is on the device of `source`, to `to` on this one.
    pub fn copy_from_device(&self, source: &Stream, from: Span, to: Span) -> Result<(), CudaError> {
        same_size(from.bytes(), to.bytes())?;
        let Some(bytes) = size(to) else { return Ok(()) };
        let (here, there) = (self.context().handle(), source.context().handle());
        // SAFETY: spans are of memory on devices, whose contents nothing in Rust relies on; both contexts live as long as their streams.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyPeerAsync(to.address(), here, from.address(), there, bytes, self.handle())
        })
    }

    /// Copy `from` to the device, and wait until it and all work before it is done.
    pub fn write(&self, from: &[u8], to: Span) -> Result<(), CudaError> {
        same_size(from.len() as u64, to.bytes())?;
        // SAFETY: `from` is borrowed until the copy is done. If waiting fails, the context is lost, and the device copies no more.
        unsafe { self.copy_from_host(from.as_ptr(), to) }?;
        self.synchronize()
    }

    /// Copy `from` to the host, and wait until it and all work before it is done.
    pub fn read(&self, from: Span, to: &mut [u8]) -> Result<(), CudaError> {
        same_size(from.bytes(), to.len() as u64)?;
        // SAFETY: `to` is borrowed until the copy is done. If waiting fails, the context is lost, and the device copies no more.
        unsafe { self.copy_to_host(from, to.as_mut_ptr()) }?;
        self.synchronize()
    }

    /// Copy as many bytes as `to` has from the host at `from`. From pinned memory the device takes them when the stream gets there; others are set aside
    /// before the call returns.
    ///
    /// # Safety
    /// They can be read until the work is done, and are not written meanwhile.
    pub unsafe fn copy_from_host(&self, from: *const u8, to: Span) -> Result<(), CudaError> {
        let Some(bytes) = size(to) else { return Ok(()) };
        // SAFETY: the caller's part; what is on devices nothing in Rust relies on.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyHtoDAsync_v2(to.address(), from.cast(), bytes, self.handle())
        })
    }

    /// Copy all of `from` to the host at `to`. To pinned memory the device writes when the stream gets there; the call waits where it is not pinned.
    ///
    /// # Safety
    /// There is room, which nobody reads or writes until the work is done.
    pub unsafe fn copy_to_host(&self, from: Span, to: *mut u8) -> Result<(), CudaError> {
        let Some(bytes) = size(from) else { return Ok(()) };
        // SAFETY: the caller's part.
        self.context().call(|driver| unsafe {
            driver.cuMemcpyDtoHAsync_v2(to.cast(), from.address(), bytes, self.handle())
        })
    }
}

/// How many bytes to move; none where there are none, which the driver would take for a mistake.
fn size(span: Span) -> Option<usize> {
    usize::try_from(span.bytes()).ok().filter(|bytes| *bytes > 0)
}

fn same_size(from: u64, to: u64) -> Result<(), CudaError> {
    if from == to {
        return Ok(());
    }
    Err(CudaError::Invalid(format!("a copy of {from} bytes to a place for {to}")))
}
