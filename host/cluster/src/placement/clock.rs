//! The clock of placements, which tests can pause.

use std::time::Instant;

/// The current time of tokio's clock.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
