//! Stable addresses, with memory mapped where it is needed.

use super::addresses::ReservedAddresses;
use super::block::{BLOCK_BYTES, DeviceBlock};
use super::exported::ExportedMemory;
use super::pool::BlockPool;
use super::span::{MemoryOwner, Span};
use crate::cuda::error::CudaError;
use crate::cuda::stream::Stream;
use cudarc::driver::sys::CUmemAccess_flags_enum as Access;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A range of reserved addresses, into which blocks of a pool are mapped. Reserving costs no
/// memory.
///
/// A caller that removes memory, with [`release`](Self::release) or by dropping the range, must
/// ensure that no work uses the addresses any more.
#[derive(Debug)]
pub struct AddressRange {
    pool: Arc<BlockPool>,
    addresses: ReservedAddresses,
    /// Mapped blocks by place, with the owner of their bytes.
    mapped: BTreeMap<usize, Mapped>,
}

#[derive(Debug)]
struct Mapped {
    block: DeviceBlock,
    owner: MemoryOwner,
}

impl AddressRange {
    /// Reserves addresses for `bytes` bytes, rounded up to blocks.
    pub fn reserve(pool: &Arc<BlockPool>, bytes: u64) -> Result<Self, CudaError> {
        let addresses = ReservedAddresses::reserve(pool.context(), bytes)?;
        Ok(Self { pool: pool.clone(), addresses, mapped: BTreeMap::new() })
    }

    /// The whole range, mapped or not.
    #[must_use]
    pub fn span(&self) -> Span {
        self.addresses.span()
    }

    /// The pool that the memory comes from.
    #[must_use]
    pub fn pool(&self) -> &Arc<BlockPool> {
        &self.pool
    }

    /// Bytes of mapped memory.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.len() as u64 * BLOCK_BYTES
    }

    /// Number of blocks that the addresses have room for.
    pub(in super::super) fn blocks(&self) -> usize {
        usize::try_from(self.span().bytes() / BLOCK_BYTES).unwrap_or(usize::MAX)
    }

    /// Whether the block at `place` is mapped.
    pub(in super::super) fn is_mapped(&self, place: usize) -> bool {
        self.mapped.contains_key(&place)
    }

    /// Maps memory for `owner` at those of `places` that have none. The places are in ascending
    /// order. Either all of them are mapped or none; each contiguous run of blocks takes one access
    /// call.
    ///
    /// Memory that may contain bytes of other owners is filled with zeroes on the stream `scrub`;
    /// earlier bytes of the same owner may remain. Without a stream, nothing is filled: the owner
    /// must write all bytes that it exposes.
    pub fn back(
        &mut self,
        places: impl IntoIterator<Item = usize>,
        owner: MemoryOwner,
        scrub: Option<&Stream>,
    ) -> Result<(), CudaError> {
        let missing: Vec<usize> = places.into_iter().filter(|place| !self.is_mapped(*place)).collect();
        if let Some(last) = missing.last().filter(|last| **last >= self.blocks()) {
            let bytes = self.span().bytes();
            return Err(CudaError::Invalid(format!("block {last} of a range of {bytes} bytes")));
        }
        let mut blocks = self.pool.take(missing.len(), owner)?.into_iter();
        let mut done: Vec<(usize, bool)> = Vec::with_capacity(missing.len());
        let mut result = Ok(());
        for (place, (block, foreign)) in missing.iter().zip(&mut blocks) {
            if let Err((error, block)) = self.map(*place, block, owner) {
                self.pool.put(vec![block], owner);
                result = Err(error);
                break;
            }
            done.push((*place, foreign));
        }
        self.pool.put(blocks.map(|(block, _)| block).collect(), owner);
        let result = result.and_then(|()| self.open_and_scrub(&done, scrub));
        if result.is_err() {
            for (place, _) in done {
                self.release(place..place + 1);
            }
        }
        result
    }

    /// Unmaps the memory at `places`.
    pub fn release(&mut self, places: Range<usize>) {
        let places: Vec<usize> = self.mapped.range(places).map(|(place, _)| *place).collect();
        for place in places {
            let Some(Mapped { block, owner }) = self.mapped.remove(&place) else { continue };
            self.addresses.unmap(place);
            self.pool.put(vec![block], owner);
        }
    }

    /// Transfers the mapped memory to `owner`: other owners' blocks in the first `bytes` are filled
    /// with zeroes, in the order of `stream`.
    pub fn hand_over(&mut self, bytes: u64, owner: MemoryOwner, stream: &Stream) -> Result<(), CudaError> {
        let places = usize::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX);
        let others = |(_, mapped): &(&usize, &Mapped)| mapped.owner != owner;
        let places: Vec<_> = self.mapped.range(..places).filter(others).map(|(place, _)| *place).collect();
        for run in runs(&places) {
            let at = self.addresses.at(run.start);
            stream.fill(Span::new(at.address(), run.len() as u64 * BLOCK_BYTES), 0)?;
            for place in run {
                if let Some(mapped) = self.mapped.get_mut(&place) {
                    mapped.owner = owner;
                }
            }
        }
        Ok(())
    }

    /// Exports some bytes of the range to another process: exactly the blocks that contain them.
    pub fn export(&self, span: Span) -> Result<ExportedMemory, CudaError> {
        let outside = || CudaError::Invalid("no memory of this range is at those addresses".to_owned());
        let offset = span.address().checked_sub(self.span().address()).ok_or_else(outside)?;
        let end = offset.checked_add(span.bytes()).ok_or_else(outside)?;
        let place = |at: u64| usize::try_from(at).map_err(|_| outside());
        let places = place(offset / BLOCK_BYTES)?..place(end.div_ceil(BLOCK_BYTES))?;
        let export = |place| self.mapped.get(&place).ok_or_else(outside)?.block.export();
        let blocks = places.map(export).collect::<Result<_, CudaError>>()?;
        Ok(ExportedMemory { blocks, offset: offset % BLOCK_BYTES, bytes: span.bytes() })
    }

    fn map(
        &mut self,
        place: usize,
        block: DeviceBlock,
        owner: MemoryOwner,
    ) -> Result<(), (CudaError, DeviceBlock)> {
        match self.addresses.map(place, &block) {
            Ok(()) => {
                self.mapped.insert(place, Mapped { block, owner });
                Ok(())
            }
            Err(error) => Err((error, block)),
        }
    }

    /// Gives the device access to newly mapped places, and fills those that may hold other owners'
    /// bytes.
    fn open_and_scrub(&self, done: &[(usize, bool)], scrub: Option<&Stream>) -> Result<(), CudaError> {
        let places: Vec<_> = done.iter().map(|(place, _)| *place).collect();
        for run in runs(&places) {
            self.addresses.open(run, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        }
        let Some(stream) = scrub else { return Ok(()) };
        let foreign: Vec<_> = done.iter().filter(|(_, foreign)| *foreign).map(|(place, _)| *place).collect();
        for run in runs(&foreign) {
            let at = self.addresses.at(run.start);
            stream.fill(Span::new(at.address(), run.len() as u64 * BLOCK_BYTES), 0)?;
        }
        Ok(())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        self.release(0..usize::MAX);
    }
}

/// Groups ascending places into contiguous ranges.
fn runs(places: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for place in places {
        match runs.last_mut() {
            Some(run) if run.end == *place => run.end += 1,
            _ => runs.push(*place..*place + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_places_form_one_run() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
    }
}
