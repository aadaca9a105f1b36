//! Errors of the store for intermediates.

use super::CommIndex;
use crate::cuda::transfer::TransferError;

/// Why an intermediate cannot be stored or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// No intermediate has this index: it was removed, has expired, or belongs to another owner.
    #[error("there is no intermediate {}-{}", .0.store, .0.number)]
    NotFound(CommIndex),
    /// The store has too many intermediates.
    #[error("{entries_max} intermediates are kept already")]
    TooMany {
        /// The limit.
        entries_max: usize,
    },
    /// The host has no room either, or the device failed to copy it.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}
