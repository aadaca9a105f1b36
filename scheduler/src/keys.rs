//! Small numbers that stand for long names.
//!
//! Names are resolved once, when an event comes in; from there on the scheduler compares and indexes numbers. A number is given to another
//! name only when nothing refers to it any more.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(pub(crate) u32);

            impl $name {
                #[allow(dead_code, reason = "not every key is an index into something")]
                pub(crate) fn index(self) -> usize {
                    self.0 as usize
                }
            }
        )*
    };
}

keys! {
    /// A model, for as long as it is waited for, running, or in some device's memory.
    ModelKey;
    /// A function, for as long as one of its invocations waits or runs.
    FunctionKey;
    /// A tenant, for as long as one of its invocations waits or runs, or one of its models is in memory.
    TenantKey;
    /// A device, for as long as its node is up. Devices are in the order in which they came up.
    DeviceKey;
    /// A kind of device, for good.
    KindKey;
}

/// Names to numbers, with what is known about each.
///
/// What was learned about a name outlives the last reference to it, until the table is full and the place is needed for another.
#[derive(Debug)]
pub(crate) struct Table<I, T> {
    keys: HashMap<I, u32>,
    entries: Vec<Entry<I, T>>,
    /// Beyond this, places without references are given to others.
    len_max: usize,
    /// Where the search for such a place goes on.
    sweep: usize,
}

#[derive(Debug)]
struct Entry<I, T> {
    id: I,
    refs: u32,
    value: T,
}

/// Entries that one search for a free place looks at, so that every call costs about the same.
const SWEEP_LEN_MAX: usize = 64;

impl<I: Clone + Eq + Hash, T: Default> Table<I, T> {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { keys: HashMap::new(), entries: Vec::new(), len_max, sweep: 0 }
    }

    /// The number of `id`, which gets one if it has none, with one more reference.
    pub(crate) fn retain(&mut self, id: &I) -> u32 {
        let key = match self.keys.get(id) {
            Some(key) => *key,
            None => self.insert(id),
        };
        self.entries[key as usize].refs += 1;
        key
    }

    /// One more reference to a number in use.
    pub(crate) fn retain_key(&mut self, key: u32) {
        self.entries[key as usize].refs += 1;
    }

    /// One reference less.
    pub(crate) fn release(&mut self, key: u32) {
        let entry = &mut self.entries[key as usize];
        entry.refs = entry.refs.saturating_sub(1);
    }

    /// The number of `id`, if it has one.
    pub(crate) fn key<Q: Hash + Eq + ?Sized>(&self, id: &Q) -> Option<u32>
    where
        I: Borrow<Q>,
    {
        self.keys.get(id).copied()
    }

    pub(crate) fn id(&self, key: u32) -> &I {
        &self.entries[key as usize].id
    }

    pub(crate) fn get(&self, key: u32) -> &T {
        &self.entries[key as usize].value
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> &mut T {
        &mut self.entries[key as usize].value
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|entry| &mut entry.value)
    }

    fn insert(&mut self, id: &I) -> u32 {
        let entry = Entry { id: id.clone(), refs: 0, value: T::default() };
        let key = match self.free_place() {
            Some(place) => {
                self.keys.remove(&self.entries[place].id);
                self.entries[place] = entry;
                place as u32
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.keys.insert(id.clone(), key);
        key
    }

    fn free_place(&mut self) -> Option<usize> {
        if self.entries.len() < self.len_max {
            return None;
        }
        for _ in 0..SWEEP_LEN_MAX {
            self.sweep = (self.sweep + 1) % self.entries.len();
            if self.entries[self.sweep].refs == 0 {
                return Some(self.sweep);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_only_when_nothing_refers_to_them() {
        let mut table = Table::<String, u32>::new(2);
        let (a, b) = (table.retain(&"a".into()), table.retain(&"b".into()));
        *table.get_mut(a) = 7;
        table.release(a);
        assert_eq!((table.retain(&"a".into()), *table.get(a)), (a, 7), "what was learned is kept");
        table.release(a);
        assert_eq!(table.retain(&"c".into()), a);
        assert_eq!((table.key("a"), *table.get(a)), (None, 0));
        let d = table.retain(&"d".into());
        assert!(d != a && d != b, "all are in use: the table grows");
    }
}
