//! Waits for asynchronous conditions.

use std::time::{Duration, Instant};

/// Time limit of [`eventually`]. Generous, for busy machines: a test that waits this long fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls `check` until it returns a value.
#[track_caller]
pub fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    eventually_within(PATIENCE, what, check)
}

/// Like [`eventually`] with another time limit, for slow work such as compiling.
#[track_caller]
pub fn eventually_within<T>(
    patience: Duration,
    what: &str,
    check: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let mut check = check;
        let began = Instant::now();
        loop {
            if let Some(found) = check().await {
                return found;
            }
            assert!(began.elapsed() < patience, "{what} did not happen (waited at {caller})");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
