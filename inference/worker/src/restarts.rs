//! Backoff between restarts of a worker.

use std::time::{Duration, Instant};

/// First pause. It doubles with each consecutive failure.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Counter of a worker's consecutive failures. The first restart is immediate; later restarts back
/// off exponentially, so that a faulting kernel cannot keep the driver busy with new contexts.
#[derive(Debug, Default)]
pub struct Restarts {
    deaths: u32,
    not_before: Option<Instant>,
}

impl Restarts {
    /// Returns the time until the next permitted start; `None` if a start is permitted now.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let wait = self.not_before?.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// Records that a worker ended, or failed to start.
    pub fn died(&mut self, now: Instant) {
        if let Some(doublings) = self.deaths.checked_sub(1) {
            let pause = PAUSE.saturating_mul(1 << doublings.min(10)).min(PAUSE_MAX);
            self.not_before = now.checked_add(pause);
        }
        self.deaths = self.deaths.saturating_add(1);
    }

    /// Records a successful run, which resets the backoff.
    pub fn worked(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_failures_back_off_exponentially() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        let mut waits = Vec::new();
        for _ in 0..10 {
            restarts.died(now);
            waits.push(restarts.wait(now).map_or(0, |wait| wait.as_millis()));
        }
        assert_eq!(waits, [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert_eq!(restarts.wait(now + PAUSE_MAX), None);
        restarts.worked();
        restarts.died(now);
        assert_eq!(restarts.wait(now), None);
    }
}
