//! Estimated memory demand of a run slot. Pure arithmetic.

/// Divisor of the estimate's excess at the end of an interval in which less was used.
const HALVES: u64 = 2;

/// Estimates the most bytes that the runs of the next interval take, from those of earlier
/// intervals. The estimate rises immediately, and its excess halves with every interval: a model
/// that runs occasionally keeps its memory, and a model that stops running soon holds none.
///
/// This is the elastic scaling of a memory pool after StreamBox (Wu et al., USENIX ATC 2024), with
/// the requests of the runs in place of profiles made offline: a plan knows its memory demand
/// before it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemandEstimate {
    interval_ns: u64,
    /// Start of the current interval.
    began_ns: u64,
    /// The most bytes used in the current interval.
    used_bytes: u64,
    /// The estimate at the start of the current interval.
    estimate_bytes: u64,
}

impl DemandEstimate {
    /// Creates an estimate of zero, updated every `interval_ns`, at least one.
    #[must_use]
    pub fn new(interval_ns: u64, now_ns: u64) -> Self {
        Self { interval_ns: interval_ns.max(1), began_ns: now_ns, used_bytes: 0, estimate_bytes: 0 }
    }

    /// Records a run that takes `bytes`.
    pub fn used(&mut self, bytes: u64, now_ns: u64) {
        self.pass(now_ns);
        self.used_bytes = self.used_bytes.max(bytes);
    }

    /// Bytes worth holding now.
    pub fn bytes(&mut self, now_ns: u64) -> u64 {
        self.pass(now_ns);
        self.estimate_bytes.max(self.used_bytes)
    }

    /// Ends the intervals that have passed.
    fn pass(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.began_ns) / self.interval_ns;
        // After so many halvings the excess is zero, however much time has passed.
        for _ in 0..passed.min(u64::from(u64::BITS) + 1) {
            let excess = self.estimate_bytes.saturating_sub(self.used_bytes);
            self.estimate_bytes = self.used_bytes + excess / HALVES;
            self.used_bytes = 0;
        }
        self.began_ns = self.began_ns.saturating_add(passed.saturating_mul(self.interval_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn demand_rises_at_once_and_halves_per_interval() {
        let mut demand = DemandEstimate::new(100, 0);
        demand.used(1024, 10);
        assert_eq!(demand.bytes(10), 1024);
        assert_eq!(demand.bytes(150), 1024, "the interval in which it was used has just passed");
        assert_eq!(demand.bytes(250), 512);
        demand.used(100, 260);
        assert_eq!(demand.bytes(310), 100 + 412 / 2);
        assert_eq!(demand.bytes(u64::MAX), 0);
    }

    proptest! {
        #[test]
        fn demand_covers_current_use_and_never_exceeds_peak(
            steps in prop::collection::vec((0_u64..1 << 40, 0_u64..1_000), 1..100),
        ) {
            let mut demand = DemandEstimate::new(100, 0);
            let mut now = 0;
            let mut peak = 0;
            for (bytes, pause) in steps {
                now += pause;
                demand.used(bytes, now);
                peak = peak.max(bytes);
                prop_assert!(demand.bytes(now) >= bytes);
                prop_assert!(demand.bytes(now) <= peak);
            }
        }

        #[test]
        fn demand_falls_to_zero_without_use(bytes in 0_u64..u64::MAX, pauses in prop::collection::vec(0_u64..500, 1..50)) {
            let mut demand = DemandEstimate::new(100, 0);
            let mut now = 0;
            demand.used(bytes, now);
            let mut last = demand.bytes(now);
            for pause in pauses {
                now += pause;
                let next = demand.bytes(now);
                prop_assert!(next <= last);
                last = next;
            }
            prop_assert_eq!(demand.bytes(now + 70 * 100), 0);
        }
    }
}
