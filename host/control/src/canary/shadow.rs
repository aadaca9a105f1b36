//! Shadows: which calls of the active version are copied, and the comparison of the copies with the
//! calls.
//!
//! Each node counts the copies that it ran. The counts of a shadow end with a change of the shadow,
//! of its percentage or of the active version, and with the node.

use super::split::Sampler;
use super::trial::{CallOutcome, CanaryOf, Counters, Observed};
use http::StatusCode;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_call::status as status_of;
use weir_telemetry::ShadowMetrics;
use weir_types::api::{ComparedCalls, Shadow};
use weir_types::{ErrorCode, Name, TenantId, Version};

/// The outcome of a call that was chosen to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyOutcome {
    /// The shadow ran the copy with an equal result.
    Equal,
    /// The shadow ran the copy with another result.
    Different,
    /// Skipped: the body is a stream, or larger than the limit of one copy.
    Body,
    /// Skipped: too many copies run, or wait with too many bytes.
    Limit,
    /// Skipped: the node has no room that calls of the tenant do not need.
    NoRoom,
    /// Skipped: the call has no outcome to compare with, because its client left or was at fault.
    NoAnswer,
}

impl CopyOutcome {
    /// All outcomes.
    pub const ALL: [Self; 6] =
        [Self::Equal, Self::Different, Self::Body, Self::Limit, Self::NoRoom, Self::NoAnswer];

    /// The label of metrics, and the reason in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Different => "different",
            Self::Body => "body",
            Self::Limit => "limit",
            Self::NoRoom => "no-room",
            Self::NoAnswer => "no-answer",
        }
    }

    fn is_skipped(self) -> bool {
        !matches!(self, Self::Equal | Self::Different)
    }
}

/// The end of a call or of its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    /// The status of the response, or of the error.
    pub status: StatusCode,
    /// Whether the version failed, or the time that it ran.
    pub outcome: CallOutcome,
}

impl CallEnd {
    /// The end of a call; `None` if its client left or was at fault.
    pub fn new(failed: Option<ErrorCode>, status: StatusCode, ran: Duration) -> Option<Self> {
        if failed == Some(ErrorCode::Cancelled) {
            return None;
        }
        let outcome = CallOutcome::new(failed, status, ran)?;
        Some(Self { status: failed.map_or(status, status_of), outcome })
    }

    /// The end of a copy; `None` if it was cut off. Every error is a failure of the shadow, because
    /// the client of the copied call was not at fault.
    pub fn of_copy(failed: Option<ErrorCode>, status: StatusCode, ran: Duration) -> Option<Self> {
        if failed == Some(ErrorCode::Cancelled) {
            return None;
        }
        let status = failed.map_or(status, status_of);
        let has_failed = failed.is_some() || status.is_server_error();
        let outcome = if has_failed { CallOutcome::Failed } else { CallOutcome::Ran(ran) };
        Some(Self { status, outcome })
    }
}

/// The shadow of a function or model, if it has one. Shared by all of its versions.
pub struct ShadowSlot {
    metrics: Arc<ShadowMetrics>,
    /// Whether there is a shadow: calls without one only read this.
    is_on: AtomicBool,
    trial: RwLock<Option<Arc<ShadowTrial>>>,
}

/// A call that was chosen to be copied. Counts exactly once: if it is dropped, as one without an
/// answer.
pub struct ChosenCall {
    /// `None` once the call was counted.
    trial: Option<Arc<ShadowTrial>>,
    version: Version,
}

/// The counters of a shadow on this node.
struct ShadowTrial {
    shadow: Shadow,
    active: Version,
    sampler: Sampler,
    metrics: Arc<ShadowMetrics>,
    shadow_calls: VersionCounters,
    active_calls: VersionCounters,
    outcomes: [AtomicU64; CopyOutcome::ALL.len()],
}

struct VersionCounters {
    calls: Counters,
    /// Calls by the first digit of their status, from 1.
    statuses: [AtomicU64; 5],
}

/// The copies of a shadow on one node. Nodes of a cluster exchange and add them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowCounts {
    /// Whether a function or a model has the shadow.
    pub of: CanaryOf,
    /// Owner of the function or model.
    pub tenant: TenantId,
    /// Name of the function or model.
    pub name: Name,
    /// The shadow.
    pub shadow: Shadow,
    /// The active version.
    pub active: Version,
    /// The counts.
    pub copies: ObservedCopies,
}

/// Copies and the calls that were copied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedCopies {
    /// Copies that the shadow ran.
    pub shadow: ObservedVersion,
    /// The calls that were copied.
    pub active: ObservedVersion,
    /// Chosen calls, by the label of their outcome.
    pub outcomes: BTreeMap<String, u64>,
}

/// Calls of one version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedVersion {
    /// The calls with their failures and run times.
    pub calls: Observed,
    /// Calls by the class of their status, such as `2xx`.
    pub statuses: BTreeMap<String, u64>,
}

impl ShadowSlot {
    pub(crate) fn new(metrics: ShadowMetrics) -> Self {
        Self { metrics: Arc::new(metrics), is_on: AtomicBool::new(false), trial: RwLock::default() }
    }

    /// Whether there is a shadow.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Chooses whether a call of `version` is copied.
    pub fn choose(&self, version: Version) -> Option<ChosenCall> {
        if !self.is_on() {
            return None;
        }
        let trial = self.trial.read().clone()?;
        let is_chosen = trial.active == version && trial.sampler.next();
        is_chosen.then(|| ChosenCall { version: trial.shadow.version, trial: Some(trial) })
    }

    /// The copies since the start of `shadow`; `None` if it has ended or not begun here.
    pub fn observed(&self, shadow: Shadow) -> Option<ObservedCopies> {
        let trial = self.trial.read().clone().filter(|trial| trial.shadow == shadow)?;
        Some(trial.observed())
    }

    /// Begins copying to `shadow`, or ends it. The counts of the same shadow beside the same active
    /// version continue.
    pub(crate) fn set(&self, shadow: Option<Shadow>, active: Version) {
        let mut trial = self.trial.write();
        let is_same = |trial: &Arc<ShadowTrial>| shadow == Some(trial.shadow) && trial.active == active;
        if trial.as_ref().is_some_and(is_same) {
            return;
        }
        *trial = shadow.map(|shadow| Arc::new(ShadowTrial::new(shadow, active, self.metrics.clone())));
        self.is_on.store(trial.is_some(), Ordering::Relaxed);
    }
}

impl ShadowTrial {
    fn new(shadow: Shadow, active: Version, metrics: Arc<ShadowMetrics>) -> Self {
        Self {
            shadow,
            active,
            sampler: Sampler::new(shadow.percent),
            metrics,
            shadow_calls: VersionCounters::new(),
            active_calls: VersionCounters::new(),
            outcomes: Default::default(),
        }
    }

    fn count(&self, outcome: CopyOutcome) {
        self.metrics.count(outcome.as_str());
        let at = CopyOutcome::ALL.iter().position(|known| *known == outcome);
        if let Some(counter) = at.and_then(|at| self.outcomes.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn observed(&self) -> ObservedCopies {
        let counts = self.outcomes.iter().map(|counter| counter.load(Ordering::Relaxed));
        let outcomes = CopyOutcome::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
        ObservedCopies {
            shadow: self.shadow_calls.observed(),
            active: self.active_calls.observed(),
            outcomes: outcomes.map(|(outcome, count)| (outcome.as_str().to_owned(), count)).collect(),
        }
    }
}

impl ChosenCall {
    /// The version that gets the copy.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Counts the call as one without a copy.
    pub fn skipped(mut self, outcome: CopyOutcome) {
        if let Some(trial) = self.trial.take() {
            trial.count(outcome);
        }
    }

    /// Counts the call and its copy.
    pub fn compared(mut self, active: CallEnd, shadow: CallEnd, is_equal: bool) {
        let Some(trial) = self.trial.take() else { return };
        trial.active_calls.count(active);
        trial.shadow_calls.count(shadow);
        trial.count(if is_equal { CopyOutcome::Equal } else { CopyOutcome::Different });
    }
}

impl Drop for ChosenCall {
    fn drop(&mut self) {
        if let Some(trial) = self.trial.take() {
            trial.count(CopyOutcome::NoAnswer);
        }
    }
}

impl VersionCounters {
    fn new() -> Self {
        Self { calls: Counters::new(), statuses: Default::default() }
    }

    fn count(&self, end: CallEnd) {
        self.calls.count(end.outcome);
        let class = usize::from(end.status.as_u16() / 100).clamp(1, self.statuses.len());
        if let Some(counter) = self.statuses.get(class - 1) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn observed(&self) -> ObservedVersion {
        let counts = (1..).zip(&self.statuses).map(|(class, count)| (class, count.load(Ordering::Relaxed)));
        let statuses = counts.filter(|(_, count)| *count > 0);
        ObservedVersion {
            calls: self.calls.observed(),
            statuses: statuses.map(|(class, count): (u16, u64)| (format!("{class}xx"), count)).collect(),
        }
    }
}

impl ObservedCopies {
    /// Adds the copies that another node observed.
    pub fn add(&mut self, other: &Self) {
        self.shadow.add(&other.shadow);
        self.active.add(&other.active);
        add_counts(&mut self.outcomes, &other.outcomes);
    }

    /// The number of chosen calls with this outcome.
    pub fn count(&self, outcome: CopyOutcome) -> u64 {
        self.outcomes.get(outcome.as_str()).copied().unwrap_or_default()
    }

    /// Chosen calls without a copy, by reason.
    pub fn skipped(&self) -> BTreeMap<String, u64> {
        let skipped = CopyOutcome::ALL.into_iter().filter(|outcome| outcome.is_skipped());
        let counts = skipped.map(|outcome| (outcome.as_str().to_owned(), self.count(outcome)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

impl ObservedVersion {
    fn add(&mut self, other: &Self) {
        self.calls.add(&other.calls);
        add_counts(&mut self.statuses, &other.statuses);
    }

    /// The calls as the API reports them.
    pub fn report(&self) -> ComparedCalls {
        ComparedCalls {
            calls: self.calls.report(),
            p50_ms: self.calls.p50().map(super::trial::rounded_ms),
            statuses: self.statuses.clone(),
        }
    }
}

fn add_counts(counts: &mut BTreeMap<String, u64>, other: &BTreeMap<String, u64>) {
    for (label, count) in other {
        *counts.entry(label.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_telemetry::Metrics;

    fn shadow(percent: u8) -> Shadow {
        Shadow { version: Version(2), percent, started_at_ms: 5 }
    }

    fn slot() -> ShadowSlot {
        ShadowSlot::new(Metrics::new().function_shadow(&TenantId::default(), &Name::new("f").unwrap()))
    }

    fn ran(status: u16, millis: u64) -> CallEnd {
        CallEnd::new(None, StatusCode::from_u16(status).unwrap(), Duration::from_millis(millis)).unwrap()
    }

    #[test]
    fn only_calls_of_the_active_version_are_chosen_and_exactly_the_percentage() {
        let slot = slot();
        assert!(slot.choose(Version(1)).is_none());
        for percent in [1, 30, 100] {
            slot.set(Some(shadow(percent)), Version(1));
            let chosen = (0..1_000).filter(|_| slot.choose(Version(1)).is_some()).count();
            assert_eq!(chosen, 10 * usize::from(percent));
        }
        assert!(slot.choose(Version(2)).is_none(), "copies are not copied");
        assert!(slot.choose(Version(3)).is_none());
        slot.set(None, Version(1));
        assert!(slot.choose(Version(1)).is_none());
    }

    #[test]
    fn counts_of_nodes_add_up_and_end_with_the_shadow() {
        let slot = slot();
        slot.set(Some(shadow(100)), Version(1));
        let chosen = || slot.choose(Version(1)).unwrap();
        chosen().compared(ran(200, 10), ran(200, 20), true);
        chosen().compared(ran(200, 10), ran(503, 20), false);
        chosen().skipped(CopyOutcome::Limit);
        drop(chosen());
        let mut all = slot.observed(shadow(100)).unwrap();
        all.add(&all.clone());
        assert_eq!((all.count(CopyOutcome::Equal), all.count(CopyOutcome::Different)), (2, 2));
        assert_eq!(all.skipped(), [("limit".to_owned(), 2), ("no-answer".to_owned(), 2)].into());
        let report = all.shadow.report();
        assert_eq!((report.calls.calls, report.calls.failed), (4, 2));
        assert_eq!(report.statuses, [("2xx".to_owned(), 2), ("5xx".to_owned(), 2)].into());
        assert!(report.p50_ms.is_some_and(|ms| (20.0..23.0).contains(&ms)), "{report:?}");
        slot.set(Some(shadow(100)), Version(3));
        assert_eq!(slot.observed(shadow(100)), Some(ObservedCopies::default()), "another active version");
        assert_eq!(slot.observed(shadow(50)), None);
    }

    #[test]
    fn calls_that_their_clients_ended_have_no_outcome() {
        let end = |code| CallEnd::new(Some(code), StatusCode::OK, Duration::ZERO);
        assert_eq!(end(ErrorCode::Cancelled), None);
        assert_eq!(end(ErrorCode::BodyTooLarge), None);
        assert_eq!(end(ErrorCode::GuestTrap).map(|end| end.status.as_u16()), Some(500));
    }
}
