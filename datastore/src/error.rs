//! What can go wrong, over all members.

use crate::transaction::{TRANSACTION_BYTES_MAX, TRANSACTION_OPERATIONS_MAX, VALUE_BYTES_MAX};
use crate::{Key, LeaseId, TIME_TO_LIVE_MAX};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of an error, shared by everyone whose write was in the same batch.
type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a store did not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is over [`VALUE_BYTES_MAX`].
    #[error("the value of {key} has {value_bytes} bytes, {VALUE_BYTES_MAX} are allowed: keep it as a blob")]
    ValueTooLarge {
        /// Where it was to go.
        key: Key,
        /// Its size.
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
    /// A lease was to live for longer than [`TIME_TO_LIVE_MAX`].
    #[error("a lease lives for {TIME_TO_LIVE_MAX:?} at most, not {0:?}")]
    LeaseTooLong(Duration),
    /// The lease has expired or was revoked, or never existed.
    #[error("there is no lease {0}: it has expired or was revoked")]
    LeaseNotFound(LeaseId),

    /// Another process, or another store in this one, has the file.
    #[error("{path} is in use: another node runs on this data folder")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read as a store.
    #[error("{path} is damaged or not a store; move it away, or bring back a copy")]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Cause,
    },
    /// The file was written by a version of Weir with another layout.
    #[error("{path} has layout {found}, this version of weir reads layout {expected}")]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The layout it has.
        found: u64,
        /// The layout this version writes.
        expected: u64,
    },
    /// The disk or the file system failed. A commit that ends so may turn out to have happened when the file is opened again; until
    /// then later writes fail too.
    #[error("the store in {path} cannot {doing}")]
    Storage {
        /// The file.
        path: PathBuf,
        /// What it was doing.
        doing: &'static str,
        /// The failure.
        source: Cause,
    },

    /// The store is out of reach. A commit that ends so may have happened or not: read before trying again.
    #[error("the store is out of reach")]
    Unavailable {
        /// The failure.
        source: Cause,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}
