//! Allocation of byte ranges in a sequence of blocks. Pure arithmetic.
//!
//! ```text
//!   blocks    |      0      |      1      |      2      |      3      |
//!   bytes     [aaaaaa][bb]  .  [cccccccccccccccccc].................... up to the end of the range
//!   users     |      2      |      1      |      1      |      0      |  memory is needed if not 0
//! ```
//!
//! The range may be much larger than the memory, since addresses are free. A large object therefore
//! always fits in one piece. The gaps between long-lived objects are used for objects that fit,
//! preferring the places that need the fewest new blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Alignment of places, which kernels may rely on.
const ALIGNMENT_BYTES: u64 = 256;

/// Holes that are examined for one place.
const CANDIDATES_MAX: usize = 64;

/// A range of blocks, partly in use.
#[derive(Debug, Clone)]
pub struct BlockMap {
    block_bytes: u64,
    /// Free holes: length by start.
    holes: BTreeMap<u64, u64>,
    /// Free holes by length and start.
    by_bytes: BTreeSet<(u64, u64)>,
    /// Ranges in use: length by start.
    used: BTreeMap<u64, u64>,
    /// Number of used ranges that overlap each block.
    users: BTreeMap<usize, u32>,
}

/// The place of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPlacement {
    /// Offset from the start of the range.
    pub offset: u64,
    /// Length: the requested length, rounded up.
    pub bytes: u64,
    /// Blocks that the object overlaps and that were unused before: they need memory now.
    pub new_blocks: Vec<usize>,
}

impl BlockMap {
    /// Creates a range of `blocks` unused blocks.
    #[must_use]
    pub fn new(block_bytes: u64, blocks: u64) -> Self {
        let bytes = block_bytes.saturating_mul(blocks);
        let mut map = Self {
            block_bytes: block_bytes.max(1),
            holes: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
            used: BTreeMap::new(),
            users: BTreeMap::new(),
        };
        if bytes > 0 {
            map.add_hole(0, bytes);
        }
        map
    }

    /// Finds a place for `bytes` bytes; `None` if no hole is long enough.
    pub fn place(&mut self, bytes: u64) -> Option<BlockPlacement> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT_BYTES)?;
        let candidates = self.by_bytes.range((bytes, 0)..).take(CANDIDATES_MAX);
        // Either end of a hole may share its block with an existing object.
        let ends = candidates.flat_map(|(hole_bytes, hole)| {
            let last = (hole + hole_bytes - bytes) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
            [(*hole, *hole_bytes, *hole), (*hole, *hole_bytes, last)]
        });
        let cost =
            |offset: u64| self.blocks(offset, bytes).filter(|block| !self.users.contains_key(block)).count();
        let best = ends.min_by_key(|(_, hole_bytes, offset)| (cost(*offset), *hole_bytes, *offset));
        let (hole, hole_bytes, offset) = best?;
        self.remove_hole(hole, hole_bytes);
        if offset > hole {
            self.add_hole(hole, offset - hole);
        }
        if offset + bytes < hole + hole_bytes {
            self.add_hole(offset + bytes, hole + hole_bytes - offset - bytes);
        }
        self.used.insert(offset, bytes);
        let mut new_blocks = Vec::new();
        for block in self.blocks(offset, bytes) {
            let users = self.users.entry(block).or_insert(0);
            *users += 1;
            if *users == 1 {
                new_blocks.push(block);
            }
        }
        Some(BlockPlacement { offset, bytes, new_blocks })
    }

    /// Frees the object at `offset`. Returns the blocks that are now unused and need no memory.
    pub fn free(&mut self, offset: u64) -> Vec<usize> {
        let Some(bytes) = self.used.remove(&offset) else { return Vec::new() };
        let mut idle = Vec::new();
        for block in self.blocks(offset, bytes) {
            let Some(users) = self.users.get_mut(&block) else { continue };
            *users -= 1;
            if *users == 0 {
                self.users.remove(&block);
                idle.push(block);
            }
        }
        let mut start = offset;
        let mut end = offset + bytes;
        let before = self.holes.range(..start).next_back().map(|(hole, len)| (*hole, *len));
        if let Some((hole, len)) = before.filter(|(hole, len)| hole + len == start) {
            self.remove_hole(hole, len);
            start = hole;
        }
        if let Some(len) = self.holes.get(&end).copied() {
            self.remove_hole(end, len);
            end += len;
        }
        self.add_hole(start, end - start);
        idle
    }

    /// Bytes in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used.values().sum()
    }

    /// Number of blocks in use.
    #[must_use]
    pub fn used_blocks(&self) -> usize {
        self.users.len()
    }

    fn blocks(&self, offset: u64, bytes: u64) -> Range<usize> {
        let block = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        block(offset / self.block_bytes)..block((offset + bytes).div_ceil(self.block_bytes))
    }

    fn add_hole(&mut self, offset: u64, bytes: u64) {
        self.holes.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    fn remove_hole(&mut self, offset: u64, bytes: u64) {
        self.holes.remove(&offset);
        self.by_bytes.remove(&(bytes, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = 2 << 20;

    #[test]
    fn small_objects_share_a_block_until_the_last_is_freed() {
        let mut map = BlockMap::new(BLOCK, 100);
        let first = map.place(1000).unwrap();
        let second = map.place(1000).unwrap();
        assert_eq!((first.new_blocks, second.new_blocks.len()), (vec![0], 0));
        assert_eq!((first.bytes, second.offset), (1024, 1024));
        assert_eq!(map.free(first.offset), []);
        assert_eq!(map.free(second.offset), [0]);
        assert_eq!(map.free(second.offset), [], "freed once");
    }

    #[test]
    fn placement_prefers_blocks_that_are_in_use() {
        let mut map = BlockMap::new(BLOCK, 100);
        let large = map.place(3 * BLOCK - 4096).unwrap();
        let small = map.place(4096).unwrap();
        assert_eq!(small.offset, large.bytes, "in the rest of the last block");
        // In a hole, the object is placed at the end that shares a block with a remaining object.
        map.free(large.offset);
        let next = map.place(8192).unwrap();
        assert_eq!((next.offset + next.bytes, next.new_blocks.len()), (small.offset, 0));
    }

    #[test]
    fn placement_fails_beyond_the_range() {
        let mut map = BlockMap::new(BLOCK, 2);
        assert!(map.place(2 * BLOCK + 1).is_none());
        assert!(map.place(u64::MAX).is_none());
        assert!(map.place(2 * BLOCK).is_some());
        assert!(map.place(1).is_none());
        assert!(BlockMap::new(BLOCK, 0).place(1).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn placements_do_not_overlap_and_exactly_used_blocks_are_backed(
            steps in prop::collection::vec((any::<bool>(), 1_u64..5 * BLOCK, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut map = BlockMap::new(BLOCK, 64);
            let (mut alive, mut backed): (Vec<BlockPlacement>, BTreeSet<usize>) = Default::default();
            for (free, bytes, which) in steps {
                if free && !alive.is_empty() {
                    let gone = alive.swap_remove(which.index(alive.len()));
                    for block in map.free(gone.offset) {
                        prop_assert!(backed.remove(&block));
                    }
                } else if let Some(placement) = map.place(bytes) {
                    prop_assert!(placement.bytes >= bytes && placement.bytes < bytes + ALIGNMENT_BYTES);
                    prop_assert!(placement.offset.is_multiple_of(ALIGNMENT_BYTES));
                    prop_assert!(placement.offset + placement.bytes <= 64 * BLOCK);
                    for block in &placement.new_blocks {
                        prop_assert!(backed.insert(*block));
                    }
                    alive.push(placement);
                }
                let mut sorted: Vec<_> = alive.iter().map(|one| (one.offset, one.bytes)).collect();
                sorted.sort_unstable();
                for pair in sorted.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                }
                let needed: BTreeSet<usize> = alive.iter().flat_map(|one| map.blocks(one.offset, one.bytes)).collect();
                prop_assert_eq!(&needed, &backed);
                prop_assert_eq!(map.used_blocks(), backed.len());
                prop_assert_eq!(map.used_bytes(), alive.iter().map(|one| one.bytes).sum::<u64>());
            }
            for gone in alive {
                map.free(gone.offset);
            }
            prop_assert_eq!(map.holes.into_iter().collect::<Vec<_>>(), [(0, 64 * BLOCK)]);
        }
    }
}
