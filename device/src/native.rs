//! Memory for native code, which frees by address alone.
//!
//! ```text
//! | size of the block | padding to 64 bytes | what native code sees ...
//! ```
#![allow(unsafe_code, reason = "native code is handed addresses, and hands them back")]

use crate::arena::Arena;
use crate::block::{ALIGNMENT_BYTES, Block};
use std::ptr::NonNull;

/// Room for the size in front, as much as keeps the rest aligned.
const HEADER_BYTES: usize = ALIGNMENT_BYTES;

impl Arena {
    /// Memory for `len` bytes, aligned to 64, holding anything; none where the arena's bound or the system leaves no room. It counts as
    /// used until [`Arena::release`].
    #[must_use]
    pub fn allocate(&self, len: usize) -> Option<NonNull<u8>> {
        let (start, bytes) = self.take(len.checked_add(HEADER_BYTES)?).ok()?.into_raw();
        // SAFETY: the block is ours, aligned for a `usize`, and longer than the header.
        unsafe {
            start.cast::<usize>().write(bytes);
            Some(start.add(HEADER_BYTES))
        }
    }

    /// Take memory back.
    ///
    /// # Safety
    /// `address` came from [`Arena::allocate`] of this arena, was not released before, and is not used any more.
    pub unsafe fn release(&self, address: NonNull<u8>) {
        // SAFETY: `allocate` left the block's size in the header before the address.
        let block = unsafe {
            let start = address.sub(HEADER_BYTES);
            Block::from_raw(start, start.cast::<usize>().read())
        };
        self.put(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_counted_and_reused() {
        let arena = Arena::new(4 << 20);
        for len in [0, 1, 4_000, 100_000, 1 << 20] {
            let address = arena.allocate(len).unwrap();
            assert_eq!(address.as_ptr() as usize % ALIGNMENT_BYTES, 0);
            assert!(arena.used_bytes() >= len as u64);
            // SAFETY: the memory is `len` bytes long, and is released once.
            unsafe {
                address.write_bytes(0xAB, len);
                arena.release(address);
            }
            assert_eq!(arena.used_bytes(), 0);
        }
        let pooled = arena.allocate(1 << 20).unwrap();
        // SAFETY: it is released once.
        unsafe { arena.release(pooled) };
        assert_eq!(arena.allocate(1 << 20), Some(pooled));
    }

    #[test]
    fn the_bound_holds() {
        let arena = Arena::new(1 << 20);
        assert_eq!(arena.allocate(1 << 20), None, "the header has to fit too");
        assert_eq!(arena.allocate(usize::MAX), None);
        assert_eq!(arena.used_bytes(), 0);
    }
}
