//! The latest calls of a canary and of the active version, by the difference of their counts.

use super::trial::Observed;
use std::time::{Duration, Instant};

/// The shortest span of the latest calls. The longest is twice as long.
const SPAN: Duration = Duration::from_secs(30);

/// Remembers counts of a trial, to subtract them from later counts.
#[derive(Debug)]
pub struct RecentCalls {
    /// The counts from which the span begins.
    from: (Observed, Observed),
    /// The counts at which the next span begins.
    next: (Observed, Observed),
    next_since: Instant,
}

impl RecentCalls {
    /// Begins with all calls of a trial.
    pub fn new(now: Instant) -> Self {
        Self { from: Default::default(), next: Default::default(), next_since: now }
    }

    /// Returns the latest calls of the canary and of the active version. `new` and `active` are the
    /// calls since the start of the canary.
    pub fn advance(&mut self, now: Instant, new: &Observed, active: &Observed) -> (Observed, Observed) {
        if now.saturating_duration_since(self.next_since) >= SPAN {
            let next = std::mem::replace(&mut self.next, (new.clone(), active.clone()));
            self.from = next;
            self.next_since = now;
        }
        (new.since(&self.from.0), active.since(&self.from.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(good: u64, failed: u64) -> Observed {
        Observed { calls: good + failed, failed, times: [(80, good)].into() }
    }

    #[test]
    fn recent_calls_are_those_of_the_last_span_or_two() {
        let start = Instant::now();
        let mut recent = RecentCalls::new(start);
        for second in 0..=300 {
            let now = start + Duration::from_secs(second);
            let (new, active) = recent.advance(now, &observed(second, second / 3), &observed(9 * second, 0));
            let expected = if second < 60 { second..=second } else { 30..=60 };
            let good = new.calls - new.failed;
            assert!(expected.contains(&good), "{good} calls after {second} s");
            assert_eq!((active.calls, active.failed), (good * 9, 0), "after {second} s");
            assert!(new.failed.abs_diff(good / 3) <= 1, "after {second} s");
        }
    }

    /// A node that restarts, or does not answer, takes its counts away.
    #[test]
    fn counts_that_shrink_are_no_calls() {
        let start = Instant::now();
        let mut recent = RecentCalls::new(start);
        for second in [31, 62] {
            recent.advance(start + Duration::from_secs(second), &observed(100, 10), &observed(900, 0));
        }
        let now = start + Duration::from_secs(63);
        let (new, active) = recent.advance(now, &observed(5, 1), &observed(45, 0));
        assert_eq!((new, active), Default::default());
    }
}
