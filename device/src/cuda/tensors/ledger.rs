//! Bookkeeping of tensors and their holders. Holds no memory.

use std::collections::{BTreeSet, HashMap};
use weir_types::ContentHash;

/// Identity of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorKey {
    /// The hash of the tensor's bytes in their device layout.
    pub hash: ContentHash,
    /// Separates tensors with equal bytes that must not be shared; 0 if sharing is allowed.
    pub layout: u32,
}

/// Usage of a store, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorStoreUsage {
    /// Held tensors.
    pub held_bytes: u64,
    /// Unheld tensors, which are dropped when their memory is needed.
    pub idle_bytes: u64,
    /// Mapped memory of all tensors and spare memory, in whole blocks.
    pub mapped_bytes: u64,
    /// Mapped memory without tensors.
    pub spare_bytes: u64,
}

/// The tensors of a store. `L` describes the load that brought a tensor.
#[derive(Debug)]
pub(super) struct TensorLedger<L> {
    entries: HashMap<u64, TensorEntry<L>>,
    by_key: HashMap<TensorKey, u64>,
    /// Unheld tensors: idle since, and number.
    idle: BTreeSet<(u64, u64)>,
    next_id: u64,
}

/// One tensor.
#[derive(Debug)]
pub(super) struct TensorEntry<L> {
    key: TensorKey,
    /// Offset of its place.
    pub(super) offset: u64,
    /// Length of its place.
    pub(super) bytes: u64,
    /// The load that brought it.
    pub(super) load: L,
    holders: usize,
    idle_since_ns: u64,
}

impl<L> TensorLedger<L> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), by_key: HashMap::new(), idle: BTreeSet::new(), next_id: 0 }
    }

    /// The tensor with this key.
    pub(super) fn find(&self, key: &TensorKey) -> Option<(u64, &TensorEntry<L>)> {
        let id = *self.by_key.get(key)?;
        Some((id, self.entries.get(&id)?))
    }

    /// Adds a tensor, held once. It replaces an older tensor with the same key in lookups.
    pub(super) fn add(&mut self, key: TensorKey, offset: u64, bytes: u64, load: L) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.entries.insert(id, TensorEntry { key, offset, bytes, load, holders: 1, idle_since_ns: 0 });
        self.by_key.insert(key, id);
        id
    }

    /// Adds a holder. Returns the tensor, and whether it was unheld before.
    pub(super) fn hold(&mut self, id: u64) -> Option<(&TensorEntry<L>, bool)> {
        let entry = self.entries.get_mut(&id)?;
        let was_idle = entry.holders == 0;
        if was_idle {
            self.idle.remove(&(entry.idle_since_ns, id));
        }
        entry.holders += 1;
        Some((entry, was_idle))
    }

    /// Removes a holder. Returns the tensor, and whether it is unheld now.
    pub(super) fn release(&mut self, id: u64, now_ns: u64) -> Option<(&TensorEntry<L>, bool)> {
        let entry = self.entries.get_mut(&id)?;
        entry.holders = entry.holders.saturating_sub(1);
        let is_idle = entry.holders == 0;
        if is_idle {
            entry.idle_since_ns = now_ns;
            self.idle.insert((now_ns, id));
        }
        Some((entry, is_idle))
    }

    /// Unheld tensors that `may_go` accepts: idle since, and number, the longest idle first.
    pub(super) fn idle(&self, may_go: impl Fn(&L) -> bool) -> impl Iterator<Item = (u64, u64)> {
        let may_go = move |id| self.entries.get(id).is_some_and(|entry| may_go(&entry.load));
        self.idle.iter().filter(move |(_, id)| may_go(id)).copied()
    }

    /// Removes an unheld tensor.
    pub(super) fn remove(&mut self, id: u64) -> Option<TensorEntry<L>> {
        let entry = self.entries.get(&id)?;
        if entry.holders > 0 {
            return None;
        }
        self.idle.remove(&(entry.idle_since_ns, id));
        if self.by_key.get(&entry.key) == Some(&id) {
            self.by_key.remove(&entry.key);
        }
        self.entries.remove(&id)
    }

    /// Bytes of held and of unheld tensors.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let sum = |held: bool| {
            let of = self.entries.values().filter(|entry| (entry.holders > 0) == held);
            of.map(|entry| entry.bytes).sum()
        };
        (sum(true), sum(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u8) -> TensorKey {
        TensorKey { hash: ContentHash::from_content(&[number]), layout: 0 }
    }

    #[test]
    fn unheld_tensors_are_dropped_in_order_of_last_use() {
        let mut ledger = TensorLedger::new();
        let ids: Vec<_> = (0..3).map(|number| ledger.add(key(number), 0, 1, ())).collect();
        for (id, now) in ids.iter().zip([30, 10, 20]) {
            ledger.release(*id, now);
        }
        ledger.hold(ids[1]);
        assert_eq!(ledger.idle(|()| true).collect::<Vec<_>>(), [(20, ids[2]), (30, ids[0])]);
        assert!(ledger.remove(ids[1]).is_none(), "it is held");
        assert!(ledger.remove(ids[2]).is_some());
        assert!(ledger.find(&key(2)).is_none());
        assert_eq!(ledger.bytes(), (1, 1));
    }

    #[test]
    fn newer_tensor_replaces_older_one_in_lookups_only() {
        let mut ledger = TensorLedger::new();
        let old = ledger.add(key(0), 0, 1, "failed");
        let new = ledger.add(key(0), 1, 1, "good");
        assert_eq!(ledger.find(&key(0)).unwrap().0, new);
        ledger.release(old, 0);
        ledger.remove(old);
        assert_eq!(ledger.find(&key(0)).unwrap().0, new);
    }

    proptest! {
        #[test]
        fn counts_add_up(steps in prop::collection::vec((0_u8..4, 0_usize..8), 1..100)) {
            let mut ledger = TensorLedger::new();
            let mut holders: HashMap<u64, usize> = HashMap::new();
            for (now, (step, which)) in steps.into_iter().enumerate() {
                let mut ids: Vec<u64> = holders.keys().copied().collect();
                ids.sort_unstable();
                let id = ids.get(which % ids.len().max(1)).copied();
                match (step, id) {
                    (0, _) | (_, None) => {
                        let id = ledger.add(key(u8::try_from(which).unwrap()), 0, 10, ());
                        holders.insert(id, 1);
                    }
                    (1, Some(id)) => {
                        ledger.hold(id);
                        *holders.get_mut(&id).unwrap() += 1;
                    }
                    (2, Some(id)) if holders[&id] > 0 => {
                        ledger.release(id, now as u64);
                        *holders.get_mut(&id).unwrap() -= 1;
                    }
                    (_, Some(id)) => {
                        if ledger.remove(id).is_some() {
                            prop_assert_eq!(holders.remove(&id), Some(0));
                        }
                    }
                }
                let held = holders.values().filter(|count| **count > 0).count() as u64;
                prop_assert_eq!(ledger.bytes(), (held * 10, (holders.len() as u64 - held) * 10));
                let mut idle: Vec<_> = ledger.idle(|()| true).map(|(_, id)| id).collect();
                idle.sort_unstable();
                let unheld = holders.iter().filter(|(_, count)| **count == 0);
                let mut expected: Vec<_> = unheld.map(|(id, _)| *id).collect();
                expected.sort_unstable();
                prop_assert_eq!(idle, expected);
            }
        }
    }
}
