//! Blocks that live for a while, packed into one piece of memory. Numbers in, numbers out.

/// Every block begins at a multiple of this.
pub const ALIGNMENT_BYTES: usize = 256;

/// A block of memory, in use in the steps `first ..= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// How long it is.
    pub bytes: usize,
    /// The first step that it is used in.
    pub first: usize,
    /// The last.
    pub last: usize,
}

/// Where blocks are put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The end of the last byte that is in use.
    pub bytes: usize,
    /// In the order of the blocks.
    pub offsets: Vec<usize>,
}

/// Put each block where it overlaps none that is in use at the same time: the largest first, each into the smallest gap that holds it, or else behind all
/// that are in its way ("greedy by size" of Pisarchyk and Lee, arXiv:2001.03288, section 5.2).
#[must_use]
pub fn pack(blocks: &[Block]) -> Packed {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Of equally large ones the longest-lived, and then whichever comes first.
    order.sort_by_key(|index| {
        let block = &blocks[*index];
        (std::cmp::Reverse((size(block), block.last - block.first)), *index)
    });
    let mut packed = Packed { bytes: 0, offsets: vec![0; blocks.len()] };
    // What has been put somewhere, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    for index in order {
        let block = &blocks[index];
        let offset = gap(blocks, &packed.offsets, &placed, block);
        packed.offsets[index] = offset;
        packed.bytes = packed.bytes.max(offset + size(block));
        let at = placed.partition_point(|other| packed.offsets[*other] <= offset);
        placed.insert(at, index);
    }
    packed
}

/// The bytes of a block, up to where the next may begin. One without any still has a place of its own.
fn size(block: &Block) -> usize {
    block.bytes.max(1).next_multiple_of(ALIGNMENT_BYTES)
}

/// Where `block` fits best among those that are `placed`, in the order of their offsets.
fn gap(blocks: &[Block], offsets: &[usize], placed: &[usize], block: &Block) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for other in placed {
        let (offset, other) = (offsets[*other], &blocks[*other]);
        if other.last < block.first || block.last < other.first {
            continue;
        }
        let room = offset.saturating_sub(end);
        if room >= size(block) && best.is_none_or(|(smallest, _)| room < smallest) {
            best = Some((room, end));
        }
        end = end.max(offset + size(other));
    }
    best.map_or(end, |(_, offset)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks() -> impl Strategy<Value = Vec<Block>> {
        let block = (0_usize..5_000, 0_usize..40, 0_usize..12).prop_map(|(bytes, first, len)| Block {
            bytes,
            first,
            last: first + len,
        });
        prop::collection::vec(block, 0..60)
    }

    proptest! {
        #[test]
        fn nothing_overlaps_what_is_in_use_at_the_same_time(blocks in blocks()) {
            let packed = pack(&blocks);
            for (a, a_at) in blocks.iter().zip(&packed.offsets) {
                prop_assert_eq!(a_at % ALIGNMENT_BYTES, 0);
                prop_assert!(a_at + a.bytes <= packed.bytes);
                for (b, b_at) in blocks.iter().zip(&packed.offsets).filter(|(b, _)| !std::ptr::eq(a, *b)) {
                    let apart = a.last < b.first || b.last < a.first;
                    prop_assert!(apart || a_at + a.bytes <= *b_at || b_at + b.bytes <= *a_at);
                }
            }
        }

        #[test]
        fn the_whole_is_between_the_most_at_once_and_the_sum(blocks in blocks()) {
            let at = |step: usize| -> usize {
                blocks.iter().filter(|block| (block.first..=block.last).contains(&step)).map(size).sum()
            };
            let most = (0..60).map(at).max().unwrap_or(0);
            let packed = pack(&blocks);
            prop_assert!(most <= packed.bytes);
            prop_assert!(packed.bytes <= blocks.iter().map(size).sum());
        }

        #[test]
        fn the_same_blocks_are_packed_the_same(blocks in blocks()) {
            prop_assert_eq!(pack(&blocks), pack(&blocks));
        }
    }

    #[test]
    fn the_smallest_gap_that_holds_it_is_taken() {
        let block = |bytes, first, last| Block { bytes: bytes * ALIGNMENT_BYTES, first, last };
        // Two gaps, of 3 and of 2, are left at step 1.
        let blocks = [block(9, 1, 1), block(8, 1, 1), block(7, 1, 1), block(2, 1, 1)];
        let offsets = [0, 12, 22].map(|at| at * ALIGNMENT_BYTES);
        assert_eq!(
            gap(&blocks, &[offsets[0], offsets[1], offsets[2], 0], &[0, 1, 2], &blocks[3]),
            20 * ALIGNMENT_BYTES
        );
    }
}
