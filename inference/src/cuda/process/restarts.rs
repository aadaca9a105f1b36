//! When a worker that has died may be started again.

use std::time::{Duration, Instant};

/// How long the first pause is; it doubles with every death in a row.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Counts the deaths of a worker. The first is made good at once; more in a row wait longer and longer, so that kernels that always fault do
/// not keep the driver busy with new contexts.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    deaths: u32,
    not_before: Option<Instant>,
}

impl Restarts {
    /// How long to wait until the next start; none if it may be now.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let wait = self.not_before?.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// A worker has died, or could not be started.
    pub(crate) fn died(&mut self, now: Instant) {
        if let Some(doublings) = self.deaths.checked_sub(1) {
            let pause = PAUSE.saturating_mul(1 << doublings.min(10)).min(PAUSE_MAX);
            self.not_before = now.checked_add(pause);
        }
        self.deaths = self.deaths.saturating_add(1);
    }

    /// A run has ended as it should.
    pub(crate) fn worked(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_in_a_row_wait_longer_and_longer() {
        let (now, mut restarts) = (Instant::now(), Restarts::default());
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
