//! What is counted for each function.
//!
//! A function's series are there from its deployment until the last who counts for it lets go: it has been deleted and its invocations are
//! over. Names that come and go leave nothing behind.

use super::time_buckets;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use weir_types::{ErrorCode, Name, TenantId};

type Seconds = Counter<f64, AtomicU64>;

/// What stands for no error among the outcomes.
const OK: &str = "ok";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Owner {
    tenant: String,
    function: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    tenant: String,
    function: String,
    code: &'static str,
}

impl Owner {
    fn outcome(&self, code: &'static str) -> Outcome {
        let Self { tenant, function } = self.clone();
        Outcome { tenant, function, code }
    }
}

/// The series of all functions. Cheap to clone.
#[derive(Clone)]
pub(super) struct Functions {
    invocations: Family<Outcome, Counter>,
    seconds: Family<Owner, Histogram>,
    cpu_seconds: Family<Owner, Seconds>,
    log_dropped_bytes: Family<Owner, Counter>,
    hits: Family<Owner, Counter>,
    live: Arc<Mutex<HashMap<Owner, Weak<Series>>>>,
}

impl Functions {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let functions = Self {
            invocations: Family::default(),
            seconds: Family::new_with_constructor(time_buckets),
            cpu_seconds: Family::default(),
            log_dropped_bytes: Family::default(),
            hits: Family::default(),
            live: Arc::default(),
        };
        let Self { invocations, seconds, cpu_seconds, log_dropped_bytes, hits, .. } = functions.clone();
        registry.register("invocations", "Invocations that ended, by outcome", invocations);
        let help = "From an invocation's arrival to the end of its answer";
        registry.register_with_unit("invocation", help, Unit::Seconds, seconds);
        registry.register_with_unit("guest_cpu", "Processor time of guests", Unit::Seconds, cpu_seconds);
        let help = "What functions wrote beyond limits.log_bytes, which is not in their logs";
        registry.register_with_unit("function_log_dropped", help, Unit::Bytes, log_dropped_bytes);
        let help =
            "Invocations that were given an answer made for an equal one; of functions with a cache_ttl_ms";
        registry.register("function_cache_hits", help, hits);
        functions
    }

    /// The series of one function; the same for all who ask while one of them still counts.
    pub(super) fn of(&self, tenant: &TenantId, name: &Name) -> FunctionMetrics {
        let owner = Owner { tenant: tenant.to_string(), function: name.to_string() };
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = live.get(&owner).and_then(Weak::upgrade) {
            return FunctionMetrics(series);
        }
        let series = Arc::new(Series {
            ok: self.invocations.get_or_create_owned(&owner.outcome(OK)),
            seconds: self.seconds.get_or_create_owned(&owner),
            cpu_seconds: self.cpu_seconds.get_or_create_owned(&owner),
            log_dropped_bytes: self.log_dropped_bytes.get_or_create_owned(&owner),
            functions: self.clone(),
            owner: owner.clone(),
        });
        live.insert(owner, Arc::downgrade(&series));
        FunctionMetrics(series)
    }
}

/// What is counted for one function. Cheap to clone and to update.
#[derive(Clone)]
pub(crate) struct FunctionMetrics(Arc<Series>);

struct Series {
    owner: Owner,
    ok: Counter,
    seconds: Histogram,
    cpu_seconds: Seconds,
    log_dropped_bytes: Counter,
    functions: Functions,
}

impl FunctionMetrics {
    /// An invocation has ended.
    pub(crate) fn ended(&self, failed: Option<ErrorCode>, time: Duration, cpu_time: Duration) {
        let Series { owner, ok, seconds, cpu_seconds, functions, .. } = &*self.0;
        seconds.observe(time.as_secs_f64());
        cpu_seconds.inc_by(cpu_time.as_secs_f64());
        match failed {
            None => ok.inc(),
            Some(code) => functions.invocations.get_or_create(&owner.outcome(code.as_str())).inc(),
        };
    }

    /// An invocation wrote more than its log limit lets through.
    pub(crate) fn log_dropped(&self, bytes: u64) {
        self.0.log_dropped_bytes.inc_by(bytes);
    }
}

impl FunctionMetrics {
    /// An invocation was given an answer made for another.
    pub(crate) fn hit(&self) {
        let Series { owner, functions, .. } = &*self.0;
        functions.hits.get_or_create(owner).inc();
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let Functions { invocations, seconds, cpu_seconds, log_dropped_bytes, hits, live } = &self.functions;
        let owner = &self.owner;
        let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.get(owner).is_none_or(|series| series.strong_count() > 0) {
            // The name is in use again: the series go on.
            return;
        }
        live.remove(owner);
        for code in ErrorCode::ALL.iter().map(|code| code.as_str()).chain([OK]) {
            invocations.remove(&owner.outcome(code));
        }
        seconds.remove(owner);
        cpu_seconds.remove(owner);
        log_dropped_bytes.remove(owner);
        hits.remove(owner);
    }
}
