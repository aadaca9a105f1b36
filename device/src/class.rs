//! Which block sizes there are. Numbers only.
//!
//! ```text
//! asked:   1 .. 4096       small: exactly as many 64-byte lines as needed, never pooled
//!          4097 .. 64 MiB  pooled: four classes per doubling (4, 5, 6, 7, 8, 10, 12, 14, 16, ... KiB), so at most a quarter is wasted
//!          64 MiB ..       huge: whole pages, never pooled
//! ```

use crate::block::{ALIGNMENT_BYTES, PAGE_BYTES};

/// The largest block that comes straight from the allocator: it is cheap there.
const SMALL_BYTES_MAX: usize = 4 << 10;

/// The largest block worth keeping when idle.
const POOLED_BYTES_MAX: usize = 64 << 20;

/// How many classes there are.
pub(crate) const CLASSES: usize = index_of(POOLED_BYTES_MAX) + 1;

/// How big a block must be to hold some bytes, and where it is pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeClass {
    /// The size of its blocks.
    pub(crate) block_bytes: usize,
    /// The place of its pool, or none where blocks are not pooled.
    pub(crate) index: Option<usize>,
}

/// The class for `len` bytes; none where no block can be that big.
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

/// The first class, counted from 4 KiB in quarters of each doubling, that holds `len` bytes.
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
    fn the_edges_of_the_ranges() {
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
        fn a_block_holds_what_was_asked_and_wastes_at_most_a_quarter(len in 4097_usize..=(64 << 20)) {
            let class = class_of(len).unwrap();
            prop_assert!(class.block_bytes >= len);
            prop_assert!(class.block_bytes - len < class.block_bytes / 4);
            // The class of a block's own size is its class: a block goes back where it came from.
            prop_assert_eq!(class_of(class.block_bytes).unwrap(), class);
        }
    }
}
