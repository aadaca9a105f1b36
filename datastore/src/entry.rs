//! What a store holds, and how old it is.

use crate::{Key, LIST_LIMIT_MAX, LeaseId};
use bytes::Bytes;
use std::fmt;

/// A state of the whole store. Every commit that changes something makes the next one, and all its changes bear it. Revisions order;
/// the distance between two means nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub key: Key,
    /// What it holds.
    pub value: Bytes,
    /// The revision that made the key appear. A key that is deleted and written again appears anew.
    pub created_at: Revision,
    /// The revision that last wrote it.
    pub modified_at: Revision,
    /// The lease it goes away with.
    pub lease: Option<LeaseId>,
}

/// Some of the entries below a prefix, in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The state they were read from: a watch after it misses nothing.
    pub revision: Revision,
    /// The key to go on after, or none where these were the last.
    pub more_after: Option<Key>,
}

/// Bytes of values after which a listing is long enough.
pub(crate) const LISTING_BYTES_MAX: usize = 8 << 20;

impl Listing {
    /// An empty one, of the state `revision`.
    pub(crate) fn new(revision: Revision) -> Self {
        Self { entries: Vec::new(), revision, more_after: None }
    }

    /// Take in entries, in key order, until there are no more, or `limit` of them, or [`LISTING_BYTES_MAX`].
    pub(crate) fn fill<E>(
        mut self,
        limit: usize,
        entries: impl Iterator<Item = Result<Entry, E>>,
    ) -> Result<Self, E> {
        let limit = limit.clamp(1, LIST_LIMIT_MAX);
        let mut bytes = 0;
        for entry in entries {
            if self.entries.len() == limit || bytes > LISTING_BYTES_MAX {
                self.more_after = self.entries.last().map(|entry| entry.key.clone());
                break;
            }
            let entry = entry?;
            bytes += entry.value.len();
            self.entries.push(entry);
        }
        Ok(self)
    }
}
