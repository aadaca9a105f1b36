//! Which bytes of a run of blocks are in use. Numbers only.
//!
//! ```text
//!   blocks    |      0      |      1      |      2      |      3      |
//!   bytes     [aaaaaa][bb]  .  [cccccccccccccccccc].................... up to the end of the run
//!   users     |      2      |      1      |      1      |      0      |  memory is needed where there are any
//! ```
//!
//! The run may be much longer than there is memory: addresses are free. So a place for something large is always found in one piece, and what
//! is left between things that stay is used for things that fit, those first which need the fewest blocks more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What places are rounded to: the alignment that kernels may count on.
const ALIGNMENT_BYTES: u64 = 256;

/// How many holes are looked at for one place.
const CANDIDATES_MAX: usize = 64;

/// A run of blocks, of which parts are in use.
#[derive(Debug, Clone)]
pub struct BlockMap {
    block_bytes: u64,
    /// What is free, by where it begins: the length.
    holes: BTreeMap<u64, u64>,
    /// The same, by length.
    by_bytes: BTreeSet<(u64, u64)>,
    /// What is in use, by where it begins: the length.
    used: BTreeMap<u64, u64>,
    /// In how many of these every block has a part.
    users: BTreeMap<usize, u32>,
}

/// Where something was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Where it begins, from the start of the run.
    pub offset: u64,
    /// How long it is: what was asked for, rounded up.
    pub bytes: u64,
    /// The blocks that it has a part in, and that nothing had before: they need memory now.
    pub new_blocks: Vec<usize>,
}

impl BlockMap {
    /// A run of `blocks` blocks, none of them in use.
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

    /// Find a place for `bytes` bytes; none where no hole is that long.
    pub fn place(&mut self, bytes: u64) -> Option<Placement> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT_BYTES)?;
        let candidates = self.by_bytes.range((bytes, 0)..).take(CANDIDATES_MAX);
        // Either end of a hole may share its block with what is there already.
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
        Some(Placement { offset, bytes, new_blocks })
    }

    /// Free what begins at `offset`. Gives the blocks that nothing has a part in any more: they need no memory.
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
        let (mut start, mut end) = (offset, offset + bytes);
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

    /// How many bytes are in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used.values().sum()
    }

    /// How many blocks have something in them.
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
    fn small_things_share_a_block_and_the_last_of_them_frees_it() {
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
    fn what_needs_no_new_block_goes_where_there_is_room() {
        let mut map = BlockMap::new(BLOCK, 100);
        let large = map.place(3 * BLOCK - 4096).unwrap();
        let small = map.place(4096).unwrap();
        assert_eq!(small.offset, large.bytes, "in the rest of the last block");
        // Of a hole, the end is taken that shares a block with what stays.
        map.free(large.offset);
        let next = map.place(8192).unwrap();
        assert_eq!((next.offset + next.bytes, next.new_blocks.len()), (small.offset, 0));
    }

    #[test]
    fn there_is_no_place_for_more_than_the_run() {
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
        fn nothing_overlaps_and_blocks_have_memory_exactly_where_it_is_needed(
            steps in prop::collection::vec((any::<bool>(), 1_u64..5 * BLOCK, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut map = BlockMap::new(BLOCK, 64);
            let (mut alive, mut backed): (Vec<Placement>, BTreeSet<usize>) = Default::default();
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
