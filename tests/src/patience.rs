//! Waiting for what must come to pass.

use std::time::{Duration, Instant};

/// How long something that must happen may take. Generous, for busy machines: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wait until `check` gives something, looking again and again.
#[track_caller]
pub fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    eventually_within(PATIENCE, what, check)
}

/// The same for what takes its time, such as compiling.
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
