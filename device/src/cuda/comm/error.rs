//! Why there is no intermediate.

use super::CommIndex;
use crate::cuda::transfer::TransferError;

/// Why an intermediate cannot be kept or had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// There is none of that index: it was removed, has expired, or is somebody else's.
    #[error("there is no intermediate {}-{}", .0.store, .0.number)]
    NotFound(CommIndex),
    /// There are too many.
    #[error("{entries_max} intermediates are kept already")]
    TooMany {
        /// The most there can be.
        entries_max: usize,
    },
    /// There is no room on the host either, or the device did not copy it.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}
