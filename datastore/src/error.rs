//! Errors of all backends.

use crate::transaction::{TRANSACTION_BYTES_MAX, TRANSACTION_OPERATIONS_MAX, VALUE_BYTES_MAX};
use crate::{Key, LeaseId, Revision, TIME_TO_LIVE_MAX};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Result of a datastore operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Source of an error, shared by all callers whose writes were in the failed batch.
type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Error of a datastore operation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is over [`VALUE_BYTES_MAX`].
    #[error("the value of {key} has {value_bytes} bytes, {VALUE_BYTES_MAX} are allowed: keep it as a blob")]
    ValueTooLarge {
        /// Key of the value.
        key: Key,
        /// Size of the value.
        value_bytes: usize,
    },
    /// A transaction has more than [`TRANSACTION_OPERATIONS_MAX`] compares or writes.
    #[error("a transaction has {0} operations, {TRANSACTION_OPERATIONS_MAX} are allowed")]
    TooManyOperations(usize),
    /// A transaction has more than [`TRANSACTION_BYTES_MAX`] of keys and values.
    #[error("a transaction has {0} bytes, {TRANSACTION_BYTES_MAX} are allowed")]
    TransactionTooLarge(usize),
    /// A transaction writes one key more than once.
    #[error("a transaction writes {0} more than once")]
    KeyWrittenTwice(Key),
    /// The requested time to live is over [`TIME_TO_LIVE_MAX`].
    #[error("a lease lives for {TIME_TO_LIVE_MAX:?} at most, not {0:?}")]
    LeaseTooLong(Duration),
    /// The lease has expired or was revoked, or never existed.
    #[error("there is no lease {0}: it has expired or was revoked")]
    LeaseNotFound(LeaseId),

    /// The file is open in another process, or in another store of this process.
    #[error("{path} is in use: another node runs on this data folder")]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is damaged or is not a store.
    #[error(
        "{path} is damaged or not a store: restore a backup into an empty folder (`weir restore`), or bring back a copy of the file; without either, move the file away and start with an empty registry by `weir up --init`"
    )]
    Corrupted {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: Cause,
    },
    /// The file was written by a version of Weir with a different layout.
    #[error("{path} has layout {found}, this version of weir reads layout {expected}")]
    OtherFormat {
        /// Path of the file.
        path: PathBuf,
        /// Layout of the file.
        found: u64,
        /// Layout of this version.
        expected: u64,
    },
    /// The disk is full, or its user has reached a quota. Whether the commit is durable is unknown.
    /// Later writes succeed as soon as there is space.
    #[error("the disk of {path} is full: free some space on it")]
    DiskFull {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: Cause,
    },
    /// The disk or the file system failed. Whether the commit is durable is unknown: read before
    /// retrying.
    #[error("the store in {path} cannot {doing}")]
    Storage {
        /// Path of the file.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// Cause.
        source: Cause,
    },

    /// The store is unreachable. The outcome of a commit is unknown: read before retrying.
    #[error("the store is out of reach")]
    Unavailable {
        /// Cause.
        source: Cause,
    },
    /// The shared store has reached its quota and refuses all writes, until an operator makes room.
    #[error(
        "the database of etcd is full: compact it (`etcdctl compact REVISION`), defragment each server (`etcdctl defrag`), then `etcdctl alarm disarm`, and raise --quota-backend-bytes if it fills up again"
    )]
    QuotaExceeded {
        /// Cause.
        source: Cause,
    },
    /// Other data has replaced the data of the store. The outcome of a commit is unknown.
    #[error("the data of etcd was restored from a copy, or wiped ({why}): the node joins its cluster anew")]
    Replaced {
        /// The observation that shows it.
        why: String,
    },
    /// The store no longer has the history that a snapshot needs.
    #[error("the store has discarded revision {0}, which was being read")]
    Discarded(Revision),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// Whether a retry of the operation can succeed although nothing else has changed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. } | Self::Replaced { .. } | Self::Closed | Self::LeaseNotFound(_)
        )
    }

    /// Whether the store had no space for a write.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. } | Self::QuotaExceeded { .. })
    }
}
