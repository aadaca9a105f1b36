//! Memory of one process's device that another process's device reads.

use super::addresses::ReservedAddresses;
use super::block::{BLOCK_BYTES, DeviceBlock};
use super::span::Span;
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::CUmemAccess_flags_enum as Access;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a device in a form that another process can use: the blocks that contain them, each as
/// a file, which is sent over a socket.
///
/// The exporter keeps the bytes in place while the other process reads them. The files only keep
/// the memory from being freed.
#[derive(Debug)]
pub struct ExportedMemory {
    /// The blocks, in order.
    pub blocks: Vec<OwnedFd>,
    /// Offset of the bytes in the first block.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Memory that another process has [exported](ExportedMemory), mapped for this process's device to
/// read. Drop it once no work uses it any more.
#[derive(Debug)]
pub struct Imported {
    addresses: ReservedAddresses,
    /// Number of mapped blocks, from the first place on.
    mapped: usize,
    span: Span,
}

impl Imported {
    /// Maps the exported memory. The files may be closed afterwards. Fails if the devices have no
    /// connection over which this device can read the other.
    pub fn map(context: &Arc<Context>, exported: &ExportedMemory) -> Result<Self, CudaError> {
        let ExportedMemory { ref blocks, offset, bytes } = *exported;
        let addresses = ReservedAddresses::reserve(context, blocks.len() as u64 * BLOCK_BYTES)?;
        let span = addresses.span().slice(offset, bytes).filter(|_| !blocks.is_empty());
        let span = span.ok_or_else(|| {
            CudaError::Invalid(format!("{bytes} bytes from {offset} on are not in {} blocks", blocks.len()))
        })?;
        let mut imported = Self { addresses, mapped: 0, span };
        for (place, file) in blocks.iter().enumerate() {
            // The mapping keeps its memory, so the handle is not needed any more.
            let block = DeviceBlock::import(context, file)?;
            imported.addresses.map(place, &block)?;
            imported.mapped += 1;
        }
        // Read-only, if the driver supports the distinction.
        let read = imported.addresses.open(0..blocks.len(), Access::CU_MEM_ACCESS_FLAGS_PROT_READ);
        read.or_else(|_| {
            imported.addresses.open(0..blocks.len(), Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        })?;
        Ok(imported)
    }

    /// The exported bytes, at the addresses where this device reads them.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        (0..self.mapped).for_each(|place| self.addresses.unmap(place));
    }
}
