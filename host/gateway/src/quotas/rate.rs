//! Rates of requests: their limit, and their measurement.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A rate limit by the generic cell rate algorithm, without locks.
pub(crate) struct RateLimit {
    /// Time between two requests at the average rate; 0 for no limit.
    pub(super) interval_ns: u64,
    /// Time by which requests may be ahead of the average.
    burst_ns: u64,
    /// Time at which the requests so far are spread out at the average rate.
    spread_until_ns: AtomicU64,
}

impl RateLimit {
    /// Creates a limit of `per_s` requests on average, and `burst` at once.
    pub(crate) fn new(per_s: u32, burst: u32) -> Self {
        let interval_ns = if per_s == u32::MAX { 0 } else { 1_000_000_000 / u64::from(per_s.max(1)) };
        let burst_ns = interval_ns.saturating_mul(burst.max(1).into());
        Self { interval_ns, burst_ns, spread_until_ns: AtomicU64::new(0) }
    }

    /// Counts a request, or returns the time after which it would pass.
    pub(crate) fn take(&self, now_ns: u64) -> Result<(), Duration> {
        if self.interval_ns == 0 {
            return Ok(());
        }
        let next = |spread_until_ns: u64| spread_until_ns.max(now_ns).saturating_add(self.interval_ns);
        let passes = |spread_until_ns: u64| {
            Some(next(spread_until_ns)).filter(|next_ns| next_ns - now_ns <= self.burst_ns)
        };
        let taken = self.spread_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, passes);
        taken.map(drop).map_err(|full| Duration::from_nanos(next(full) - now_ns - self.burst_ns))
    }

    /// Number of requests of the burst that are used up now.
    pub(super) fn burst_used(&self, now_ns: u64) -> u64 {
        let ahead_ns = self.spread_until_ns.load(Ordering::Relaxed).saturating_sub(now_ns);
        if self.interval_ns == 0 { 0 } else { ahead_ns.div_ceil(self.interval_ns) }
    }
}

/// Counts requests by the second, without locks.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    /// The current second and the counts of this second and of the one before, in bits.
    packed: AtomicU64,
}

/// Bits of a count, which does not exceed its largest value.
const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// Bits of the number of the second, which may wrap around.
const SECOND_MASK: u64 = (1 << (64 - 2 * COUNT_BITS)) - 1;

/// The counts of a second and of the second before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    second: u64,
    now: u64,
    before: u64,
}

impl Counts {
    fn unpack(packed: u64) -> Self {
        Self {
            second: packed >> (2 * COUNT_BITS),
            now: packed >> COUNT_BITS & COUNT_MAX,
            before: packed & COUNT_MAX,
        }
    }

    fn pack(self) -> u64 {
        self.second << (2 * COUNT_BITS) | self.now << COUNT_BITS | self.before
    }

    /// The counts in a later second. Those of this second if `second` is just before it: a thread may
    /// have read the clock and then waited.
    fn at(self, second: u64) -> Self {
        if self.second == second || (second + 1) & SECOND_MASK == self.second {
            return self;
        }
        let is_next = (self.second + 1) & SECOND_MASK == second;
        Self { second, now: 0, before: if is_next { self.now } else { 0 } }
    }
}

impl RateMeter {
    pub(super) fn count(&self, now_ns: u64) {
        let more = |packed: u64| {
            let counts = Counts::unpack(packed).at(second(now_ns));
            Some(Counts { now: (counts.now + 1).min(COUNT_MAX), ..counts }.pack())
        };
        // The closure always returns a value.
        let _ = self.packed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Number of requests in the last full second.
    pub(super) fn per_s(&self, now_ns: u64) -> u64 {
        Counts::unpack(self.packed.load(Ordering::Relaxed)).at(second(now_ns)).before
    }
}

fn second(now_ns: u64) -> u64 {
    (now_ns / 1_000_000_000) & SECOND_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_shows_the_last_full_second() {
        const S: u64 = 1_000_000_000;
        let meter = RateMeter::default();
        (0..7).for_each(|at| meter.count(at));
        assert_eq!(meter.per_s(S - 1), 0, "the second has not ended");
        assert_eq!(meter.per_s(S), 7);
        (0..3).for_each(|_| meter.count(S));
        assert_eq!([S, 2 * S, 3 * S].map(|at| meter.per_s(at)), [7, 3, 0]);
        meter.count(9 * S);
        meter.count(8 * S);
        assert_eq!(meter.per_s(10 * S), 2, "a late thread lost the counts");
        let meter = RateMeter::default();
        meter.count(9 * S);
        assert_eq!([9 * S, 10 * S].map(|at| meter.per_s(at)), [0, 1]);
        let wrapped = (SECOND_MASK + 10) * S;
        assert_eq!(meter.per_s(wrapped + S), 1, "the number of the second wraps around");
    }

    #[test]
    fn used_burst_refills_at_the_rate() {
        const S: u64 = 1_000_000_000;
        let limit = RateLimit::new(10, 5);
        for used in 1..=5 {
            assert!(limit.take(0).is_ok());
            assert_eq!(limit.burst_used(0), used);
        }
        assert_eq!([limit.burst_used(S / 10), limit.burst_used(S)], [4, 0]);
        assert_eq!(RateLimit::new(u32::MAX, 1).burst_used(0), 0);
    }
}
