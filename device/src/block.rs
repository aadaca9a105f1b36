//! One piece of memory: where it comes from, and that it goes back there.
#![allow(
    unsafe_code,
    reason = "raw memory is allocated, handed out as slices and freed here, and nowhere else in the crate"
)]

use crate::shared::{Lease, SharedMemory};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc, dealloc};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// What every block is aligned to: a cache line, and the widest vector load.
pub(crate) const ALIGNMENT_BYTES: usize = 64;

/// The unit in which the system hands out memory. A larger page size only rounds up inside the kernel.
pub(crate) const PAGE_BYTES: usize = 4 << 10;

/// From here on a block is a mapping of its own, so that freeing it gives the memory back to the system at once, whatever the allocator
/// would have kept.
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// Memory that its owner may use as it likes; freed on drop.
pub(crate) struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether every byte from here on is known to be zero, as in memory fresh from the system.
    zero_from: usize,
    /// The part of a file that it is, where other processes can read it.
    lease: Option<Lease>,
}

// SAFETY: a block owns its memory alone, like a `Box<[u8]>`.
unsafe impl Send for Block {}
// SAFETY: a shared block can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// Get `bytes` bytes, at least one; none when the system has no more. What is large enough for a mapping of its own is part of `shared`, if
    /// there is such a thing.
    pub(crate) fn new(bytes: usize, shared: Option<&Arc<SharedMemory>>) -> Option<Self> {
        if bytes < MAPPED_BYTES_MIN {
            let layout = layout(bytes)?;
            // SAFETY: the layout's size is not zero: callers ask for at least one byte.
            let start = NonNull::new(unsafe { alloc(layout) })?;
            return Some(Self { start, bytes, zero_from: bytes, lease: None });
        }
        let (at, access) = (ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let Some(shared) = shared else {
            // SAFETY: a new anonymous mapping at an address of the kernel's choosing aliases nothing.
            let start = unsafe { mmap_anonymous(at, bytes, access, MapFlags::PRIVATE) }.ok()?;
            return Some(Self { start: NonNull::new(start.cast())?, bytes, zero_from: 0, lease: None });
        };
        let lease = shared.lease(bytes)?;
        // SAFETY: as above; no other mapping has this part of the file, and what other processes do with it is read.
        let start =
            unsafe { mmap(at, bytes, access, MapFlags::SHARED, lease.file(), lease.offset()) }.ok()?;
        let start = NonNull::new(start.cast::<u8>())?;
        lease.mapped_at(start.addr().get());
        Some(Self { start, bytes, zero_from: 0, lease: Some(lease) })
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first `len` bytes.
    ///
    /// # Safety
    /// They have all been written.
    pub(crate) unsafe fn initialised(&self, len: usize) -> &[u8] {
        debug_assert!(len <= self.bytes);
        // SAFETY: the memory is ours, long enough, and the caller has written it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }
    }

    /// The first `len` bytes, to change.
    ///
    /// # Safety
    /// They have all been written.
    pub(crate) unsafe fn initialised_mut(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(len <= self.bytes);
        self.zero_from = self.zero_from.max(len);
        // SAFETY: the memory is ours alone, long enough, and the caller has written it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len) }
    }

    /// Write `bytes` at `offset`. They fit: the caller made room.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        assert!(end <= self.bytes, "a write stays within its block");
        self.zero_from = self.zero_from.max(end);
        // SAFETY: `offset..end` lies within our own memory, which `bytes` cannot overlap: we are borrowed mutably.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) };
    }

    /// Everything from `offset` on, to write.
    pub(crate) fn spare_mut(&mut self, offset: usize) -> &mut [MaybeUninit<u8>] {
        debug_assert!(offset <= self.bytes);
        self.zero_from = self.bytes;
        // SAFETY: the memory is ours alone, `offset` is within it, and `MaybeUninit` needs no initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast(), self.bytes - offset) }
    }

    /// Write zeroes to `offset..end`, where they are not known to be there.
    pub(crate) fn zero(&mut self, offset: usize, end: usize) {
        debug_assert!(offset <= end && end <= self.bytes);
        let dirty_end = end.min(self.zero_from).max(offset);
        // SAFETY: `offset..dirty_end` lies within our own memory.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(offset), 0, dirty_end - offset) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.leaves(self.start.addr().get());
        }
        if self.bytes >= MAPPED_BYTES_MIN {
            // SAFETY: `new` mapped exactly this range, and nobody can have a slice of it any more. An error would leave it mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        } else if let Some(layout) = layout(self.bytes) {
            // SAFETY: `new` got it from the same allocator with the same layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT_BYTES).ok()
}
