//! Packing of blocks with lifetimes into one region of memory: a pure function on numbers.

/// Alignment of every block.
pub const ALIGNMENT_BYTES: usize = 256;

/// A block of memory, in use in the steps `first ..= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedBlock {
    /// Size in bytes.
    pub bytes: usize,
    /// First step that uses the block.
    pub first: usize,
    /// Last step that uses the block.
    pub last: usize,
}

/// Offsets of packed blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Total size: the end of the last used byte.
    pub bytes: usize,
    /// Offset of each block, in the order of the blocks.
    pub offsets: Vec<usize>,
}

/// Pack blocks so that no two overlap while both are in use. The largest block comes first; each
/// block goes into the smallest gap that holds it, or after all blocks that conflict with it
/// ("greedy by size" of Pisarchyk and Lee, arXiv:2001.03288, section 5.2).
#[must_use]
pub fn pack(blocks: &[PlannedBlock]) -> Packed {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Blocks of equal size are ordered by descending lifetime, then by index.
    order.sort_by_key(|index| {
        let block = &blocks[*index];
        (std::cmp::Reverse((size(block), block.last - block.first)), *index)
    });
    let mut packed = Packed { bytes: 0, offsets: vec![0; blocks.len()] };
    // Indices of placed blocks, by offset.
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

/// Size of a block, rounded up to the alignment. An empty block still has a distinct place.
fn size(block: &PlannedBlock) -> usize {
    block.bytes.max(1).next_multiple_of(ALIGNMENT_BYTES)
}

/// Best offset of `block` among the `placed` blocks, which are sorted by offset.
fn gap(blocks: &[PlannedBlock], offsets: &[usize], placed: &[usize], block: &PlannedBlock) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for other in placed {
        let offset = offsets[*other];
        let other = &blocks[*other];
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

    fn blocks() -> impl Strategy<Value = Vec<PlannedBlock>> {
        let block = (0_usize..5_000, 0_usize..40, 0_usize..12).prop_map(|(bytes, first, len)| PlannedBlock {
            bytes,
            first,
            last: first + len,
        });
        prop::collection::vec(block, 0..60)
    }

    proptest! {
        #[test]
        fn live_blocks_do_not_overlap(blocks in blocks()) {
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
        fn packed_size_is_between_peak_and_sum(blocks in blocks()) {
            let at = |step: usize| -> usize {
                blocks.iter().filter(|block| (block.first..=block.last).contains(&step)).map(size).sum()
            };
            let most = (0..60).map(at).max().unwrap_or(0);
            let packed = pack(&blocks);
            prop_assert!(most <= packed.bytes);
            prop_assert!(packed.bytes <= blocks.iter().map(size).sum());
        }

        #[test]
        fn packing_is_deterministic(blocks in blocks()) {
            prop_assert_eq!(pack(&blocks), pack(&blocks));
        }
    }

    #[test]
    fn smallest_sufficient_gap_is_used() {
        let block = |bytes, first, last| PlannedBlock { bytes: bytes * ALIGNMENT_BYTES, first, last };
        // At step 1, two gaps of 3 and 2 units are free.
        let blocks = [block(9, 1, 1), block(8, 1, 1), block(7, 1, 1), block(2, 1, 1)];
        let offsets = [0, 12, 22].map(|at| at * ALIGNMENT_BYTES);
        assert_eq!(
            gap(&blocks, &[offsets[0], offsets[1], offsets[2], 0], &[0, 1, 2], &blocks[3]),
            20 * ALIGNMENT_BYTES
        );
    }
}
