//! Transactions: compares, and writes that apply only if all compares hold.

use crate::{Entry, Error, Key, LeaseId, Result, Revision};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Largest value, in bytes. Larger data belongs into the blob store, with its hash in the value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Largest number of compares, and of writes, in one transaction: etcd's default.
pub const TRANSACTION_OPERATIONS_MAX: usize = 128;

/// Largest total size of keys and values in one transaction. Fits into etcd's request limit of 1.5
/// MiB.
pub const TRANSACTION_BYTES_MAX: usize = VALUE_BYTES_MAX + (256 << 10);

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(Key),
    /// The key exists.
    Exists(Key),
    /// The key was created at this revision. Serves as the fencing token of an elected leader that
    /// owns the key.
    CreatedAt(Key, Revision),
    /// The key was last written at this revision. Detects writes since the key was read.
    ModifiedAt(Key, Revision),
    /// The key has exactly this value.
    Holds(Key, Bytes),
}

/// A change to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Writes `value` at `key` and attaches the key to `lease`, replacing the previous value and
    /// lease.
    Put {
        /// Key.
        key: Key,
        /// Value.
        value: Bytes,
        /// Lease to attach the key to.
        lease: Option<LeaseId>,
    },
    /// Deletes the key. Deleting an absent key is not an error.
    Delete(Key),
}

/// Compares and writes that apply atomically: either all compares hold and every write is applied,
/// or none is. A transaction writes each key at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Conditions.
    pub compares: Vec<Compare>,
    /// Writes to apply if all conditions hold.
    pub writes: Vec<Write>,
}

/// Outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// The transaction was applied, with the durability of the backend. If no write changed
    /// anything, the revision is the current one.
    Done(Revision),
    /// A compare did not hold; nothing was written.
    Conflict,
}

impl Commit {
    /// The revision; `None` after a conflict.
    #[must_use]
    pub fn done(self) -> Option<Revision> {
        match self {
            Self::Done(revision) => Some(revision),
            Self::Conflict => None,
        }
    }
}

impl Transaction {
    /// Creates an empty transaction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    /// Adds a write of `value` at `key`.
    #[must_use]
    pub fn put(self, key: Key, value: impl Into<Bytes>) -> Self {
        self.write(Write::Put { key, value: value.into(), lease: None })
    }

    /// Adds a write of `value` at `key`, attached to `lease`.
    #[must_use]
    pub fn put_leased(self, key: Key, value: impl Into<Bytes>, lease: LeaseId) -> Self {
        self.write(Write::Put { key, value: value.into(), lease: Some(lease) })
    }

    /// Adds a deletion of `key`.
    #[must_use]
    pub fn delete(self, key: Key) -> Self {
        self.write(Write::Delete(key))
    }

    fn write(mut self, write: Write) -> Self {
        self.writes.push(write);
        self
    }

    /// Checks the transaction against the limits common to all backends. Every backend calls this
    /// first.
    pub(crate) fn check(&self) -> Result<()> {
        let operations = self.compares.len().max(self.writes.len());
        if operations > TRANSACTION_OPERATIONS_MAX {
            return Err(Error::TooManyOperations(operations));
        }
        let mut written = BTreeSet::new();
        let mut bytes = 0;
        for write in &self.writes {
            let key = write.key();
            if !written.insert(key) {
                return Err(Error::KeyWrittenTwice(key.clone()));
            }
            if let Write::Put { value, .. } = write {
                if value.len() > VALUE_BYTES_MAX {
                    return Err(Error::ValueTooLarge { key: key.clone(), value_bytes: value.len() });
                }
                bytes += value.len();
            }
            bytes += key.as_str().len();
        }
        for compare in &self.compares {
            bytes += compare.key().as_str().len()
                + if let Compare::Holds(_, value) = compare { value.len() } else { 0 };
        }
        if bytes > TRANSACTION_BYTES_MAX {
            return Err(Error::TransactionTooLarge(bytes));
        }
        Ok(())
    }
}

impl Compare {
    /// The key of the condition.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Absent(key)
            | Self::Exists(key)
            | Self::CreatedAt(key, _)
            | Self::ModifiedAt(key, _)
            | Self::Holds(key, _) => key,
        }
    }

    /// Whether the condition holds for the current entry of its key.
    pub(crate) fn holds(&self, current: Option<&Entry>) -> bool {
        match (self, current) {
            (Self::Absent(_), current) => current.is_none(),
            (_, None) => false,
            (Self::Exists(_), Some(_)) => true,
            (Self::CreatedAt(_, revision), Some(entry)) => entry.created_at == *revision,
            (Self::ModifiedAt(_, revision), Some(entry)) => entry.modified_at == *revision,
            (Self::Holds(_, value), Some(entry)) => entry.value == *value,
        }
    }
}

impl Write {
    /// The key of the write.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete(key) => key,
        }
    }
}
