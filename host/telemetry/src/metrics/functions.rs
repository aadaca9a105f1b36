//! Metrics of functions.
//!
//! The series of a function exist from its deployment until the last handle is dropped, after the
//! function was deleted and its invocations have ended. Then the series are removed.

use super::canaries::{LatestVersions, OUTCOMES};
use super::cold_starts::FunctionColdStart;
use super::time_buckets;
use http::StatusCode;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use weir_call::ObjectiveOutcome as Kept;
use weir_types::{ErrorCode, Name, TenantId, Version};

type Seconds = Counter<f64, AtomicU64>;

/// Outcome of an invocation without an error.
const OK: &str = "ok";

/// Kinds of instances that run an invocation.
const FRESH: &str = "fresh";
const REUSED: &str = "reused";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabels {
    tenant: String,
    function: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    tenant: String,
    function: String,
    code: &'static str,
    status: StatusLabel,
}

/// An HTTP status as a label. Functions choose their statuses, so each registered status has its
/// own series; the other statuses of a class share one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum StatusLabel {
    Registered(u16),
    /// The first digit of the status. Clients treat invalid statuses, above 599, as server errors.
    Class(u16),
}

impl StatusLabel {
    fn new(status: StatusCode) -> Self {
        match status.canonical_reason() {
            Some(_) => Self::Registered(status.as_u16()),
            None => Self::Class((status.as_u16() / 100).clamp(1, 5)),
        }
    }
}

impl EncodeLabelValue for StatusLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        match self {
            Self::Registered(status) => write!(encoder, "{status}"),
            Self::Class(class) => write!(encoder, "{class}xx"),
        }
    }
}

/// Reason for retiring an instance that could have been reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retired {
    /// The instance ran `reuse.calls_max` calls.
    Calls,
    /// The memory of the instance grew by more than `reuse.memory_growth_bytes`.
    Memory,
    /// The instance held more than `reuse.handles_max` handles, or a handle that may not outlive a
    /// call.
    Handles,
    /// The instance reached the age of `reuse.age_ms`.
    Age,
    /// The instance got no call within `reuse.idle_ms`.
    Idle,
    /// The last call of the instance failed, or was cut off.
    Failed,
    /// Another function needed the place, or `reuse.idle_max` instances were already idle.
    Room,
    /// Another version of the function became active, the function was deleted, or one of its
    /// secrets changed.
    Replaced,
    /// The node shuts down.
    Stopping,
}

impl Retired {
    const ALL: [Self; 9] = [
        Self::Calls,
        Self::Memory,
        Self::Handles,
        Self::Age,
        Self::Idle,
        Self::Failed,
        Self::Room,
        Self::Replaced,
        Self::Stopping,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Memory => "memory",
            Self::Handles => "handles",
            Self::Age => "age",
            Self::Idle => "idle",
            Self::Failed => "failed",
            Self::Room => "room",
            Self::Replaced => "replaced",
            Self::Stopping => "stopping",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Use {
    tenant: String,
    function: String,
    instance: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct End {
    tenant: String,
    function: String,
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ColdStartLabels {
    tenant: String,
    function: String,
    cause: &'static str,
    from: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SloLabels {
    tenant: String,
    function: String,
    outcome: &'static str,
}

impl FunctionLabels {
    fn kept(&self, outcome: Kept) -> SloLabels {
        let Self { tenant, function } = self.clone();
        SloLabels { tenant, function, outcome: outcome.as_str() }
    }

    fn outcome(&self, code: &'static str, status: StatusLabel) -> OutcomeLabels {
        let Self { tenant, function } = self.clone();
        OutcomeLabels { tenant, function, code, status }
    }

    fn use_of(&self, instance: &'static str) -> Use {
        let Self { tenant, function } = self.clone();
        Use { tenant, function, instance }
    }

    fn version(&self, version: u32, outcome: &'static str) -> VersionLabels {
        let Self { tenant, function } = self.clone();
        VersionLabels { tenant, function, version, outcome }
    }

    fn cold_start(&self, cause: FunctionColdStart) -> ColdStartLabels {
        let Self { tenant, function } = self.clone();
        let (cause, from) = cause.labels();
        ColdStartLabels { tenant, function, cause, from }
    }

    fn end(&self, cause: Retired) -> End {
        let Self { tenant, function } = self.clone();
        End { tenant, function, cause: cause.as_str() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabels {
    tenant: String,
    function: String,
    version: u32,
    outcome: &'static str,
}

/// Series of all functions. Cheap to clone.
#[derive(Clone)]
pub(super) struct FunctionFamilies {
    invocations: Family<OutcomeLabels, Counter>,
    slo_invocations: Family<SloLabels, Counter>,
    seconds: Family<FunctionLabels, Histogram>,
    cpu_seconds: Family<FunctionLabels, Seconds>,
    log_dropped_bytes: Family<FunctionLabels, Counter>,
    hits: Family<FunctionLabels, Counter>,
    canary_calls: Family<VersionLabels, Counter>,
    instances: Family<Use, Counter>,
    retired: Family<End, Counter>,
    cold_starts: Family<ColdStartLabels, Counter>,
    live: Arc<Mutex<HashMap<FunctionLabels, Weak<FunctionSeries>>>>,
}

impl FunctionFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let functions = Self {
            invocations: Family::default(),
            slo_invocations: Family::default(),
            seconds: Family::new_with_constructor(time_buckets),
            cpu_seconds: Family::default(),
            log_dropped_bytes: Family::default(),
            hits: Family::default(),
            canary_calls: Family::default(),
            instances: Family::default(),
            retired: Family::default(),
            cold_starts: Family::default(),
            live: Arc::default(),
        };
        let Self {
            invocations,
            slo_invocations,
            seconds,
            cpu_seconds,
            log_dropped_bytes,
            hits,
            canary_calls,
            instances,
            retired,
            cold_starts,
            ..
        } = functions.clone();
        let help = "Invocations with a service level objective, by what became of it";
        registry.register("slo_invocations", help, slo_invocations);
        registry.register("invocations", "Invocations that ended, by outcome", invocations);
        let help = "Time from an invocation's arrival to the end of its response";
        registry.register_with_unit("invocation", help, Unit::Seconds, seconds);
        registry.register_with_unit(
            "guest_cpu",
            "Processor time of guests, and of decoding images for them",
            Unit::Seconds,
            cpu_seconds,
        );
        let help = "What functions wrote beyond limits.log_bytes, which is not in their logs";
        registry.register_with_unit("function_log_dropped", help, Unit::Bytes, log_dropped_bytes);
        let help =
            "Invocations that were given an answer made for an equal one; of functions with a cache_ttl_ms";
        registry.register("function_cache_hits", help, hits);
        let help = "Invocations of a function with a canary, by version: of the canary and the active one";
        registry.register("canary_invocations", help, canary_calls);
        let help = "Invocations that got an instance, by kind: fresh or reused";
        registry.register("function_instances", help, instances);
        let help = "Reusable instances that were retired, by cause";
        registry.register("function_instances_retired", help, retired);
        let help = "Parts that invocations of a function waited for, by cause, and by where models came from";
        registry.register("function_cold_starts", help, cold_starts);
        functions
    }

    fn remove_version(&self, owner: &FunctionLabels, version: u32) {
        for outcome in OUTCOMES {
            self.canary_calls.remove(&owner.version(version, outcome));
        }
    }

    /// Returns the series of one function. All callers share them while any handle exists.
    pub(super) fn series(&self, tenant: &TenantId, name: &Name) -> FunctionMetrics {
        let owner = FunctionLabels { tenant: tenant.to_string(), function: name.to_string() };
        let mut live = self.live.lock();
        if let Some(series) = live.get(&owner).and_then(Weak::upgrade) {
            return FunctionMetrics(series);
        }
        let series = Arc::new(FunctionSeries {
            ok: self.invocations.get_or_create_owned(&owner.outcome(OK, StatusLabel::new(StatusCode::OK))),
            outcomes: Mutex::default(),
            versions: Mutex::default(),
            seconds: self.seconds.get_or_create_owned(&owner),
            cpu_seconds: self.cpu_seconds.get_or_create_owned(&owner),
            log_dropped_bytes: self.log_dropped_bytes.get_or_create_owned(&owner),
            fresh: self.instances.get_or_create_owned(&owner.use_of(FRESH)),
            reused: OnceLock::new(),
            functions: self.clone(),
            owner: owner.clone(),
        });
        live.insert(owner, Arc::downgrade(&series));
        FunctionMetrics(series)
    }
}

/// Metrics of one function. Cheap to clone and to update.
#[derive(Clone)]
pub struct FunctionMetrics(Arc<FunctionSeries>);

struct FunctionSeries {
    owner: FunctionLabels,
    /// Invocations that were answered with 200.
    ok: Counter,
    /// The other outcomes so far.
    outcomes: Mutex<HashSet<(&'static str, StatusLabel)>>,
    /// The versions that took part in trials of canaries, the one called last at the end.
    versions: Mutex<LatestVersions>,
    seconds: Histogram,
    cpu_seconds: Seconds,
    log_dropped_bytes: Counter,
    fresh: Counter,
    reused: OnceLock<Counter>,
    functions: FunctionFamilies,
}

impl FunctionMetrics {
    /// Records the end of an invocation, with the status of its response.
    pub fn ended(&self, failed: Option<ErrorCode>, status: StatusCode, time: Duration, cpu_time: Duration) {
        let FunctionSeries { owner, ok, outcomes, seconds, cpu_seconds, functions, .. } = &*self.0;
        seconds.observe(time.as_secs_f64());
        cpu_seconds.inc_by(cpu_time.as_secs_f64());
        if failed.is_none() && status == StatusCode::OK {
            ok.inc();
            return;
        }
        let code = failed.map_or(OK, |code| code.as_str());
        let status = StatusLabel::new(status);
        outcomes.lock().insert((code, status));
        functions.invocations.get_or_create(&owner.outcome(code, status)).inc();
    }

    /// Records the end of a copy of an invocation for a shadow: only its processor time counts.
    pub fn copy_ended(&self, cpu_time: Duration) {
        self.0.cpu_seconds.inc_by(cpu_time.as_secs_f64());
    }

    /// Counts an instance given to an invocation.
    pub fn instance(&self, is_fresh: bool) {
        let FunctionSeries { owner, fresh, reused, functions, .. } = &*self.0;
        match is_fresh {
            true => fresh.inc(),
            // Created at the first reuse, since most functions never reuse an instance.
            false => {
                reused.get_or_init(|| functions.instances.get_or_create_owned(&owner.use_of(REUSED))).inc()
            }
        };
    }

    /// Counts a retired instance.
    pub fn retired(&self, cause: Retired) {
        let FunctionSeries { owner, functions, .. } = &*self.0;
        functions.retired.get_or_create(&owner.end(cause)).inc();
    }

    /// Counts a cold start.
    pub fn cold_start(&self, cause: FunctionColdStart) {
        let FunctionSeries { owner, functions, .. } = &*self.0;
        functions.cold_starts.get_or_create(&owner.cold_start(cause)).inc();
    }

    /// Counts an invocation of a function with a canary. Only the versions called last keep their
    /// series.
    pub fn canary_call(&self, version: Version, is_failed: bool) {
        let FunctionSeries { owner, versions, functions, .. } = &*self.0;
        let [ok, failed] = OUTCOMES;
        let outcome = if is_failed { failed } else { ok };
        let mut versions = versions.lock();
        if let Some(removed) = versions.add(version.0) {
            functions.remove_version(owner, removed);
        }
        functions.canary_calls.get_or_create(&owner.version(version.0, outcome)).inc();
    }

    /// Counts the end of an invocation with an objective.
    pub fn objective(&self, outcome: Kept) {
        let FunctionSeries { owner, functions, .. } = &*self.0;
        functions.slo_invocations.get_or_create(&owner.kept(outcome)).inc();
    }

    /// Name of the tenant that owns the function.
    pub(crate) fn tenant(&self) -> &str {
        &self.0.owner.tenant
    }

    /// Counts bytes that an invocation wrote beyond its log limit.
    pub fn log_dropped(&self, bytes: u64) {
        self.0.log_dropped_bytes.inc_by(bytes);
    }
}

impl FunctionMetrics {
    /// Counts an invocation that got a response made for another.
    pub fn hit(&self) {
        let FunctionSeries { owner, functions, .. } = &*self.0;
        functions.hits.get_or_create(owner).inc();
    }
}

impl Drop for FunctionSeries {
    fn drop(&mut self) {
        let outcomes = std::mem::take(self.outcomes.get_mut());
        let versions = std::mem::take(self.versions.get_mut());
        let FunctionFamilies {
            invocations,
            slo_invocations,
            seconds,
            cpu_seconds,
            log_dropped_bytes,
            hits,
            instances,
            retired,
            cold_starts,
            live,
            ..
        } = &self.functions;
        let owner = &self.owner;
        let mut live = live.lock();
        if live.get(owner).is_none_or(|series| series.strong_count() > 0) {
            // The name is in use again: keep the series.
            return;
        }
        live.remove(owner);
        for (code, status) in outcomes.into_iter().chain([(OK, StatusLabel::new(StatusCode::OK))]) {
            invocations.remove(&owner.outcome(code, status));
        }
        for outcome in Kept::ALL {
            slo_invocations.remove(&owner.kept(outcome));
        }
        seconds.remove(owner);
        cpu_seconds.remove(owner);
        log_dropped_bytes.remove(owner);
        hits.remove(owner);
        for version in versions.into_all() {
            self.functions.remove_version(owner, version);
        }
        for instance in [FRESH, REUSED] {
            instances.remove(&owner.use_of(instance));
        }
        for cause in Retired::ALL {
            retired.remove(&owner.end(cause));
        }
        for cause in FunctionColdStart::all() {
            cold_starts.remove(&owner.cold_start(cause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::canaries::VERSIONS_MAX;
    use super::*;
    use crate::{Metrics, TextFormat};

    /// One canary after another beside an active version that stays.
    #[test]
    fn latest_versions_keep_their_counts_of_canary_calls() {
        let metrics = Metrics::new();
        let function = metrics.function(&TenantId::default(), &Name::new("f").unwrap());
        for canary in 2..=7 {
            for version in [1, canary, 1] {
                function.canary_call(Version(version), version == canary);
            }
        }
        let text = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        let counts: Vec<&str> =
            text.lines().filter(|line| line.starts_with("weir_canary_invocations_total")).collect();
        let count = |labels: &str| {
            let line = counts.iter().find(|line| line.contains(labels))?;
            line.split(' ').next_back()?.parse::<u32>().ok()
        };
        assert_eq!(count("version=\"1\",outcome=\"ok\""), Some(12), "{counts:?}");
        assert_eq!(count("version=\"7\",outcome=\"failed\""), Some(1), "{counts:?}");
        assert_eq!(counts.len(), VERSIONS_MAX, "{counts:?}");
    }
}
