//! What a commit asks for: compares, and writes that happen only if all of them hold.

use crate::{Entry, Error, Key, LeaseId, Result, Revision};
use bytes::Bytes;
use std::collections::BTreeSet;

/// The largest value. Larger things belong into the blob store, under a hash that the value names.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// The most compares, and the most writes, in one transaction: etcd's own default.
pub const TRANSACTION_OPERATIONS_MAX: usize = 128;

/// The most bytes of keys and values in one transaction, so that it fits in the 1.5 MiB that etcd takes in a request.
pub const TRANSACTION_BYTES_MAX: usize = VALUE_BYTES_MAX + (256 << 10);

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// There is no such key.
    Absent(Key),
    /// There is such a key.
    Exists(Key),
    /// The key appeared at this revision: the fence of an elected leader, whose own key this is.
    CreatedAt(Key, Revision),
    /// The key was last written at this revision: nobody wrote it since it was read.
    ModifiedAt(Key, Revision),
    /// The key holds exactly this.
    Holds(Key, Bytes),
}

/// A change to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Make the key hold `value` and belong to `lease`, whatever it held and belonged to.
    Put {
        /// Where.
        key: Key,
        /// What.
        value: Bytes,
        /// The lease it goes away with.
        lease: Option<LeaseId>,
    },
    /// Take the key away. Not having it is not an error.
    Delete(Key),
}

/// Compares and writes that are one step: all compares hold and every write happens, or nothing does. A key is written once at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What then happens.
    pub writes: Vec<Write>,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// It happened, and is as durable as the member promises. Without effective writes the revision is the current one.
    Done(Revision),
    /// A compare did not hold; nothing happened.
    Conflict,
}

impl Commit {
    /// The revision, or none after a conflict.
    #[must_use]
    pub fn done(self) -> Option<Revision> {
        match self {
            Self::Done(revision) => Some(revision),
            Self::Conflict => None,
        }
    }
}

impl Transaction {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also require `compare`.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    /// Also write `value` at `key`.
    #[must_use]
    pub fn put(self, key: Key, value: impl Into<Bytes>) -> Self {
        self.write(Write::Put { key, value: value.into(), lease: None })
    }

    /// Also write `value` at `key`, to go away with `lease`.
    #[must_use]
    pub fn put_leased(self, key: Key, value: impl Into<Bytes>, lease: LeaseId) -> Self {
        self.write(Write::Put { key, value: value.into(), lease: Some(lease) })
    }

    /// Also take `key` away.
    #[must_use]
    pub fn delete(self, key: Key) -> Self {
        self.write(Write::Delete(key))
    }

    fn write(mut self, write: Write) -> Self {
        self.writes.push(write);
        self
    }

    /// Check it against the limits that hold in every member. Every member calls this first.
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
    /// The key it is about.
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

    /// Whether it holds of what is at its key now.
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
    /// The key it writes.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete(key) => key,
        }
    }
}
