//! In-memory file that contains blocks, so that another process can read them in place.
//!
//! Its length is sealed, so that no process can make the node's mappings invalid. It is not sealed
//! against writes, because the node maps and unmaps parts of it all the time, and no seal would let
//! it return the memory of a part to the system. Its mode refuses to open it for writing instead;
//! the processes that read it cannot change that mode (`weir_child::keep_file_modes`).

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, fallocate, fchmod, fcntl_add_seals, memfd_create,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nominal length of the file. Offsets are never reused, and unused parts take no memory.
const FILE_BYTES: u64 = 1 << 62;

/// The file, and the addresses of its parts in this process.
pub(crate) struct SharedMemory {
    file: File,
    /// Offset of the next part.
    end: AtomicU64,
    /// Parts by the address of their first byte.
    parts: Mutex<BTreeMap<usize, SharedRange>>,
}

#[derive(Clone, Copy)]
struct SharedRange {
    offset: u64,
    bytes: usize,
}

/// A part that a block occupies. Its memory returns to the system on drop.
pub(crate) struct BlockLease {
    memory: Arc<SharedMemory>,
    part: SharedRange,
}

impl SharedMemory {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("weir-arena", flags)?);
        file.set_len(FILE_BYTES)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        fchmod(&file, Mode::RUSR)?;
        Ok(Self { file, end: AtomicU64::new(0), parts: Mutex::default() })
    }

    /// A part of `bytes` bytes, which are whole pages; `None` once the file is exhausted.
    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Option<BlockLease> {
        let offset = self.end.fetch_add(bytes as u64, Ordering::Relaxed);
        let fits = offset.checked_add(bytes as u64).is_some_and(|end| end <= FILE_BYTES);
        fits.then(|| BlockLease { memory: self.clone(), part: SharedRange { offset, bytes } })
    }

    /// Offset of these bytes in the file, if they belong to a block.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let address = bytes.as_ptr().addr();
        let parts = self.parts();
        let (start, part) = parts.range(..=address).next_back()?;
        let within = address - start;
        let is_within = within.checked_add(bytes.len()).is_some_and(|end| end <= part.bytes);
        is_within.then_some(part.offset + within as u64)
    }

    /// A read-only handle of the file.
    pub(crate) fn reader(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<usize, SharedRange>> {
        self.parts.lock()
    }
}

impl BlockLease {
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.memory.file.as_fd()
    }

    pub(crate) fn offset(&self) -> u64 {
        self.part.offset
    }

    /// Records that the part was mapped at `address`.
    pub(crate) fn mapped_at(&self, address: usize) {
        self.memory.parts().insert(address, self.part);
    }

    /// Records that the part will be unmapped from `address`; called before the address can be
    /// reused.
    pub(crate) fn leaves(&self, address: usize) {
        self.memory.parts().remove(&address);
    }
}

impl Drop for BlockLease {
    fn drop(&mut self) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let SharedRange { offset, bytes } = self.part;
        if let Err(error) = fallocate(&self.memory.file, hole, offset, bytes as u64) {
            tracing::warn!(%error, bytes, "returning memory shared with workers to the system failed");
        }
    }
}
