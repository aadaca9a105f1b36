//! Decides about a canary: goes on, becomes the active version, or gets no more calls. Pure.
//!
//! A share of calls is worse than another if it exceeds it by a margin and by more than chance
//! explains: by some standard deviations of the difference of two proportions. The node looks every
//! second, so the [bar](Bar) is high.

use super::trial::Observed;
use std::fmt;
use std::time::Duration;
use weir_types::Version;
use weir_types::api::Canary;

/// What chance does not explain.
#[derive(Debug, Clone, Copy)]
struct Bar {
    /// Standard deviations between the two versions.
    deviations: f64,
    /// Failed or slow calls of a canary, below which they say nothing.
    bad_calls_min: u64,
}

/// The bar for all calls of a trial. One of a thousand canaries like their active version is rolled
/// back in 5,000 calls.
const ALL: Bar = Bar { deviations: 5.0, bad_calls_min: 3 };
/// The bar for the latest calls. A canary may last for weeks, and so may pass a hundred thousand
/// times through this one.
const RECENT: Bar = Bar { deviations: 8.0, bad_calls_min: 10 };
/// Calls with which an active version counts at least: missing calls count as good.
const ACTIVE_CALLS_MIN: u64 = 20;
/// Difference of the shares of failed calls that is tolerated.
const FAILED_MARGIN: f64 = 0.005;
/// Difference of the shares of slow calls that is tolerated.
const SLOW_MARGIN: f64 = 0.05;
/// A call is slow if it takes longer than the p95 of the active version times this ...
const SLOW_FACTOR: f64 = 1.25;
/// ... and by more than this.
const SLOW_EXTRA: Duration = Duration::from_millis(5);
/// Successful calls of the active version before which no call is slow.
const PACE_CALLS_MIN: u64 = 50;
/// Calls of a canary before which it is not promoted.
const PROMOTE_CALLS_MIN: u64 = 20;

/// The decision about a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The canary keeps its share.
    Continue,
    /// The canary becomes the active version.
    Promote,
    /// The canary gets no more calls.
    RollBack(Reason),
}

/// The reason for a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// More of its calls fail than of the active version's.
    Failures,
    /// More of its calls are slow.
    Latency,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failures => "more calls fail",
            Self::Latency => "calls take longer",
        })
    }
}

/// Judges a canary by its calls and those of the active version, `age` after its start.
pub fn judge(canary: Canary, age: Duration, new: &Observed, active: &Observed) -> Verdict {
    if let Some(reason) = ALL.find_worse(new, active) {
        return Verdict::RollBack(reason);
    }
    match canary.promote_after_ms.map(Duration::from_millis) {
        Some(after) if age >= after && new.calls >= PROMOTE_CALLS_MIN => Verdict::Promote,
        _ => Verdict::Continue,
    }
}

/// Judges a canary by the latest calls alone: a fault that begins late is small among all calls.
/// Returns the reason for a rollback.
pub fn judge_recent(new: &Observed, active: &Observed) -> Option<Reason> {
    RECENT.find_worse(new, active)
}

/// The unmet condition of a canary's promotion: time or calls. `None` if the node does not promote
/// it.
pub fn waits_for(canary: Canary, age: Duration, new: &Observed) -> Option<String> {
    let after = Duration::from_millis(canary.promote_after_ms?);
    let left_s = after.saturating_sub(age).as_secs();
    let missing = PROMOTE_CALLS_MIN.saturating_sub(new.calls);
    Some(match (left_s, missing) {
        (0, 0) => "promotion".to_owned(),
        (0, missing) => format!("{missing} more calls of the canary"),
        (left_s, 0) => format!("{left_s} s to pass"),
        (left_s, missing) => format!("{left_s} s to pass, and {missing} more calls of the canary"),
    })
}

/// Describes the calls of both versions.
pub fn compare(new: &Observed, (active_version, active): (Version, &Observed)) -> String {
    format!("{}; of version {active_version}, {}", describe(new), describe(active))
}

fn describe(observed: &Observed) -> String {
    let Observed { calls, failed, .. } = observed;
    let percent = share((*failed, *calls)) * 100.0;
    let p95 = observed.p95().map(|p95| format!(", p95 {:.1} ms", p95.as_secs_f64() * 1_000.0));
    format!("{failed} of {calls} calls failed ({percent:.1} %){}", p95.unwrap_or_default())
}

/// The run time from which a call is slow.
fn slow_from(active: &Observed) -> Option<Duration> {
    let (_, ran) = active.slower_than(Duration::ZERO);
    let p95 = active.p95().filter(|_| ran >= PACE_CALLS_MIN)?;
    Some(p95.mul_f64(SLOW_FACTOR).max(p95 + SLOW_EXTRA))
}

impl Bar {
    /// Returns the way in which a canary is worse than the active version.
    fn find_worse(self, new: &Observed, active: &Observed) -> Option<Reason> {
        if self.is_worse((new.failed, new.calls), (active.failed, active.calls), FAILED_MARGIN) {
            return Some(Reason::Failures);
        }
        let slow = slow_from(active)?;
        let is_slower = self.is_worse(new.slower_than(slow), active.slower_than(slow), SLOW_MARGIN);
        is_slower.then_some(Reason::Latency)
    }

    /// Whether the share of bad calls of a canary is higher than the active version's.
    fn is_worse(self, (bad, calls): (u64, u64), (active_bad, active_calls): (u64, u64), margin: f64) -> bool {
        if bad < self.bad_calls_min {
            return false;
        }
        let active_calls = active_calls.max(ACTIVE_CALLS_MIN);
        let difference = share((bad, calls)) - share((active_bad, active_calls));
        let all = share((bad + active_bad, calls + active_calls));
        let variance = all * (1.0 - all) * (1.0 / float(calls) + 1.0 / float(active_calls));
        difference > margin && difference > self.deviations * variance.sqrt()
    }
}

/// The share of bad calls.
fn share((bad, calls): (u64, u64)) -> f64 {
    float(bad) / float(calls.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls are below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::recent::RecentCalls;
    use super::super::trial::{CallOutcome, TrialSlot};
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::time::Instant;

    const CANARY: Canary =
        Canary { version: Version(2), percent: 10, started_at_ms: 0, promote_after_ms: Some(60_000) };

    /// How a version behaves: the share of its calls that fail, and its median run time.
    #[derive(Clone, Copy)]
    struct Behaviour {
        failing: f64,
        median_ms: f64,
    }

    const GOOD: Behaviour = Behaviour { failing: 0.0, median_ms: 10.0 };

    /// Runs calls, of which every tenth uses the canary, and judges after each `step` of them.
    /// Returns the decision with the number of calls before it.
    fn run(seed: u64, calls: u64, new: Behaviour, active: Behaviour) -> (Verdict, u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let slot = TrialSlot::default();
        slot.set(Some(CANARY), Version(1));
        for call in 1..=calls {
            let is_canary = call % 10 == 0;
            let Behaviour { failing, median_ms } = if is_canary { new } else { active };
            // A long tail, as of real services.
            let tail = (random.random::<f64>() + random.random::<f64>() + random.random::<f64>() - 1.5).exp();
            let outcome = match random.random_bool(failing) {
                true => CallOutcome::Failed,
                false => CallOutcome::Ran(Duration::from_secs_f64(median_ms * tail / 1_000.0)),
            };
            slot.count(Version(if is_canary { 2 } else { 1 }), outcome);
            if call % 50 == 0 {
                let (new, active) = slot.observed(CANARY).unwrap();
                let verdict = judge(CANARY, Duration::ZERO, &new, &active);
                if verdict != Verdict::Continue {
                    return (verdict, call);
                }
            }
        }
        (Verdict::Continue, calls)
    }

    #[test]
    fn canary_that_fails_a_fifth_is_rolled_back_within_five_hundred_calls() {
        for seed in 0..200 {
            let (verdict, calls) = run(seed, 500, Behaviour { failing: 0.2, ..GOOD }, GOOD);
            assert_eq!(verdict, Verdict::RollBack(Reason::Failures), "seed {seed}");
            assert!(calls <= 500);
        }
    }

    #[test]
    fn canary_of_twice_the_latency_is_rolled_back() {
        for seed in 0..100 {
            let (verdict, _) = run(seed, 3_000, Behaviour { median_ms: 25.0, ..GOOD }, GOOD);
            assert_eq!(verdict, Verdict::RollBack(Reason::Latency), "seed {seed}");
        }
    }

    #[test]
    fn equal_versions_are_hardly_ever_rolled_back() {
        for failing in [0.0, 0.01, 0.05, 0.2, 0.5] {
            let version = Behaviour { failing, ..GOOD };
            let rolled_back =
                (0..60).filter(|seed| run(*seed, 2_000, version, version).0 != Verdict::Continue);
            let rolled_back = rolled_back.count();
            assert!(
                rolled_back <= 1,
                "{rolled_back} of 60 canaries like their active version, of which {failing} fail"
            );
        }
    }

    /// Runs 300 calls a second, of which the canary's fail at the rate that `failing` gives for each
    /// second, and judges every second. Returns the second of the rollback.
    fn run_seconds(seed: u64, seconds: u64, active: f64, failing: impl Fn(u64) -> f64) -> Option<u64> {
        let mut random = StdRng::seed_from_u64(seed);
        let slot = TrialSlot::default();
        slot.set(Some(CANARY), Version(1));
        let start = Instant::now();
        let mut recent = RecentCalls::new(start);
        (0..seconds).find(|second| {
            for call in 0..300 {
                let (version, failing) = if call % 10 == 0 { (2, failing(*second)) } else { (1, active) };
                let outcome = match random.random_bool(failing) {
                    true => CallOutcome::Failed,
                    false => CallOutcome::Ran(Duration::from_millis(10)),
                };
                slot.count(Version(version), outcome);
            }
            let (new, active) = slot.observed(CANARY).unwrap();
            let latest = recent.advance(start + Duration::from_secs(*second), &new, &active);
            judge_recent(&latest.0, &latest.1).is_some()
        })
    }

    /// After a good hour, 20 % are too few of all calls for more than a minute.
    #[test]
    fn canary_that_begins_to_fail_after_an_hour_is_rolled_back_within_ten_seconds() {
        for seed in 0..2 {
            let failing = |second| if second < 3_600 { 0.0 } else { 0.2 };
            let second = run_seconds(seed, 3_700, 0.0, failing).expect("a rollback");
            assert!((3_600..3_610).contains(&second), "after {second} s, seed {seed}");
        }
    }

    #[test]
    fn latest_calls_of_equal_versions_are_no_reason() {
        for (seed, failing) in [(1, 0.0005), (2, 0.01), (3, 0.2)] {
            assert_eq!(run_seconds(seed, 3_600, failing, |_| failing), None, "{failing} fail");
        }
    }

    #[test]
    fn failures_of_both_versions_are_no_reason() {
        let failing = Observed { calls: 1_000, failed: 500, ..Observed::default() };
        let same = Observed { calls: 9_000, failed: 4_500, ..Observed::default() };
        assert_eq!(judge(CANARY, Duration::ZERO, &failing, &same), Verdict::Continue);
    }

    /// Half of the calls may fail for a reason that the active version has too.
    #[test]
    fn canary_without_an_active_call_beside_it_is_rolled_back_if_most_calls_fail() {
        let judge_alone = |failed| {
            let new = Observed { calls: 40, failed, ..Observed::default() };
            judge(CANARY, Duration::ZERO, &new, &Observed::default())
        };
        assert_eq!(judge_alone(30), Verdict::RollBack(Reason::Failures));
        assert_eq!(judge_alone(20), Verdict::Continue);
    }

    #[test]
    fn promotion_waits_for_its_time_and_for_calls() {
        let calls = |calls| Observed { calls, ..Observed::default() };
        let decide = |age_s, new| judge(CANARY, Duration::from_secs(age_s), &calls(new), &calls(180));
        assert_eq!(decide(59, 1_000), Verdict::Continue);
        assert_eq!(decide(61, PROMOTE_CALLS_MIN - 1), Verdict::Continue);
        assert_eq!(decide(61, PROMOTE_CALLS_MIN), Verdict::Promote);
        let by_hand = Canary { promote_after_ms: None, ..CANARY };
        assert_eq!(judge(by_hand, Duration::MAX, &calls(1_000), &calls(180)), Verdict::Continue);
        let waits = |age_s, new| waits_for(CANARY, Duration::from_secs(age_s), &calls(new)).unwrap();
        assert_eq!(waits(20, 5), "40 s to pass, and 15 more calls of the canary");
        assert_eq!(waits(90, 30), "promotion");
        assert_eq!(waits_for(by_hand, Duration::ZERO, &calls(0)), None);
    }
}
