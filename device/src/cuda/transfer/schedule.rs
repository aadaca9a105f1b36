//! Schedule of the blocks of concurrent copies. Pure arithmetic.
//!
//! Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over the current copies: each copy in
//! turn may copy blocks up to its quantum. A new copy gets its first turn at once, before older
//! copies, but two new copies never have consecutive turns while older ones wait. A short copy
//! therefore waits for at most one quantum, and a long copy progresses however many short ones
//! arrive.

use std::collections::{HashMap, VecDeque};

/// Bytes that a copy may transfer in one turn.
const QUANTUM_BYTES: u64 = 2 * (2 << 20);

/// Copies in blocks, and the order of their turns.
#[derive(Debug, Default)]
pub(super) struct CopySchedule {
    copies: HashMap<u64, Blocks>,
    /// Copies without a turn so far, in order of arrival.
    new: VecDeque<u64>,
    /// Copies that have had a turn, the next one first.
    old: VecDeque<u64>,
    /// The copy that has the current turn.
    turn: Option<u64>,
    /// Whether the last turn was a new copy's.
    last_was_new: bool,
}

/// The remaining blocks of one copy.
#[derive(Debug)]
struct Blocks {
    /// Length of each block, from the next one on.
    bytes: VecDeque<u64>,
    next: usize,
    /// Bytes that the copy may still transfer in this turn, including unused bytes of earlier
    /// turns.
    deficit_bytes: u64,
}

impl CopySchedule {
    /// Adds a copy called `id` with blocks of these lengths. A copy without blocks never has a
    /// turn.
    pub(super) fn add(&mut self, id: u64, bytes: VecDeque<u64>) {
        if !bytes.is_empty() {
            self.copies.insert(id, Blocks { bytes, next: 0, deficit_bytes: 0 });
            self.new.push_back(id);
        }
    }

    /// Removes the remaining blocks of a copy.
    pub(super) fn remove(&mut self, id: u64) {
        self.copies.remove(&id);
        self.new.retain(|other| *other != id);
        self.old.retain(|other| *other != id);
        self.turn = self.turn.filter(|turn| *turn != id);
    }

    /// The copy and the number of the block that goes next.
    pub(super) fn next(&mut self) -> Option<(u64, usize)> {
        loop {
            let id = match self.turn {
                Some(id) => id,
                None => self.begin_turn()?,
            };
            let Some(blocks) = self.copies.get_mut(&id) else {
                self.turn = None;
                continue;
            };
            match blocks.bytes.front().copied() {
                Some(bytes) if bytes <= blocks.deficit_bytes => {
                    blocks.deficit_bytes -= bytes;
                    blocks.bytes.pop_front();
                    blocks.next += 1;
                    let block = blocks.next - 1;
                    if blocks.bytes.is_empty() {
                        self.remove(id);
                    }
                    return Some((id, block));
                }
                _ => {
                    self.old.push_back(id);
                    self.turn = None;
                }
            }
        }
    }

    /// Whether no blocks are left.
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    fn begin_turn(&mut self) -> Option<u64> {
        let prefer_new = !self.last_was_new || self.old.is_empty();
        let (first, second) =
            if prefer_new { (&mut self.new, &mut self.old) } else { (&mut self.old, &mut self.new) };
        let (id, from_first) = match first.pop_front() {
            Some(id) => (id, true),
            None => (second.pop_front()?, false),
        };
        self.last_was_new = prefer_new == from_first;
        if let Some(blocks) = self.copies.get_mut(&id) {
            blocks.deficit_bytes += QUANTUM_BYTES;
        }
        self.turn = Some(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = 2 << 20;

    fn blocks(count: usize) -> VecDeque<u64> {
        vec![BLOCK; count].into()
    }

    fn take(schedule: &mut CopySchedule, count: usize) -> Vec<u64> {
        (0..count).map_while(|_| schedule.next()).map(|(id, _)| id).collect()
    }

    #[test]
    fn short_copy_behind_a_long_one_waits_for_one_turn() {
        let mut schedule = CopySchedule::default();
        schedule.add(1, blocks(500));
        assert_eq!(take(&mut schedule, 101).len(), 101);
        schedule.add(2, blocks(1));
        let next = take(&mut schedule, 3);
        assert!(next.contains(&2), "{next:?}");
    }

    #[test]
    fn long_copy_progresses_despite_many_short_ones() {
        let mut schedule = CopySchedule::default();
        schedule.add(0, blocks(100));
        take(&mut schedule, 1);
        let mut seen = 0;
        for id in 1..200 {
            schedule.add(id, blocks(2));
            seen += take(&mut schedule, 2).iter().filter(|id| **id == 0).count();
        }
        assert!(seen >= 95, "{seen}");
    }

    #[test]
    fn removed_copy_has_no_further_turns() {
        let mut schedule = CopySchedule::default();
        schedule.add(1, blocks(10));
        schedule.add(2, blocks(3));
        schedule.next();
        schedule.remove(1);
        assert_eq!(take(&mut schedule, 10), [2, 2, 2]);
        assert!(schedule.is_empty());
    }

    proptest! {
        #[test]
        fn every_block_is_scheduled_once_and_in_order(sizes in prop::collection::vec(prop::collection::vec(1..=BLOCK, 0..20), 1..12)) {
            let mut schedule = CopySchedule::default();
            for (id, bytes) in sizes.iter().enumerate() {
                schedule.add(id as u64, bytes.clone().into());
            }
            let mut seen = vec![0; sizes.len()];
            while let Some((id, block)) = schedule.next() {
                prop_assert_eq!(block, seen[id as usize]);
                seen[id as usize] += 1;
            }
            prop_assert_eq!(seen, sizes.iter().map(Vec::len).collect::<Vec<_>>());
            prop_assert!(schedule.is_empty());
        }

        /// Upper bound: while `others` long copies are in progress, a copy of `count` blocks ends
        /// within a limited number of their turns.
        #[test]
        fn copy_waits_for_at_most_its_share(others in 1_usize..10, count in 1_usize..20, before in 0_usize..100) {
            let mut schedule = CopySchedule::default();
            for id in 0..others {
                schedule.add(id as u64, blocks(10_000));
            }
            take(&mut schedule, before + 2 * 2 * others);
            schedule.add(99, blocks(count));
            let until = (1..).find(|_| schedule.next().is_some_and(|(id, block)| id == 99 && block + 1 == count)).unwrap();
            let per_turn = (QUANTUM_BYTES / BLOCK) as usize;
            let turns = count.div_ceil(per_turn);
            // Before its first turn the rest of the current turn, and before each later turn one
            // turn of every other copy.
            prop_assert!(until <= count + per_turn + (turns - 1) * others * per_turn, "{until}");
        }

        #[test]
        fn long_copies_get_equal_shares_after_their_first_turn(copies in 2_u64..8, rounds in 1_usize..50) {
            let mut schedule = CopySchedule::default();
            for id in 0..copies {
                schedule.add(id, blocks(1_000));
            }
            let per_turn = (QUANTUM_BYTES / BLOCK) as usize;
            take(&mut schedule, 2 * copies as usize * per_turn);
            let seen = take(&mut schedule, rounds * per_turn * copies as usize);
            for id in 0..copies {
                let share = seen.iter().filter(|other| **other == id).count();
                prop_assert!(share.abs_diff(rounds * per_turn) <= per_turn, "{share}");
            }
        }
    }
}
