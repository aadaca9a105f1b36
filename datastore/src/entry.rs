//! Entries, revisions and listings.

use crate::{Key, LIST_LIMIT_MAX, LeaseId};
use bytes::Bytes;
use std::fmt;

/// Version number of the whole store. Each commit that changes something increments the revision,
/// and all its changes carry the new revision. Revisions are ordered; the difference between two
/// revisions has no meaning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The next revision.
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

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key.
    pub key: Key,
    /// Value.
    pub value: Bytes,
    /// Revision that created the key. Deleting a key and writing it again creates it again.
    pub created_at: Revision,
    /// Revision that last wrote the key.
    pub modified_at: Revision,
    /// Lease that the entry is attached to; the end of the lease deletes the entry.
    pub lease: Option<LeaseId>,
}

/// One page of the entries below a prefix, in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Entries.
    pub entries: Vec<Entry>,
    /// Revision that the entries were read at. A watch after this revision misses no change.
    pub revision: Revision,
    /// Last key of the page; `None` on the last page.
    pub more_after: Option<Key>,
}

/// Total size of values at which a page ends.
pub(crate) const LISTING_BYTES_MAX: usize = 8 << 20;

impl Listing {
    /// Creates an empty listing at `revision`.
    pub(crate) fn new(revision: Revision) -> Self {
        Self { entries: Vec::new(), revision, more_after: None }
    }

    /// Adds entries in key order, until the iterator ends or the page has `limit` entries or
    /// [`LISTING_BYTES_MAX`] bytes.
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
