//! Counts of a canary's calls, and of the active version's calls beside it.

use http::StatusCode;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_call::status as status_of;
use weir_types::api::{Canary, EventResource, VersionCalls};
use weir_types::{ErrorCode, Name, TenantId, Version};

/// Buckets per doubling of the run time, so that each is 9 % wide.
const STEPS: u32 = 8;
/// Buckets from 1 µs to over an hour.
const BUCKETS: usize = 32 * STEPS as usize;

/// The kinds of versions that can be canaries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CanaryOf {
    /// Versions of a function. Nodes that know no canaries of models send nothing else.
    #[default]
    Function,
    /// Versions of a model.
    Model,
}

impl CanaryOf {
    /// The resource of the events about it.
    pub fn resource(self) -> EventResource {
        match self {
            Self::Function => EventResource::Function,
            Self::Model => EventResource::Model,
        }
    }
}

/// The outcome of a call, for the comparison of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// The version answered, or its client did not wait for the answer.
    Ran(Duration),
    /// The version failed.
    Failed,
}

impl CallOutcome {
    /// The outcome of a call that ended with `status`, or with `failed`; none if the call failed by
    /// the fault of its client. A client that leaves counts as one that waited until then.
    pub fn new(failed: Option<ErrorCode>, status: StatusCode, ran: Duration) -> Option<Self> {
        let status = failed.map_or(status, status_of);
        if status.is_server_error() || failed == Some(ErrorCode::QueueFull) {
            return Some(Self::Failed);
        }
        failed.is_none_or(|code| code == ErrorCode::Cancelled).then_some(Self::Ran(ran))
    }
}

/// Calls of one version in a trial. Nodes of a cluster exchange and add them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Calls that ended.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that did not fail, by the bucket of their run time.
    pub times: BTreeMap<u16, u64>,
}

/// The calls of a canary and of the active version beside it, since the start of the canary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialCounts {
    /// The function or model that has the canary.
    #[serde(default)]
    pub of: CanaryOf,
    /// Owner of the function or model.
    pub tenant: TenantId,
    /// Name of the function or model.
    pub name: Name,
    /// The canary.
    pub version: Version,
    /// The start of the canary.
    pub started_at_ms: u64,
    /// Calls of the canary.
    pub canary: Observed,
    /// Calls of the active version.
    pub active: Observed,
}

/// The trial of the canary of a function or model, if it has one. Shared by all of its versions.
#[derive(Default)]
pub struct TrialSlot {
    /// Whether there is a trial: calls without a canary only read this.
    is_on: AtomicBool,
    trial: RwLock<Option<Arc<Trial>>>,
}

/// Counters of a trial on this node.
struct Trial {
    canary: Canary,
    active: Version,
    canary_calls: Counters,
    active_calls: Counters,
}

pub(super) struct Counters {
    calls: AtomicU64,
    failed: AtomicU64,
    times: Box<[AtomicU64]>,
}

impl TrialSlot {
    /// Whether calls are counted now.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Counts a call of `version`, if it takes part in a trial. Returns whether it does.
    pub fn count(&self, version: Version, outcome: CallOutcome) -> bool {
        if !self.is_on() {
            return false;
        }
        let trial = self.trial.read();
        let Some(trial) = &*trial else { return false };
        if version == trial.canary.version {
            trial.canary_calls.count(outcome);
        } else if version == trial.active {
            trial.active_calls.count(outcome);
        } else {
            return false;
        }
        true
    }

    /// The calls since the start of `canary`; none if its trial has ended or not begun here.
    pub fn observed(&self, canary: Canary) -> Option<(Observed, Observed)> {
        let trial = self.trial.read().clone().filter(|trial| trial.canary == canary)?;
        Some((trial.canary_calls.observed(), trial.active_calls.observed()))
    }

    /// Begins the trial of `canary` beside `active`, or ends the trial. A trial of the same canary
    /// continues.
    pub(crate) fn set(&self, canary: Option<Canary>, active: Version) {
        let mut trial = self.trial.write();
        let is_same = |trial: &Arc<Trial>| canary == Some(trial.canary) && trial.active == active;
        if trial.as_ref().is_some_and(is_same) {
            return;
        }
        *trial = canary.map(|canary| Arc::new(Trial::new(canary, active)));
        self.is_on.store(trial.is_some(), Ordering::Relaxed);
    }
}

impl Trial {
    fn new(canary: Canary, active: Version) -> Self {
        Self { canary, active, canary_calls: Counters::new(), active_calls: Counters::new() }
    }
}

impl Counters {
    pub(super) fn new() -> Self {
        let times = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { calls: AtomicU64::new(0), failed: AtomicU64::new(0), times }
    }

    pub(super) fn count(&self, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Failed => _ = self.failed.fetch_add(1, Ordering::Relaxed),
            CallOutcome::Ran(time) => {
                if let Some(bucket) = self.times.get(usize::from(bucket(time))) {
                    bucket.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn observed(&self) -> Observed {
        let count = |(bucket, count): (u16, &AtomicU64)| (bucket, count.load(Ordering::Relaxed));
        let times: BTreeMap<u16, u64> =
            (0..).zip(&self.times).map(count).filter(|(_, count)| *count > 0).collect();
        // Not `calls`, which may have counted a call that `times` has not.
        let failed = self.failed.load(Ordering::Relaxed);
        Observed { calls: failed + times.values().sum::<u64>(), failed, times }
    }
}

impl Observed {
    /// Adds the calls that another node observed.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        for (bucket, count) in &other.times {
            *self.times.entry(*bucket).or_default() += count;
        }
    }

    /// The calls since `earlier` counts.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let failed = self.failed.saturating_sub(earlier.failed);
        let before = |bucket| earlier.times.get(bucket).copied().unwrap_or_default();
        let times = self.times.iter().map(|(bucket, count)| (*bucket, count.saturating_sub(before(bucket))));
        let times: BTreeMap<u16, u64> = times.filter(|(_, count)| *count > 0).collect();
        Self { calls: failed + times.values().sum::<u64>(), failed, times }
    }

    /// The run time that 95 % of the successful calls kept to.
    pub fn p95(&self) -> Option<Duration> {
        self.kept_to(20)
    }

    /// The run time that half of the successful calls kept to.
    pub fn p50(&self) -> Option<Duration> {
        self.kept_to(2)
    }

    /// The run time that all successful calls kept to except one in `above`.
    fn kept_to(&self, above: u64) -> Option<Duration> {
        let ran: u64 = self.times.values().sum();
        let mut above = ran / above;
        for (bucket, count) in self.times.iter().rev() {
            if *count > above {
                return Some(upper_end(*bucket));
            }
            above -= count;
        }
        None
    }

    /// Successful calls, and those among them that took longer than `time`.
    pub(super) fn slower_than(&self, time: Duration) -> (u64, u64) {
        let limit = bucket(time);
        let slow = self.times.range(limit.saturating_add(1)..).map(|(_, count)| count).sum();
        (slow, self.times.values().sum())
    }

    /// The calls as the API reports them.
    pub fn report(&self) -> VersionCalls {
        VersionCalls { calls: self.calls, failed: self.failed, p95_ms: self.p95().map(rounded_ms) }
    }
}

/// Milliseconds with two decimal places.
pub(super) fn rounded_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 100_000.0).round() / 100.0
}

/// The bucket of a run time: a power of two of microseconds, divided into `STEPS` equal parts.
fn bucket(time: Duration) -> u16 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    let power = micros.ilog2();
    let step = ((u128::from(micros) * u128::from(STEPS)) >> power) - u128::from(STEPS);
    let bucket = power * STEPS + u32::try_from(step).unwrap_or(0);
    u16::try_from(bucket).unwrap_or(u16::MAX).min(u16::try_from(BUCKETS - 1).unwrap_or(u16::MAX))
}

/// The upper end of a bucket.
fn upper_end(bucket: u16) -> Duration {
    let power = u32::from(bucket) / STEPS;
    let step = u64::from(u32::from(bucket) % STEPS + 1);
    Duration::from_micros(((1_u64 << power.min(40)) * (u64::from(STEPS) + step)).div_ceil(u64::from(STEPS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canary(version: u32) -> Canary {
        Canary { version: Version(version), percent: 10, started_at_ms: 5, promote_after_ms: None }
    }

    proptest! {
        #[test]
        fn run_time_is_within_its_bucket(micros in 1..3_600_000_000_u64) {
            let time = Duration::from_micros(micros);
            let end = upper_end(bucket(time));
            prop_assert!(time <= end && end <= time.mul_f64(1.15) + Duration::from_micros(1), "{time:?} {end:?}");
        }
    }

    #[test]
    fn calls_count_for_the_versions_of_the_trial() {
        let slot = TrialSlot::default();
        let ran = CallOutcome::Ran(Duration::from_millis(1));
        assert!(!slot.count(Version(2), ran), "there is no trial");
        slot.set(Some(canary(3)), Version(2));
        for (version, outcome) in [(3, ran), (3, CallOutcome::Failed), (2, ran)] {
            assert!(slot.count(Version(version), outcome));
        }
        assert!(!slot.count(Version(1), ran), "version 1 is neither");
        slot.set(Some(canary(3)), Version(2));
        let (new, active) = slot.observed(canary(3)).unwrap();
        assert_eq!((new.calls, new.failed, active.calls, active.failed), (2, 1, 1, 0));
        slot.set(Some(canary(4)), Version(2));
        assert_eq!(slot.observed(canary(4)), Some(Default::default()), "another trial begins with zero");
        assert_eq!(slot.observed(canary(3)), None);
        slot.set(None, Version(2));
        assert!(!slot.count(Version(2), ran));
    }

    #[test]
    fn p95_leaves_out_one_call_in_twenty() {
        let counters = Counters::new();
        assert_eq!(counters.observed().p95(), None);
        for _ in 0..95 {
            counters.count(CallOutcome::Ran(Duration::from_millis(10)));
        }
        for _ in 0..5 {
            counters.count(CallOutcome::Ran(Duration::from_secs(1)));
        }
        let mut observed = counters.observed();
        let p95 = observed.p95().unwrap();
        assert!((10..12).contains(&p95.as_millis()), "{p95:?}");
        assert_eq!(observed.slower_than(Duration::from_millis(100)), (5, 100));
        observed.add(&observed.clone());
        assert_eq!((observed.calls, observed.slower_than(Duration::from_millis(100))), (200, (10, 200)));
        counters.count(CallOutcome::Ran(Duration::from_secs(1)));
        let p95 = counters.observed().p95().unwrap();
        assert!(p95 >= Duration::from_secs(1), "{p95:?}");
    }
}
