//! Idle detection for a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Counts the requests in progress on one connection, and records the end of the last request.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<ActivityShared>);

#[derive(Debug)]
struct ActivityShared {
    opened: Instant,
    under_way: AtomicU32,
    /// End of the last request, in milliseconds after `opened`; zero before the first request has
    /// ended.
    idle_since_ms: AtomicU64,
}

/// One request, from its head until the client has taken the last byte of its response.
#[derive(Debug)]
pub(super) struct RequestInProgress(Activity);

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(ActivityShared {
            opened: Instant::now(),
            under_way: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(0),
        }))
    }

    pub(super) fn begin(&self) -> RequestInProgress {
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        RequestInProgress(self.clone())
    }

    /// Returns once the connection has been idle for `first` after it opened, or for `later` after
    /// its last request.
    pub(super) async fn idle(&self, first: Duration, later: Duration) {
        loop {
            let idle_since_ms = self.0.idle_since_ms.load(Ordering::Relaxed);
            let patience = if idle_since_ms == 0 { first } else { later };
            let until = self.0.opened + Duration::from_millis(idle_since_ms) + patience;
            let is_quiet = self.0.under_way.load(Ordering::Relaxed) == 0;
            let now = Instant::now();
            if is_quiet && now >= until {
                return;
            }
            // Check again when the idle time could be over, and periodically while requests run.
            tokio::time::sleep_until(if is_quiet { until } else { now + patience }).await;
        }
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let shared = &self.0.0;
        let age_ms = u64::try_from(shared.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        shared.idle_since_ms.store(age_ms.max(1), Ordering::Relaxed);
        shared.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(30);
    const LATER: Duration = Duration::from_secs(75);

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_restarts_after_each_request() {
        let started = Instant::now();
        Activity::new().idle(FIRST, LATER).await;
        assert_eq!(started.elapsed(), FIRST);

        let started = Instant::now();
        let activity = Activity::new();
        let request = activity.begin();
        let serving = async {
            tokio::time::sleep(Duration::from_secs(1_000)).await;
            drop(request);
        };
        tokio::join!(activity.idle(FIRST, LATER), serving);
        let lasted = started.elapsed();
        assert!(lasted >= Duration::from_secs(1_000) + LATER, "{lasted:?}");
        assert!(lasted <= Duration::from_secs(1_000) + 2 * LATER, "{lasted:?}");
    }
}
