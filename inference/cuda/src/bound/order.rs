//! Order of a program's steps in a graph: [`graph_order`].

use crate::program::StepMemory;
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum length of the longest sequence of a graph with branches, in per cent of all steps. Longer
/// sequences gain nothing from branches, and concurrent kernels can slow each other down
/// (docs/measurements.md, "Branches of a graph").
const LONGEST_PERCENT_MAX: usize = 90;

/// Maximum number of steps of a graph with branches: the memory for the order is quadratic in it, 4
/// MiB at most.
const BRANCHED_STEPS_MAX: usize = 8_192;

/// Returns for each step the steps that it follows directly in a graph.
pub(super) fn graph_order<'a>(steps: impl ExactSizeIterator<Item = &'a StepMemory>) -> Vec<Vec<usize>> {
    let len = steps.len();
    if len <= BRANCHED_STEPS_MAX {
        let mut order = StepOrder::default();
        let followed: Vec<Vec<usize>> = steps.map(|memory| order.add(memory)).collect();
        if longest(&followed) * 100 < len * LONGEST_PERCENT_MAX {
            return followed;
        }
    }
    (0..len).map(|step| step.checked_sub(1).into_iter().collect()).collect()
}

/// Returns the number of steps of the longest sequence.
fn longest(followed: &[Vec<usize>]) -> usize {
    let mut lengths: Vec<usize> = Vec::with_capacity(followed.len());
    for before in followed {
        let longest = before.iter().filter_map(|step| lengths.get(*step)).max();
        lengths.push(longest.map_or(1, |length| length + 1));
    }
    lengths.into_iter().max().unwrap_or(0)
}

/// The order in which steps may use the arena. Steps that are not ordered may run concurrently.
///
/// For each byte that a step reads, the step follows the last writer of the byte. For each byte
/// that it writes, it follows the last writer and all later readers. Values can share bytes of the
/// arena, one value after the other; this also orders the steps of these values.
#[derive(Default)]
struct StepOrder {
    /// Ranges of the arena by their first byte. They do not overlap.
    parts: BTreeMap<u64, ArenaRange>,
    /// For each step, all steps before it, directly or through others.
    before: Vec<StepSet>,
}

/// Range of bytes of the arena.
#[derive(Clone)]
struct ArenaRange {
    end: u64,
    /// The last step that wrote the range.
    writer: Option<usize>,
    /// Steps that have read the range since the last write.
    readers: Vec<usize>,
}

/// Set of steps, one bit each.
#[derive(Clone, Default)]
struct StepSet(Vec<u64>);

impl StepOrder {
    /// Adds the next step. Returns the steps that it follows directly: those which no other step
    /// between orders already.
    fn add(&mut self, memory: &StepMemory) -> Vec<usize> {
        let step = self.before.len();
        let mut followed = Vec::new();
        for range in &memory.reads {
            for part in self.parts(range) {
                followed.extend(part.writer);
                part.readers.push(step);
            }
        }
        for range in &memory.writes {
            for part in self.parts(range) {
                followed.extend(part.writer.replace(step));
                followed.append(&mut part.readers);
            }
        }
        followed.retain(|before| *before != step);
        followed.sort_unstable_by(|a, b| b.cmp(a));
        let mut before = StepSet::default();
        // Later steps first, because a step can be ordered by later ones only.
        followed.retain(|followed| {
            let is_new = !before.contains(*followed);
            if is_new {
                before.insert(*followed);
                before.extend(&self.before[*followed]);
            }
            is_new
        });
        self.before.push(before);
        followed
    }

    /// Returns the parts that make up a range, each of which lies in the range.
    fn parts(&mut self, range: &Range<u64>) -> impl Iterator<Item = &mut ArenaRange> {
        self.split(range.start);
        self.split(range.end);
        let mut gaps = Vec::new();
        let mut end = range.start;
        for (start, part) in self.parts.range(range.clone()) {
            gaps.push(end..*start);
            end = part.end;
        }
        gaps.push(end..range.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            self.parts.insert(gap.start, ArenaRange { end: gap.end, writer: None, readers: Vec::new() });
        }
        self.parts.range_mut(range.clone()).map(|(_, part)| part)
    }

    /// Splits the part around this byte, if there is one.
    fn split(&mut self, at: u64) {
        let Some((_, part)) = self.parts.range_mut(..at).next_back() else { return };
        if part.end > at {
            let rest = part.clone();
            part.end = at;
            self.parts.insert(at, rest);
        }
    }
}

impl StepSet {
    fn contains(&self, step: usize) -> bool {
        self.0.get(step / 64).is_some_and(|word| word >> (step % 64) & 1 == 1)
    }

    fn insert(&mut self, step: usize) {
        if self.0.len() <= step / 64 {
            self.0.resize(step / 64 + 1, 0);
        }
        self.0[step / 64] |= 1 << (step % 64);
    }

    fn extend(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some with one range")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(reads: &[Range<u64>], writes: &[Range<u64>]) -> StepMemory {
        StepMemory { reads: reads.to_vec(), writes: writes.to_vec(), workspace: 0..0 }
    }

    fn required(steps: &[StepMemory]) -> Vec<Vec<usize>> {
        let mut order = StepOrder::default();
        steps.iter().map(|step| order.add(step)).collect()
    }

    #[test]
    fn independent_steps_are_branches() {
        let steps = [
            step(&[0..8], &[8..16]),
            step(&[0..8], &[16..24]),
            step(&[0..8], &[24..32]),
            step(&[8..16, 16..24, 24..32], &[32..40]),
        ];
        assert_eq!(graph_order(steps.iter()), [vec![], vec![], vec![], vec![2, 1, 0]]);
        assert_eq!(graph_order(steps.iter()), required(&steps));
    }

    #[test]
    fn step_follows_readers_of_the_bytes_it_overwrites() {
        let steps = [step(&[], &[0..8]), step(&[0..4], &[8..16]), step(&[], &[2..3]), step(&[4..8], &[])];
        assert_eq!(required(&steps), [vec![], vec![0], vec![1], vec![0]]);
    }

    #[test]
    fn orders_through_other_steps_are_left_out() {
        let steps = [step(&[], &[0..8]), step(&[0..8], &[8..16]), step(&[0..8, 8..16], &[16..24])];
        assert_eq!(required(&steps), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn branches_that_hardly_shorten_the_run_are_left_out() {
        let mut steps = vec![step(&[], &[0..8]); 19];
        steps.push(step(&[], &[8..16]));
        let sequence: Vec<Vec<usize>> =
            (0..20).map(|step: usize| step.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(graph_order(steps.iter()), sequence);
        steps.extend([step(&[], &[16..24]), step(&[], &[24..32])]);
        assert_eq!(graph_order(steps.iter()), required(&steps));
    }

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0_u64..24, 1_u64..8).prop_map(|(start, len)| start..start + len), 0..3)
    }

    fn overlap(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
        a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
    }

    proptest! {
        /// Two steps conflict if they use the same byte and at least one of them writes it. Steps are
        /// ordered exactly if a chain of conflicts connects them.
        #[test]
        fn exactly_the_conflicting_steps_are_ordered(
            steps in prop::collection::vec((ranges(), ranges()), 1..14)
        ) {
            let steps: Vec<_> = steps.iter().map(|(reads, writes)| step(reads, writes)).collect();
            let mut expected = vec![vec![false; steps.len()]; steps.len()];
            let mut found = expected.clone();
            let reach = |of: &mut Vec<Vec<bool>>, from: usize, to: usize| {
                let through = of[to].clone();
                of[from].iter_mut().zip(through).for_each(|(reached, through)| *reached |= through);
                of[from][to] = true;
            };
            for (later, followed) in required(&steps).into_iter().enumerate() {
                followed.iter().for_each(|earlier| reach(&mut found, later, *earlier));
                for earlier in 0..later {
                    let a = &steps[earlier];
                    let b = &steps[later];
                    let is_conflict = overlap(&a.writes, &b.reads)
                        || overlap(&a.reads, &b.writes)
                        || overlap(&a.writes, &b.writes);
                    if is_conflict {
                        reach(&mut expected, later, earlier);
                    }
                }
                let implied = followed.iter().any(|a| followed.iter().any(|b| found[*b][*a]));
                prop_assert!(!implied, "an order is stated twice");
            }
            prop_assert_eq!(found, expected);
        }
    }
}
