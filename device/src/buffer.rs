//! The bytes of one body or tensor: written by one owner, then read by many.
#![allow(unsafe_code, reason = "a buffer counts the written bytes of its block, and exposes only those")]

use crate::arena::{Arena, ArenaExhausted};
use crate::block::MemoryBlock;
use bytes::Bytes;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, RangeBounds};

/// Bytes being written, by their only owner. Aligned to 64 bytes.
///
/// ```
/// let arena = weir_device::Arena::new(1 << 20);
/// let mut body = arena.with_capacity(0)?;
/// for chunk in [&b"hello, "[..], b"world"] {
///     body.extend_from_slice(chunk)?;
/// }
/// let body = body.freeze();
/// assert_eq!(&body[..], b"hello, world");
/// # Ok::<(), weir_device::ArenaExhausted>(())
/// ```
pub struct BufferMut {
    arena: Arena,
    /// Present until the drop.
    block: Option<MemoryBlock>,
    /// Number of bytes written. Every path that raises it has written them.
    len: usize,
}

/// Immutable bytes. Cheap to clone and to slice; the memory returns to its arena with the last
/// clone or slice.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Buffer(Bytes);

impl BufferMut {
    pub(crate) fn new(arena: Arena, block: MemoryBlock) -> Self {
        Self { arena, block: Some(block), len: 0 }
    }

    /// Bytes that fit before the buffer must move.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, MemoryBlock::bytes)
    }

    /// Makes room for `additional` more bytes. If they do not fit, the buffer moves and at least
    /// doubles.
    pub fn reserve(&mut self, additional: usize) -> Result<(), ArenaExhausted> {
        let needed = self.len.saturating_add(additional);
        if needed <= self.capacity() {
            return Ok(());
        }
        let doubled = needed.max(self.capacity().saturating_mul(2));
        // Doubling is optional: near the limit, the needed size suffices.
        let mut larger = self.arena.take(doubled).or_else(|_| self.arena.take(needed))?;
        larger.write(0, self);
        if let Some(smaller) = self.block.replace(larger) {
            self.arena.put(smaller);
        }
        Ok(())
    }

    /// Appends `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), ArenaExhausted> {
        self.reserve(bytes.len())?;
        if let Some(block) = &mut self.block {
            block.write(self.len, bytes);
            self.len += bytes.len();
        }
        Ok(())
    }

    /// Sets the length to `len` bytes, by truncating or by appending zeroes.
    pub fn resize_with_zeroes(&mut self, len: usize) -> Result<(), ArenaExhausted> {
        self.reserve(len.saturating_sub(self.len))?;
        if let Some(block) = &mut self.block {
            block.zero(self.len.min(len), len);
            self.len = len;
        }
        Ok(())
    }

    /// The unused room after the written bytes, for code that writes through a pointer. Afterwards,
    /// call [`BufferMut::set_len`].
    pub fn spare_capacity_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let len = self.len;
        self.block.as_mut().map_or(&mut [], |block| block.spare_mut(len))
    }

    /// Declares that the first `len` bytes have been written.
    ///
    /// # Safety
    /// The bytes have been written, and `len` is at most the capacity.
    pub unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity());
        self.len = len;
    }

    /// Ends writing, and makes the bytes shareable.
    #[must_use]
    pub fn freeze(self) -> Buffer {
        Buffer(Bytes::from_owner(self))
    }
}

impl Deref for BufferMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` counts bytes that have been written.
        self.block.as_ref().map_or(&[], |block| unsafe { block.initialised(self.len) })
    }
}

impl DerefMut for BufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        // SAFETY: `len` counts bytes that have been written.
        self.block.as_mut().map_or(&mut [], |block| unsafe { block.initialised_mut(len) })
    }
}

impl AsRef<[u8]> for BufferMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for BufferMut {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.arena.put(block);
        }
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferMut").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

impl Buffer {
    /// A part of the buffer that shares its memory. The part of an aligned buffer need not be
    /// aligned.
    ///
    /// # Panics
    /// If the range exceeds the buffer, like slicing.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        Self(self.0.slice(range))
    }
}

impl From<Buffer> for Bytes {
    /// Shares the memory.
    fn from(buffer: Buffer) -> Self {
        buffer.0
    }
}

impl From<Bytes> for Buffer {
    /// Shares the memory, which no arena counts; its alignment is unchanged.
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_buffer_is_aligned() {
        let arena = Arena::new(16 << 20);
        for len in [0, 1, 63, 65, 4_096, 4_097, 70_000, 600_000, 3 << 20] {
            assert_eq!(arena.buffer(len).unwrap().freeze().as_ptr() as usize % 64, 0, "{len}");
        }
    }

    #[test]
    fn memory_lives_as_long_as_any_slice() {
        let arena = Arena::new(1 << 20);
        let whole = arena.copy_of(&[1, 2, 3, 4]).unwrap();
        let address = whole.as_ptr();
        let part = whole.slice(1..3);
        drop(whole);
        assert!(arena.used_bytes() > 0);
        let bytes = Bytes::from(part);
        assert_eq!((&bytes[..], bytes.as_ptr()), (&[2, 3][..], address.wrapping_add(1)));
        drop(bytes);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn growth_stops_at_the_limit_and_keeps_contents() {
        let arena = Arena::new(64 << 10);
        let mut body = arena.with_capacity(0).unwrap();
        let chunk = [9; 1000];
        let mut chunks = 0;
        while body.extend_from_slice(&chunk).is_ok() {
            chunks += 1;
            assert!(chunks < 100, "the bound did not hold");
        }
        assert!(chunks >= 30, "{chunks}");
        assert_eq!(body.len(), chunks * 1000);
        assert!(body.iter().all(|byte| *byte == 9));
    }

    proptest! {
        #[test]
        fn streamed_body_is_the_concatenation_of_its_chunks(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9_000), 0..20)) {
            let arena = Arena::new(8 << 20);
            let mut body = arena.with_capacity(0).unwrap();
            for chunk in &chunks {
                body.extend_from_slice(chunk).unwrap();
            }
            prop_assert_eq!(&body.freeze()[..], &chunks.concat()[..]);
        }

        #[test]
        fn resizing_never_exposes_old_contents(first in 0_usize..200_000, cut in 0_usize..200_000, last in 0_usize..200_000) {
            let arena = Arena::new(8 << 20);
            drop({ let mut old = arena.buffer(first.max(last)).unwrap(); old.fill(0xEE); old });
            let mut buffer = arena.buffer(first).unwrap();
            buffer.fill(1);
            buffer.resize_with_zeroes(cut).unwrap();
            buffer.resize_with_zeroes(last).unwrap();
            let kept = first.min(cut).min(last);
            prop_assert_eq!(buffer.len(), last);
            prop_assert!(buffer[..kept].iter().all(|byte| *byte == 1));
            prop_assert!(buffer[kept..].iter().all(|byte| *byte == 0));
        }
    }
}
