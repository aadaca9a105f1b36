//! What there is, where, and who looks at it. Bookkeeping only.

use std::collections::{BTreeSet, HashMap};

/// Entries by number. `P` is where the bytes of one are.
#[derive(Debug)]
pub(super) struct Ledger<P> {
    entries: HashMap<u64, Entry<P>>,
    /// Since when each has not been used, and its number.
    order: BTreeSet<(u64, u64)>,
}

#[derive(Debug)]
struct Entry<P> {
    place: P,
    used_ns: u64,
    /// How many look at it.
    pins: usize,
    /// It is being copied elsewhere.
    moving: bool,
    /// Nobody finds it any more; it goes when nobody looks at it.
    gone: bool,
}

impl<P> Ledger<P> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), order: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, number: u64, place: P, now_ns: u64) {
        self.entries.insert(number, Entry { place, used_ns: now_ns, pins: 0, moving: false, gone: false });
        self.order.insert((now_ns, number));
    }

    /// Look at an entry, which stays until as many [`unpin`](Self::unpin)s.
    pub(super) fn pin(&mut self, number: u64, now_ns: u64) -> Option<&P> {
        let entry = self.entries.get_mut(&number).filter(|entry| !entry.gone)?;
        entry.pins += 1;
        self.order.remove(&(entry.used_ns, number));
        entry.used_ns = entry.used_ns.max(now_ns);
        self.order.insert((entry.used_ns, number));
        Some(&entry.place)
    }

    /// Look no more. Gives where the bytes were if that was what kept them.
    pub(super) fn unpin(&mut self, number: u64) -> Option<P> {
        let entry = self.entries.get_mut(&number)?;
        entry.pins = entry.pins.saturating_sub(1);
        self.take_if_over(number)
    }

    /// Let nobody find an entry any more. Gives where its bytes were, unless somebody looks at them.
    pub(super) fn remove(&mut self, number: u64) -> Option<P> {
        self.entries.get_mut(&number)?.gone = true;
        self.take_if_over(number)
    }

    /// The entries that nobody looks at and that may be moved, those that have not been used for longest first.
    pub(super) fn idle(&self) -> impl Iterator<Item = (u64, &P)> {
        let entries = self.order.iter().filter_map(|(_, number)| Some((*number, self.entries.get(number)?)));
        let idle = entries.filter(|(_, entry)| entry.pins == 0 && !entry.moving && !entry.gone);
        idle.map(|(number, entry)| (number, &entry.place))
    }

    /// Begin to move the first of them that `may_move`.
    pub(super) fn begin_move(&mut self, may_move: impl Fn(&P) -> bool) -> Option<(u64, &P)> {
        let (number, _) = self.idle().find(|(_, place)| may_move(place))?;
        let entry = self.entries.get_mut(&number)?;
        entry.moving = true;
        Some((number, &entry.place))
    }

    /// End a move, to `place` if it was made. Gives what is free now: where the bytes were; or the new place, if somebody has looked meanwhile.
    pub(super) fn end_move(&mut self, number: u64, place: Option<P>) -> Option<P> {
        let entry = self.entries.get_mut(&number)?;
        entry.moving = false;
        if entry.gone {
            return self.take_if_over(number);
        }
        match place {
            Some(place) if entry.pins == 0 => Some(std::mem::replace(&mut entry.place, place)),
            place => place,
        }
    }

    /// Those that have not been used since `limit_ns`.
    pub(super) fn unused_since(&self, limit_ns: u64) -> Vec<u64> {
        self.order.iter().take_while(|(used_ns, _)| *used_ns <= limit_ns).map(|(_, number)| *number).collect()
    }

    /// Every place.
    pub(super) fn places(&self) -> impl Iterator<Item = &P> {
        self.entries.values().map(|entry| &entry.place)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn take_if_over(&mut self, number: u64) -> Option<P> {
        let entry = self.entries.get(&number)?;
        if !entry.gone || entry.moving || entry.pins > 0 {
            return None;
        }
        self.order.remove(&(entry.used_ns, number));
        self.entries.remove(&number).map(|entry| entry.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_looked_at_is_neither_moved_nor_lost() {
        let mut ledger = Ledger::new();
        ledger.add(1, "device", 10);
        ledger.add(2, "device", 20);
        assert_eq!(ledger.pin(1, 30), Some(&"device"));
        assert_eq!(ledger.idle().collect::<Vec<_>>(), [(2, &"device")]);
        assert_eq!(ledger.begin_move(|_| true).unwrap().0, 2, "the other one");
        assert_eq!(ledger.idle().count(), 0, "it is being moved");
        assert!(ledger.begin_move(|_| true).is_none());
        assert_eq!(ledger.end_move(2, Some("host")), Some("device"));
        assert_eq!(ledger.remove(1), None);
        assert_eq!(ledger.pin(1, 40), None, "nobody finds it");
        assert_eq!(ledger.unpin(1), Some("device"));
        assert_eq!(ledger.len(), 1);
    }

    #[test]
    fn a_move_that_somebody_looks_at_is_not_made() {
        let mut ledger = Ledger::new();
        ledger.add(1, "device", 10);
        ledger.begin_move(|_| true);
        assert_eq!(ledger.pin(1, 20), Some(&"device"));
        assert_eq!(ledger.end_move(1, Some("host")), Some("host"));
        assert_eq!(ledger.places().collect::<Vec<_>>(), [&"device"]);
        ledger.unpin(1);
        assert_eq!(ledger.end_move(1, None), None);
        // Removed in the middle of a move, it goes with the end of that.
        ledger.begin_move(|_| true);
        assert_eq!(ledger.remove(1), None);
        assert_eq!(ledger.end_move(1, Some("host")), Some("device"));
        assert_eq!(ledger.len(), 0);
    }

    proptest! {
        #[test]
        fn every_place_is_free_once(steps in prop::collection::vec((0_u8..7, 0_u64..6), 1..200)) {
            let mut ledger: Ledger<u64> = Ledger::new();
            let (mut next, mut freed, mut moving) = (100, Vec::new(), Vec::new());
            let mut pins: HashMap<u64, usize> = HashMap::new();
            for (now, (step, number)) in steps.into_iter().enumerate() {
                match step {
                    0 if !ledger.entries.contains_key(&number) => { next += 1; ledger.add(number, next, now as u64); }
                    1 => if ledger.pin(number, now as u64).is_some() { *pins.entry(number).or_default() += 1; },
                    2 => if pins.get(&number).is_some_and(|count| *count > 0) {
                        *pins.get_mut(&number).unwrap() -= 1;
                        freed.extend(ledger.unpin(number));
                    },
                    3 => freed.extend(ledger.remove(number)),
                    4 => moving.extend(ledger.begin_move(|_| true).map(|(number, _)| number)),
                    5 => if let Some(number) = moving.pop() { next += 1; let new = next; match ledger.end_move(number, Some(new)) {
                        Some(free) => { if free != new && !ledger.entries.contains_key(&number) { freed.push(new); } freed.push(free); }
                        None => freed.push(new),
                    } },
                    _ => if let Some(number) = moving.pop() { freed.extend(ledger.end_move(number, None)); },
                }
                let mut all: Vec<u64> = freed.iter().copied().chain(ledger.places().copied()).collect();
                all.sort_unstable();
                prop_assert_eq!(all, (101..=next).collect::<Vec<_>>());
                prop_assert_eq!(ledger.order.len(), ledger.len());
            }
        }
    }
}
