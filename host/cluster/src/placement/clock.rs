//! The clock of placements, which tests can pause.

use std::time::Instant;

/// The current time, as tokio's clock has it.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
