//! Size classes of blocks. Pure arithmetic.
//!
//! ```text
//! requested:  1 .. 4096       small: as many 64-byte lines as needed, never pooled
//!             4097 .. 64 MiB  pooled: four classes per doubling (4, 5, 6, 7, 8, 10, 12, 14, 16,
//!                             ... KiB), so at most a quarter is wasted
//!             64 MiB ..       huge: whole pages, never pooled
//! ```

use crate::block::{ALIGNMENT_BYTES, PAGE_BYTES};

/// The largest block from the system's allocator, which is fast at these sizes.
const SMALL_BYTES_MAX: usize = 4 << 10;

/// The largest block worth keeping when idle.
const POOLED_BYTES_MAX: usize = 64 << 20;

/// Number of pooled classes.
pub(crate) const CLASSES: usize = index_of(POOLED_BYTES_MAX) + 1;

/// Size of the block for a request, and its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeClass {
    /// Size of the class's blocks.
    pub(crate) block_bytes: usize,
    /// Index of its pool; `None` if its blocks are not pooled.
    pub(crate) index: Option<usize>,
}

/// The class for `len` bytes; `None` if no block can be that large.
pub(crate) fn class_of(len: usize) -> Option<SizeClass> {
    if len <= SMALL_BYTES_MAX {
        return Some(SizeClass { block_bytes: len.max(1).next_multiple_of(ALIGNMENT_BYTES), index: None });
    }
    if len > POOLED_BYTES_MAX {
        let block_bytes =
            len.checked_next_multiple_of(PAGE_BYTES).filter(|bytes| isize::try_from(*bytes).is_ok())?;
        return Some(SizeClass { block_bytes, index: None });
    }
    let index = index_of(len);
    Some(SizeClass { block_bytes: size_of_class(index), index: Some(index) })
}

/// Index of the first class that holds `len` bytes, counted from 4 KiB in quarters of each
/// doubling.
const fn index_of(len: usize) -> usize {
    let above = len - 1;
    let doubling = above.ilog2() as usize;
    let quarter = (above >> (doubling - 2)) & 3;
    (doubling - SMALL_BYTES_MAX.ilog2() as usize) * 4 + quarter
}

const fn size_of_class(index: usize) -> usize {
    (SMALL_BYTES_MAX / 4 * (index % 4 + 5)) << (index / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn block_sizes_at_class_boundaries() {
        let bytes = |len| class_of(len).unwrap().block_bytes;
        assert_eq!((bytes(0), bytes(1), bytes(64), bytes(65), bytes(4096)), (64, 64, 64, 128, 4096));
        assert_eq!(
            (bytes(4097), bytes(5120), bytes(5121), bytes(8192), bytes(8193)),
            (5120, 5120, 6144, 8192, 10240)
        );
        assert_eq!(class_of(64 << 20).unwrap().index, Some(CLASSES - 1));
        assert_eq!(class_of((64 << 20) + 1).unwrap().index, None);
        assert_eq!(class_of(usize::MAX), None);
    }

    proptest! {
        #[test]
        fn block_holds_the_request_and_wastes_less_than_a_quarter(len in 4097_usize..=(64 << 20)) {
            let class = class_of(len).unwrap();
            prop_assert!(class.block_bytes >= len);
            prop_assert!(class.block_bytes - len < class.block_bytes / 4);
            // A block's size maps to its own class, so a block returns to the pool that it came
            // from.
            prop_assert_eq!(class_of(class.block_bytes).unwrap(), class);
        }
    }
}
