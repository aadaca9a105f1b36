//! How much memory a slot is going to need. Numbers only.

/// What of an estimate stays when an interval has passed in which less was used: the half of what was too much.
const HALVES: u64 = 2;

/// An estimate of the most bytes that the runs of the next interval take, from what those of earlier ones took. It rises at once, and falls by half of
/// what was too much with every interval: a model that runs now and then keeps its memory, one that runs no more soon holds none.
///
/// This is the elastic scaling of a memory pool after StreamBox (Wu et al., USENIX ATC 2024), with what runs ask for in place of profiles made offline:
/// a plan knows how much it takes before it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    interval_ns: u64,
    /// When the interval that is under way began.
    began_ns: u64,
    /// The most that was used in it.
    used_bytes: u64,
    /// What was estimated when it began.
    estimate_bytes: u64,
}

impl Demand {
    /// No demand yet, looked at anew every `interval_ns`, at least one.
    #[must_use]
    pub fn new(interval_ns: u64, now_ns: u64) -> Self {
        Self { interval_ns: interval_ns.max(1), began_ns: now_ns, used_bytes: 0, estimate_bytes: 0 }
    }

    /// A run takes `bytes`.
    pub fn used(&mut self, bytes: u64, now_ns: u64) {
        self.pass(now_ns);
        self.used_bytes = self.used_bytes.max(bytes);
    }

    /// How much is worth holding now.
    pub fn bytes(&mut self, now_ns: u64) -> u64 {
        self.pass(now_ns);
        self.estimate_bytes.max(self.used_bytes)
    }

    /// End the intervals that have passed.
    fn pass(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.began_ns) / self.interval_ns;
        // After so many halvings there is nothing left to halve, however long it was.
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
    fn it_rises_at_once_and_falls_by_halves() {
        let mut demand = Demand::new(100, 0);
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
        fn it_covers_what_was_just_used_and_never_exceeds_what_ever_was(
            steps in prop::collection::vec((0_u64..1 << 40, 0_u64..1_000), 1..100),
        ) {
            let (mut demand, mut now, mut peak) = (Demand::new(100, 0), 0, 0);
            for (bytes, pause) in steps {
                now += pause;
                demand.used(bytes, now);
                peak = peak.max(bytes);
                prop_assert!(demand.bytes(now) >= bytes);
                prop_assert!(demand.bytes(now) <= peak);
            }
        }

        #[test]
        fn without_use_it_only_falls_and_ends_at_nothing(bytes in 0_u64..u64::MAX, pauses in prop::collection::vec(0_u64..500, 1..50)) {
            let (mut demand, mut now) = (Demand::new(100, 0), 0);
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
