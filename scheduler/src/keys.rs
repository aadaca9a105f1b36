//! Small integer keys that stand for long names.
//!
//! A name is resolved once, when an event arrives; after that the scheduler compares and indexes
//! integers. A key is reused for another name only when nothing refers to it any more.

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
    /// A model that is waited for, running, or in some device's memory.
    ModelKey;
    /// A function with at least one invocation that waits or runs.
    FunctionKey;
    /// A tenant with at least one invocation that waits or runs, or a model in memory.
    TenantKey;
    /// A device whose node is up. Keys follow the order in which devices came up.
    DeviceKey;
    /// A kind of device. The key is permanent.
    KindKey;
}

/// Maps names to keys, with a value for each name.
///
/// A value outlives the last reference to its name, until the table is full and the entry is reused
/// for another name.
#[derive(Debug)]
pub(crate) struct KeyTable<I, T> {
    keys: HashMap<I, u32>,
    entries: Vec<KeyEntry<I, T>>,
    /// Above this length, entries without references are reused.
    len_max: usize,
    /// Where the next search for an unreferenced entry starts.
    sweep: usize,
}

#[derive(Debug)]
struct KeyEntry<I, T> {
    id: I,
    refs: u32,
    value: T,
}

/// Entries examined by one search for a free entry, which bounds the cost of a call.
const SWEEP_LEN_MAX: usize = 64;

impl<I: Clone + Eq + Hash, T: Default> KeyTable<I, T> {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { keys: HashMap::new(), entries: Vec::new(), len_max, sweep: 0 }
    }

    /// Returns the key of `id`, creating it if needed, and adds a reference.
    pub(crate) fn retain(&mut self, id: &I) -> u32 {
        let key = match self.keys.get(id) {
            Some(key) => *key,
            None => self.insert(id),
        };
        self.entries[key as usize].refs += 1;
        key
    }

    /// Adds a reference to a key in use.
    pub(crate) fn retain_key(&mut self, key: u32) {
        self.entries[key as usize].refs += 1;
    }

    /// Drops a reference.
    pub(crate) fn release(&mut self, key: u32) {
        let entry = &mut self.entries[key as usize];
        entry.refs = entry.refs.saturating_sub(1);
    }

    /// The key of `id`, if it has one.
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
        let entry = KeyEntry { id: id.clone(), refs: 0, value: T::default() };
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
    fn entries_are_reused_only_without_references() {
        let mut table = KeyTable::<String, u32>::new(2);
        let a = table.retain(&"a".into());
        let b = table.retain(&"b".into());
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
