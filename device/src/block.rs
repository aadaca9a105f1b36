//! Blocks of memory: allocation, access and release.
#![allow(
    unsafe_code,
    reason = "raw memory is allocated, handed out as slices and freed here, and nowhere else in the crate"
)]

use crate::shared::{BlockLease, SharedMemory};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc, dealloc};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Alignment of every block: a cache line, and the widest vector load.
pub(crate) const ALIGNMENT_BYTES: usize = 64;

/// Unit in which the system hands out memory. A larger page size only rounds up inside the kernel.
pub(crate) const PAGE_BYTES: usize = 4 << 10;

/// Blocks of at least this size are separate mappings, so that freeing one returns its memory to
/// the system immediately. The system's allocator might keep the memory.
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// Memory that its owner may read and write; freed on drop.
pub(crate) struct MemoryBlock {
    start: NonNull<u8>,
    bytes: usize,
    /// Offset from which all bytes are known to be zero, as in memory fresh from the system.
    zero_from: usize,
    /// The part of the shared file that the block occupies, readable by other processes.
    lease: Option<BlockLease>,
}

// SAFETY: a block owns its memory exclusively, like a `Box<[u8]>`.
unsafe impl Send for MemoryBlock {}
// SAFETY: a shared block can only be read.
unsafe impl Sync for MemoryBlock {}

impl MemoryBlock {
    /// Allocates `bytes` bytes, at least one; `None` if the system has no more memory. Blocks that
    /// are large enough for a separate mapping are part of `shared`, if given.
    pub(crate) fn new(bytes: usize, shared: Option<&Arc<SharedMemory>>) -> Option<Self> {
        if bytes < MAPPED_BYTES_MIN {
            let layout = layout(bytes)?;
            // SAFETY: the layout's size is not zero: callers request at least one byte.
            let start = NonNull::new(unsafe { alloc(layout) })?;
            return Some(Self { start, bytes, zero_from: bytes, lease: None });
        }
        let at = ptr::null_mut();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let Some(shared) = shared else {
            // SAFETY: a new anonymous mapping at an address of the kernel's choosing aliases
            // nothing.
            let start = unsafe { mmap_anonymous(at, bytes, access, MapFlags::PRIVATE) }.ok()?;
            return Some(Self { start: NonNull::new(start.cast())?, bytes, zero_from: 0, lease: None });
        };
        let lease = shared.lease(bytes)?;
        // SAFETY: as above; this part of the file has no other writable mapping, and other
        // processes only read it.
        let start =
            unsafe { mmap(at, bytes, access, MapFlags::SHARED, lease.file(), lease.offset()) }.ok()?;
        let start = NonNull::new(start.cast::<u8>())?;
        lease.mapped_at(start.addr().get());
        Some(Self { start, bytes, zero_from: 0, lease: Some(lease) })
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first `len` bytes.
    ///
    /// # Safety
    /// All of these bytes have been written.
    pub(crate) unsafe fn initialised(&self, len: usize) -> &[u8] {
        debug_assert!(len <= self.bytes);
        // SAFETY: the block owns the memory, which is long enough, and the caller has written it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }
    }

    /// The first `len` bytes, mutable.
    ///
    /// # Safety
    /// All of these bytes have been written.
    pub(crate) unsafe fn initialised_mut(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(len <= self.bytes);
        self.zero_from = self.zero_from.max(len);
        // SAFETY: the block owns the memory exclusively, it is long enough, and the caller has
        // written it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len) }
    }

    /// Writes `bytes` at `offset`. They fit: the caller has made room.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        assert!(end <= self.bytes, "a write stays within its block");
        self.zero_from = self.zero_from.max(end);
        // SAFETY: `offset..end` lies within the block's memory, which `bytes` cannot overlap, since
        // the block is borrowed mutably.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) };
    }

    /// All memory from `offset` on, for writing.
    pub(crate) fn spare_mut(&mut self, offset: usize) -> &mut [MaybeUninit<u8>] {
        debug_assert!(offset <= self.bytes);
        self.zero_from = self.bytes;
        // SAFETY: the block owns the memory exclusively, `offset` is within it, and `MaybeUninit`
        // needs no initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast(), self.bytes - offset) }
    }

    /// Writes zeroes to the part of `offset..end` that is not known to be zero.
    pub(crate) fn zero(&mut self, offset: usize, end: usize) {
        debug_assert!(offset <= end && end <= self.bytes);
        let dirty_end = end.min(self.zero_from).max(offset);
        // SAFETY: `offset..dirty_end` lies within the block's memory.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(offset), 0, dirty_end - offset) };
    }
}

impl Drop for MemoryBlock {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.leaves(self.start.addr().get());
        }
        if self.bytes >= MAPPED_BYTES_MIN {
            // SAFETY: `new` mapped exactly this range, and no slice of it can exist any more. On an
            // error the range stays mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        } else if let Some(layout) = layout(self.bytes) {
            // SAFETY: `new` allocated the memory from the same allocator with the same layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT_BYTES).ok()
}
