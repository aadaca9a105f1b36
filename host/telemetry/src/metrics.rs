//! Prometheus metrics of the node. Times are in seconds and sizes in bytes, by Prometheus
//! convention.
//!
//! Series of functions carry their tenant, and are shown to that tenant and the operator. All other
//! series belong to the node, and are shown to every client.

mod access;
mod answers;
mod asynchronous;
mod calls;
mod canaries;
mod cold_starts;
mod deployed;
mod devices;
mod functions;
mod gpus;
mod hedges;
mod intermediates;
mod objects;
mod otlp;
mod outbound;
mod placements;
mod plain;
mod process;
mod response_cache;
mod served;
mod shadows;
mod sizes;
mod storage;
mod system;
mod tls;
mod triggers;
mod triton;
mod usage;
mod websockets;

use access::AccessMetrics;
pub use access::QuotaKind;
use answers::AnswerMetrics;
pub use answers::{AnswerScope, CutCause};
use asynchronous::AsyncMetrics;
pub use calls::ColdStart;
pub use canaries::ModelCanaryMetrics;
pub use cold_starts::{FunctionColdStart, LoadReason, LoadSource, ModelColdStart};
pub use functions::{FunctionMetrics, Retired};
pub use hedges::HedgeMetrics;
use objects::ObjectMetrics;
use otlp::OtlpMetrics;
pub use otlp::{Signal, SpanDrop};
use outbound::OutboundMetrics;
use placements::PlacementMetrics;
pub use placements::{BACKLOG_DEVICES_MAX, SchedulerBacklog};
pub use served::{DemandTotals, Served, Tally, Times};
pub use shadows::ShadowMetrics;
pub use sizes::SizeMetrics;
pub use websockets::ClosedBy;

use super::events::EventLog;
use super::gpus::GpuMonitor;
use super::trace::Phase;
use super::usage::Meters;
use calls::CallMetrics;
use canaries::AllModelCanaries;
use deployed::DeployedMetrics;
use devices::DeviceMetrics;
use functions::FunctionFamilies;
use hedges::AllHedges;
use intermediates::IntermediateMetrics;
pub use process::InstanceScope;
use process::ProcessMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use response_cache::ResponseCacheMetrics;
use served::AllServed;
use shadows::{AllShadows, ShadowOwner};
use sizes::AllSizes;
use std::sync::Arc;
use std::time::Duration;
use storage::StorageMetrics;
use system::SystemMetrics;
pub use tls::HandshakeFailure;
use triggers::TriggerMetrics;
use weir_types::{ModelId, Name, TenantId, Version, WorkflowId};

/// All metrics of the node. Handles are cheap to clone and to update.
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// Events of the node: deployments, failures, and changes of the cluster.
    pub events: EventLog,
    /// Figures that GPUs report.
    pub gpus: GpuMonitor,
    /// Device usage of tenants.
    pub usage: Meters,
    /// Invocations of all functions.
    pub calls: CallMetrics,
    /// Deployed functions, models and workflows.
    pub deployed: DeployedMetrics,
    /// Connections, instances and memory of the process.
    pub process: ProcessMetrics,
    /// The response cache: its size, hits, misses and evictions.
    pub response_cache: ResponseCacheMetrics,
    /// Answers on their way to clients: bytes, cuts and refusals.
    pub answers: AnswerMetrics,
    /// TLS, authentication, and the audit log.
    pub access: AccessMetrics,
    /// Asynchronous invocations.
    pub asynchronous: AsyncMetrics,
    /// Triggers and their ticks.
    pub triggers: TriggerMetrics,
    /// Named objects: puts, reads and sizes.
    pub objects: ObjectMetrics,
    /// Export to an OpenTelemetry collector.
    pub otlp: OtlpMetrics,
    /// Outbound requests: refusals.
    pub outbound: OutboundMetrics,
    /// Estimates of placements.
    pub placements: PlacementMetrics,
    /// Free space and failed writes of the data folder.
    pub storage: StorageMetrics,
    /// Tensors sent between nodes.
    pub intermediates: IntermediateMetrics,
    /// Series by device.
    pub devices: DeviceMetrics,
}

/// Series by function, model or workflow step.
struct Families {
    functions: FunctionFamilies,
    served: AllServed,
    sizes: AllSizes,
    hedges: AllHedges,
    model_canaries: AllModelCanaries,
    shadows: AllShadows,
}

/// Histogram from 10 microseconds to about 40 seconds.
fn time_buckets() -> Histogram {
    Histogram::new(exponential_buckets(10e-6, 2.0, 23))
}

/// Histogram of powers of two, up to the largest batch that may be requested.
fn size_buckets() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 11))
}

/// Registers a counter.
fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

/// Registers a gauge.
fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

impl Metrics {
    /// Registers all metrics.
    pub fn new() -> Arc<Self> {
        let mut all = Registry::default();
        let served = AllServed::register(&mut all);
        let gpus = GpuMonitor::default();
        all.register_collector(Box::new(gpus.clone()));
        all.register_collector(Box::new(SystemMetrics::new()));
        let usage = Meters::default();
        all.register_collector(Box::new(usage.clone()));
        let registry = all.sub_registry_with_prefix("weir");
        Arc::new(Self {
            families: Families {
                functions: FunctionFamilies::register(registry),
                sizes: AllSizes::register(registry),
                hedges: AllHedges::register(registry),
                model_canaries: AllModelCanaries::register(registry),
                shadows: AllShadows::register(registry),
                served,
            },
            events: EventLog::default(),
            response_cache: ResponseCacheMetrics::register(registry),
            placements: PlacementMetrics::register(registry),
            answers: AnswerMetrics::register(registry),
            access: AccessMetrics::register(registry),
            asynchronous: AsyncMetrics::register(registry),
            triggers: TriggerMetrics::register(registry),
            objects: ObjectMetrics::register(registry),
            otlp: OtlpMetrics::register(registry),
            outbound: OutboundMetrics::register(registry),
            intermediates: IntermediateMetrics::register(registry),
            devices: DeviceMetrics::register(registry),
            calls: CallMetrics::register(registry),
            process: ProcessMetrics::register(registry),
            storage: StorageMetrics::register(registry),
            deployed: DeployedMetrics::register(registry),
            gpus,
            usage,
            registry: all,
        })
    }

    /// Records the time of one phase of an invocation.
    pub fn phase(&self, phase: Phase, time: Duration) {
        self.calls.phase(phase, time);
    }

    /// Records the memory of a guest at its end.
    pub fn guest_memory(&self, bytes: usize) {
        self.calls.guest_memory(bytes);
    }

    /// Counts the functions of a component that the compile cache contained, and those that it did
    /// not.
    pub fn compiled_with_cache(&self, hits: u64, misses: u64) {
        self.deployed.cached_functions.inc_by(hits);
        self.deployed.compiled_functions.inc_by(misses);
    }

    /// Counts a cold start.
    pub fn cold_start(&self, cause: ColdStart) {
        self.calls.cold_start(cause);
    }

    /// Counts a model that was placed on this device but ran on another.
    pub fn instead(&self, device: &str) {
        self.devices.instead(device);
    }

    /// Looks up the metrics of one function. Callers keep the handle.
    pub fn function(&self, tenant: &TenantId, name: &Name) -> FunctionMetrics {
        self.families.functions.series(tenant, name)
    }

    /// Creates the metrics of a model's runs while it has a canary. Each model has one handle.
    pub fn model_canary(&self, tenant: &TenantId, name: &Name) -> ModelCanaryMetrics {
        self.families.model_canaries.series(tenant, name)
    }

    /// Returns the series of the copies of a function's calls.
    pub fn function_shadow(&self, tenant: &TenantId, name: &Name) -> ShadowMetrics {
        self.families.shadows.series(ShadowOwner::Function, tenant, name)
    }

    /// Returns the series of the copies of a model's inferences.
    pub fn model_shadow(&self, tenant: &TenantId, name: &Name) -> ShadowMetrics {
        self.families.shadows.series(ShadowOwner::Model, tenant, name)
    }

    /// Looks up the inference statistics of one version of a model or tensor function. Callers keep
    /// the handle.
    pub fn served(&self, tenant: &TenantId, name: &Name, version: Version) -> Served {
        self.families.served.series(tenant, name, version)
    }

    /// Returns the sizing metrics of one version of a model on a device.
    pub fn sizes(&self, model: &ModelId, device: &str) -> SizeMetrics {
        self.families.sizes.series(model, device)
    }

    /// Returns the hedging metrics of one step of a workflow.
    pub fn hedges(&self, workflow: &WorkflowId, step: &str) -> HedgeMetrics {
        self.families.hedges.series(workflow, step)
    }

    /// Encodes all series. With a tenant, omits the series of other tenants.
    pub fn encode(&self, of: Option<&TenantId>, format: TextFormat) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        if let Some(tenant) = of {
            text = shown_to(tenant, &text);
        }
        Ok(match format {
            TextFormat::Prometheus => plain::from_openmetrics(&text),
            TextFormat::OpenMetrics => text,
        })
    }
}

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus' text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

/// Removes the samples of tenants other than `tenant`. Names of tenants and functions contain no
/// quotes, so no name can look like the label of another tenant.
fn shown_to(tenant: &TenantId, text: &str) -> String {
    let own = format!("tenant=\"{tenant}\"");
    let is_shown = |line: &&str| line.starts_with('#') || !line.contains("tenant=\"") || line.contains(&own);
    text.split_inclusive('\n').filter(is_shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use weir_types::ErrorCode;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn tenant_sees_its_own_functions_and_the_node() {
        let metrics = Metrics::new();
        let _kept = ["acme", "acme2", "tenant"].map(|owner| {
            let function = metrics.function(&tenant(owner), &Name::new("secret").unwrap());
            function.ended(
                Some(ErrorCode::GuestTrap),
                StatusCode::BAD_GATEWAY,
                Duration::ZERO,
                Duration::ZERO,
            );
            function
        });
        let whole = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        let shown = metrics.encode(Some(&tenant("acme")), TextFormat::OpenMetrics).unwrap();
        for owner in ["acme2", "tenant"] {
            let label = format!("tenant=\"{owner}\"");
            assert!(whole.contains(&label) && !shown.contains(&label), "{owner}");
        }
        for line in [
            "weir_invocations_total{tenant=\"acme\",function=\"secret\",code=\"guest-trap\",status=\"502\"} 1",
            "weir_connections 0",
            "# EOF",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
        }
        assert_eq!(
            metrics
                .encode(Some(&tenant("other")), TextFormat::OpenMetrics)
                .unwrap()
                .matches("tenant=")
                .count(),
            0
        );
    }

    #[test]
    fn phase_times_are_one_metric_with_a_phase_label() {
        let metrics = Metrics::new();
        metrics.phase(Phase::ModelRun, Duration::from_secs(2));
        let text = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        for phase in Phase::ALL {
            let count = u8::from(phase == Phase::ModelRun);
            let line = format!("weir_phase_seconds_count{{phase=\"{}\"}} {count}", phase.as_str());
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        let sum = "weir_phase_seconds_sum{phase=\"model_run\"} 2.0";
        assert!(text.lines().any(|shown| shown == sum), "{sum} is not in\n{text}");
    }

    #[test]
    fn series_live_until_the_last_handle_is_dropped() {
        let metrics = Metrics::new();
        let tenant = tenant("acme");
        let name = Name::new("f").unwrap();
        let text = || metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        let count = || text().matches("tenant=\"acme\"").count();
        let deployed = metrics.function(&tenant, &name);
        let running = metrics.function(&tenant, &name);
        drop(deployed);
        running.ended(Some(ErrorCode::GuestTrap), StatusCode::BAD_GATEWAY, Duration::ZERO, Duration::ZERO);
        let again = metrics.function(&tenant, &name);
        drop(running);
        again.ended(Some(ErrorCode::GuestTrap), StatusCode::BAD_GATEWAY, Duration::ZERO, Duration::ZERO);
        let text = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        assert!(text.contains("code=\"guest-trap\",status=\"502\"} 2"), "{text}");
        drop(again);
        assert_eq!(count(), 0);
        let anew = metrics.function(&tenant, &name);
        anew.ended(None, StatusCode::OK, Duration::ZERO, Duration::ZERO);
        assert!(
            metrics.encode(None, TextFormat::OpenMetrics).unwrap().contains("code=\"ok\",status=\"200\"} 1")
        );
    }

    #[test]
    fn unregistered_statuses_of_a_function_share_a_series_per_class() {
        let metrics = Metrics::new();
        let function = metrics.function(&tenant("acme"), &Name::new("f").unwrap());
        for status in [200, 500, 599, 600, 999, 404, 418, 499, 431] {
            let status = StatusCode::from_u16(status).unwrap();
            function.ended(None, status, Duration::ZERO, Duration::ZERO);
        }
        let text = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        for (status, count) in
            [("200", 1), ("500", 1), ("5xx", 3), ("404", 1), ("418", 1), ("431", 1), ("4xx", 1)]
        {
            let sample = format!("function=\"f\",code=\"ok\",status=\"{status}\"}} {count}\n");
            assert!(text.contains(&sample), "{sample} is not in\n{text}");
        }
        drop(function);
        assert_eq!(metrics.encode(None, TextFormat::OpenMetrics).unwrap().matches("function=").count(), 0);
    }
}
