//! Memory of one process's device, read by another's.

use super::addresses::Addresses;
use super::block::{BLOCK_BYTES, Block};
use super::span::Span;
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::CUmemAccess_flags_enum as Access;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Some bytes of a device as another process can have them: the blocks that they lie in, each as a file, which goes over a socket.
///
/// Whoever exports keeps the bytes where they are for as long as the other reads them. The files keep the memory from the driver, and nothing more.
#[derive(Debug)]
pub struct Exported {
    /// The blocks, in order.
    pub blocks: Vec<OwnedFd>,
    /// Where the bytes begin in the first of them.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
}

/// What another process has [exported](Exported), mapped for this one's device to read. Gone with its drop: nothing uses it any more then.
#[derive(Debug)]
pub struct Imported {
    addresses: Addresses,
    /// Blocks that are mapped, from the first place on.
    mapped: usize,
    span: Span,
}

impl Imported {
    /// Map it. The files are not needed any more then. Fails where the devices are not connected so that the one reads what the other has.
    pub fn map(context: &Arc<Context>, exported: &Exported) -> Result<Self, CudaError> {
        let Exported { ref blocks, offset, bytes } = *exported;
        let addresses = Addresses::reserve(context, blocks.len() as u64 * BLOCK_BYTES)?;
        let span = addresses.span().slice(offset, bytes).filter(|_| !blocks.is_empty());
        let span = span.ok_or_else(|| {
            CudaError::Invalid(format!("{bytes} bytes from {offset} on are not in {} blocks", blocks.len()))
        })?;
        let mut imported = Self { addresses, mapped: 0, span };
        for (place, file) in blocks.iter().enumerate() {
            // The mapping keeps its memory; we need its handle no more.
            let block = Block::import(context, file)?;
            imported.addresses.map(place, &block)?;
            imported.mapped += 1;
        }
        // To be read only, where the driver can tell.
        let read = imported.addresses.open(0..blocks.len(), Access::CU_MEM_ACCESS_FLAGS_PROT_READ);
        read.or_else(|_| {
            imported.addresses.open(0..blocks.len(), Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        })?;
        Ok(imported)
    }

    /// The bytes that were exported, where this device reads them.
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
