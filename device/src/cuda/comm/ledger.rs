//! Bookkeeping of intermediates: places, pins and last uses. Holds no memory.

use std::collections::{BTreeSet, HashMap};

/// Entries by number. `P` is the place of an entry's bytes.
#[derive(Debug)]
pub(super) struct IntermediateLedger<P> {
    entries: HashMap<u64, LedgerEntry<P>>,
    /// Entries by time of last use, with their number.
    order: BTreeSet<(u64, u64)>,
}

#[derive(Debug)]
struct LedgerEntry<P> {
    place: P,
    used_ns: u64,
    /// Number of pins.
    pins: usize,
    /// Whether the entry is being copied elsewhere.
    moving: bool,
    /// Whether the entry was removed; it is freed with its last pin.
    gone: bool,
}

impl<P> IntermediateLedger<P> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), order: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, number: u64, place: P, now_ns: u64) {
        self.entries
            .insert(number, LedgerEntry { place, used_ns: now_ns, pins: 0, moving: false, gone: false });
        self.order.insert((now_ns, number));
    }

    /// Pins an entry until as many [`unpin`](Self::unpin)s.
    pub(super) fn pin(&mut self, number: u64, now_ns: u64) -> Option<&P> {
        let entry = self.entries.get_mut(&number).filter(|entry| !entry.gone)?;
        entry.pins += 1;
        self.order.remove(&(entry.used_ns, number));
        entry.used_ns = entry.used_ns.max(now_ns);
        self.order.insert((entry.used_ns, number));
        Some(&entry.place)
    }

    /// Releases a pin. Returns the entry's place if this was the last pin of a removed entry.
    pub(super) fn unpin(&mut self, number: u64) -> Option<P> {
        let entry = self.entries.get_mut(&number)?;
        entry.pins = entry.pins.saturating_sub(1);
        self.take_if_over(number)
    }

    /// Removes an entry. Returns its place, unless the entry is pinned.
    pub(super) fn remove(&mut self, number: u64) -> Option<P> {
        self.entries.get_mut(&number)?.gone = true;
        self.take_if_over(number)
    }

    /// Unpinned entries that can be moved, least recently used first.
    pub(super) fn idle(&self) -> impl Iterator<Item = (u64, &P)> {
        let entries = self.order.iter().filter_map(|(_, number)| Some((*number, self.entries.get(number)?)));
        let idle = entries.filter(|(_, entry)| entry.pins == 0 && !entry.moving && !entry.gone);
        idle.map(|(number, entry)| (number, &entry.place))
    }

    /// Starts moving the first such entry that `may_move` accepts.
    pub(super) fn begin_move(&mut self, may_move: impl Fn(&P) -> bool) -> Option<(u64, &P)> {
        let (number, _) = self.idle().find(|(_, place)| may_move(place))?;
        let entry = self.entries.get_mut(&number)?;
        entry.moving = true;
        Some((number, &entry.place))
    }

    /// Ends a move; `place` is the new place if the copy succeeded. Returns the place to free: the
    /// old one, or the new one if the entry was pinned in the meantime.
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

    /// Entries that have been unused since `limit_ns`.
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
    fn pinned_entries_are_neither_moved_nor_freed() {
        let mut ledger = IntermediateLedger::new();
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
    fn pin_during_a_move_cancels_the_move() {
        let mut ledger = IntermediateLedger::new();
        ledger.add(1, "device", 10);
        ledger.begin_move(|_| true);
        assert_eq!(ledger.pin(1, 20), Some(&"device"));
        assert_eq!(ledger.end_move(1, Some("host")), Some("host"));
        assert_eq!(ledger.places().collect::<Vec<_>>(), [&"device"]);
        ledger.unpin(1);
        assert_eq!(ledger.end_move(1, None), None);
        // An entry that is removed during a move is freed when the move ends.
        ledger.begin_move(|_| true);
        assert_eq!(ledger.remove(1), None);
        assert_eq!(ledger.end_move(1, Some("host")), Some("device"));
        assert_eq!(ledger.len(), 0);
    }

    proptest! {
        #[test]
        fn every_place_is_freed_once(steps in prop::collection::vec((0_u8..7, 0_u64..6), 1..200)) {
            let mut ledger: IntermediateLedger<u64> = IntermediateLedger::new();
            let mut next = 100;
            let mut freed = Vec::new();
            let mut moving = Vec::new();
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
