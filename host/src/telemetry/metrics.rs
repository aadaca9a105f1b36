//! The node's Prometheus metrics. Times are in seconds and sizes in bytes, as Prometheus asks.

use super::trace::Phase;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use weir_types::{ErrorCode, Name, TenantId};

type Seconds = Counter<f64, AtomicU64>;

/// Everything the node counts. Handles are cheap to clone and to update.
pub(crate) struct Metrics {
    registry: Registry,
    invocations: Family<Outcome, Counter>,
    invocation_seconds: Family<Owner, Histogram>,
    cpu_seconds: Family<Owner, Seconds>,
    phase_seconds: [Histogram; Phase::ALL.len()],
    cold_starts: Family<Cause, Counter>,
    guest_memory_bytes: Histogram,
    /// Invocations running now.
    pub(crate) running: Gauge,
    /// Invocations waiting now.
    pub(crate) queued: Gauge,
    /// Open connections.
    pub(crate) connections: Gauge,
    /// Functions deployed.
    pub(crate) functions: Gauge,
    /// Models pushed.
    pub(crate) models: Gauge,
    /// Device memory that models take.
    pub(crate) model_resident_bytes: Gauge,
    /// Memory that bodies and tensors take.
    pub(crate) arena_used_bytes: Gauge,
    /// Memory that the arena keeps for the next ones.
    pub(crate) arena_pooled_bytes: Gauge,
}

/// Why something had to be made ready first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ColdStart {
    /// The compiled component was not loaded.
    Component,
    /// The component had to be compiled, too.
    Compile,
    /// A model was not in device memory.
    Model,
}

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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: ColdStart,
}

impl EncodeLabelValue for ColdStart {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        match self {
            Self::Component => "component",
            Self::Compile => "compile",
            Self::Model => "model",
        }
        .encode(encoder)
    }
}

/// From 10 microseconds to about 40 seconds.
fn time_buckets() -> Histogram {
    Histogram::new(exponential_buckets(10e-6, 2.0, 23))
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("weir");
        let invocations = Family::<Outcome, Counter>::default();
        let invocation_seconds = Family::<Owner, Histogram>::new_with_constructor(time_buckets);
        let cpu_seconds = Family::<Owner, Seconds>::default();
        let cold_starts = Family::<Cause, Counter>::default();
        let phase_seconds: [Histogram; Phase::ALL.len()] = std::array::from_fn(|_| time_buckets());
        registry.register("invocations", "Invocations that ended, by outcome", invocations.clone());
        let help = "From an invocation's arrival to the end of its answer";
        registry.register_with_unit("invocation", help, Unit::Seconds, invocation_seconds.clone());
        registry.register_with_unit(
            "guest_cpu",
            "Processor time of guests",
            Unit::Seconds,
            cpu_seconds.clone(),
        );
        registry.register(
            "cold_starts",
            "Things made ready for an invocation, by cause",
            cold_starts.clone(),
        );
        let guest_memory_bytes = Histogram::new(exponential_buckets(65_536.0, 2.0, 16));
        let help = "Linear memory of guests at their end";
        registry.register_with_unit("guest_memory", help, Unit::Bytes, guest_memory_bytes.clone());
        for (phase, histogram) in Phase::ALL.iter().zip(&phase_seconds) {
            let name = format!("phase_{}", phase.as_str());
            registry.register_with_unit(
                name,
                "Time spent in this phase of invocations",
                Unit::Seconds,
                histogram.clone(),
            );
        }
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let running = gauge("invocations_running", "Invocations running now");
        let queued = gauge("invocations_queued", "Invocations waiting now");
        let connections = gauge("connections", "Open connections");
        let functions = gauge("functions", "Functions deployed");
        let models = gauge("models", "Models pushed");
        let model_resident_bytes = gauge("model_resident_bytes", "Device memory that models take");
        let arena_used_bytes =
            gauge("arena_used_bytes", "Memory that bodies and tensors of requests under way take");
        let arena_pooled_bytes = gauge("arena_pooled_bytes", "Memory kept for the next bodies and tensors");
        Arc::new(Self {
            registry,
            invocations,
            invocation_seconds,
            cpu_seconds,
            phase_seconds,
            cold_starts,
            guest_memory_bytes,
            running,
            queued,
            connections,
            functions,
            models,
            model_resident_bytes,
            arena_used_bytes,
            arena_pooled_bytes,
        })
    }

    pub(crate) fn phase(&self, phase: Phase, time: Duration) {
        self.phase_seconds[phase as usize].observe(time.as_secs_f64());
    }

    /// A guest has ended with so much memory.
    #[expect(clippy::cast_precision_loss, reason = "a histogram's buckets are coarser than that")]
    pub(crate) fn guest_memory(&self, bytes: usize) {
        self.guest_memory_bytes.observe(bytes as f64);
    }

    pub(crate) fn cold_start(&self, cause: ColdStart) {
        self.cold_starts.get_or_create(&Cause { cause }).inc();
    }

    /// The metrics of one function, looked up once.
    pub(crate) fn function(&self, tenant: &TenantId, name: &Name) -> FunctionMetrics {
        let owner = Owner { tenant: tenant.to_string(), function: name.to_string() };
        let ok = Outcome { tenant: owner.tenant.clone(), function: owner.function.clone(), code: "ok" };
        FunctionMetrics {
            ok: self.invocations.get_or_create_owned(&ok),
            seconds: self.invocation_seconds.get_or_create_owned(&owner),
            cpu_seconds: self.cpu_seconds.get_or_create_owned(&owner),
            invocations: self.invocations.clone(),
            owner,
        }
    }

    /// Everything in the OpenMetrics text format.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// What is counted per function.
#[derive(Clone)]
pub(crate) struct FunctionMetrics {
    owner: Owner,
    ok: Counter,
    seconds: Histogram,
    cpu_seconds: Seconds,
    invocations: Family<Outcome, Counter>,
}

impl FunctionMetrics {
    /// An invocation has ended.
    pub(crate) fn ended(&self, failed: Option<ErrorCode>, time: Duration, cpu_time: Duration) {
        self.seconds.observe(time.as_secs_f64());
        self.cpu_seconds.inc_by(cpu_time.as_secs_f64());
        match failed {
            None => self.ok.inc(),
            Some(code) => {
                let Owner { tenant, function } = self.owner.clone();
                self.invocations.get_or_create(&Outcome { tenant, function, code: code.as_str() }).inc()
            }
        };
    }
}
