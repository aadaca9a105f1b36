//! Prometheus metrics of the node. Times are in seconds and sizes in bytes, by Prometheus
//! convention.
//!
//! Series of functions carry their tenant, and are shown to that tenant and the operator. All other
//! series belong to the node, and are shown to every client.

mod asynchronous;
mod devices;
mod functions;
mod gpus;
mod hedges;
mod intermediates;
mod objects;
mod response_cache;
mod served;
mod sizes;
mod triton;
mod usage;

pub(crate) use asynchronous::AsyncMetrics;
pub(crate) use functions::{FunctionMetrics, Retired};
pub(crate) use hedges::HedgeMetrics;
use objects::ObjectMetrics;
pub(crate) use served::{Demand, Served, Tally, Times};
pub(crate) use sizes::SizeMetrics;

use super::gpus::GpuMonitor;
use super::trace::Phase;
use super::usage::Meters;
use devices::DeviceMetrics;
use functions::Functions;
use hedges::AllHedges;
use intermediates::IntermediateMetrics;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use response_cache::ResponseCacheMetrics;
use served::AllServed;
use sizes::AllSizes;
use std::sync::Arc;
use std::time::Duration;
use weir_types::{ModelId, Name, TenantId, Version, WorkflowId};

/// All metrics of the node. Handles are cheap to clone and to update.
pub(crate) struct Metrics {
    registry: Registry,
    functions_counted: Functions,
    served: AllServed,
    sizes: AllSizes,
    hedges: AllHedges,
    /// Figures that GPUs report.
    pub(crate) gpus: GpuMonitor,
    /// Device usage of tenants.
    pub(crate) usage: Meters,
    phase_seconds: [Histogram; Phase::ALL.len()],
    cold_starts: Family<Cause, Counter>,
    guest_memory_bytes: Histogram,
    pub(crate) response_cache: ResponseCacheMetrics,
    /// Asynchronous invocations.
    pub(crate) asynchronous: AsyncMetrics,
    pub(crate) objects: ObjectMetrics,
    /// Tensors sent between nodes.
    pub(crate) intermediates: IntermediateMetrics,
    /// Components loaded ahead of their first call.
    pub(crate) preloaded: Counter,
    /// Invocations that another node of the cluster ran.
    pub(crate) passed_on: Counter,
    /// Invocations that a node rejected, or that were lost with a node.
    pub(crate) placed_again: Counter,
    /// Invocations running now.
    pub(crate) running: Gauge,
    /// Invocations waiting now.
    pub(crate) queued: Gauge,
    /// Idle instances, kept for another call.
    pub(crate) instances_idle: Gauge,
    /// Open connections.
    pub(crate) connections: Gauge,
    /// Functions deployed.
    pub(crate) functions: Gauge,
    /// Models pushed.
    pub(crate) models: Gauge,
    pub(crate) workflows: Gauge,
    /// Series by device.
    pub(crate) devices: DeviceMetrics,
    /// Memory of the bodies and tensors of requests in progress.
    pub(crate) arena_used_bytes: Gauge,
    /// Memory that the arena keeps for later bodies and tensors.
    pub(crate) arena_pooled_bytes: Gauge,
}

/// Cause of a cold start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ColdStart {
    /// The compiled component was not loaded.
    Component,
    /// The component also had to be compiled.
    Compile,
    /// A model was not in device memory.
    Model,
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

/// Histogram from 10 microseconds to about 40 seconds.
fn time_buckets() -> Histogram {
    Histogram::new(exponential_buckets(10e-6, 2.0, 23))
}

/// Histogram of powers of two, up to the largest batch that may be requested.
fn size_buckets() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 11))
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let mut all = Registry::default();
        let served = AllServed::register(&mut all);
        let gpus = GpuMonitor::default();
        all.register_collector(Box::new(gpus.clone()));
        let usage = Meters::default();
        all.register_collector(Box::new(usage.clone()));
        let registry = all.sub_registry_with_prefix("weir");
        let functions_counted = Functions::register(registry);
        let response_cache = ResponseCacheMetrics::register(registry);
        let sizes = AllSizes::register(registry);
        let hedges = AllHedges::register(registry);
        let asynchronous = AsyncMetrics::register(registry);
        let objects = ObjectMetrics::register(registry);
        let intermediates = IntermediateMetrics::register(registry);
        let devices = DeviceMetrics::register(registry);
        let cold_starts = Family::<Cause, Counter>::default();
        let phase_seconds: [Histogram; Phase::ALL.len()] = std::array::from_fn(|_| time_buckets());
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
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let preloaded =
            counter("components_preloaded", "Components that were loaded before they were called");
        let passed_on = counter("invocations_passed_on", "Invocations that another node of the cluster ran");
        let placed_again =
            counter("invocations_placed_again", "Invocations that a node did not take, or was lost with");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let running = gauge("invocations_running", "Invocations running now");
        let queued = gauge("invocations_queued", "Invocations waiting now");
        let instances_idle =
            gauge("instances_idle", "Instances that wait for another call of their function");
        let connections = gauge("connections", "Open connections");
        let functions = gauge("functions", "Functions deployed");
        let models = gauge("models", "Models pushed");
        let workflows = gauge("workflows", "Workflows deployed");
        let arena_used_bytes =
            gauge("arena_used_bytes", "Memory that bodies and tensors of requests under way take");
        let arena_pooled_bytes = gauge("arena_pooled_bytes", "Memory kept for the next bodies and tensors");
        Arc::new(Self {
            registry: all,
            functions_counted,
            served,
            sizes,
            hedges,
            gpus,
            usage,
            phase_seconds,
            cold_starts,
            guest_memory_bytes,
            response_cache,
            asynchronous,
            objects,
            intermediates,
            preloaded,
            passed_on,
            placed_again,
            running,
            queued,
            instances_idle,
            connections,
            functions,
            models,
            workflows,
            devices,
            arena_used_bytes,
            arena_pooled_bytes,
        })
    }

    pub(crate) fn phase(&self, phase: Phase, time: Duration) {
        self.phase_seconds[phase as usize].observe(time.as_secs_f64());
    }

    /// Records the memory of a guest at its end.
    #[expect(clippy::cast_precision_loss, reason = "histogram buckets are coarser than the rounding")]
    pub(crate) fn guest_memory(&self, bytes: usize) {
        self.guest_memory_bytes.observe(bytes as f64);
    }

    pub(crate) fn cold_start(&self, cause: ColdStart) {
        self.cold_starts.get_or_create(&Cause { cause }).inc();
    }

    /// Counts a model that was placed on this device but ran on another.
    pub(crate) fn instead(&self, device: &str) {
        self.devices.instead(device);
    }

    /// Looks up the metrics of one function. Callers keep the handle.
    pub(crate) fn function(&self, tenant: &TenantId, name: &Name) -> FunctionMetrics {
        self.functions_counted.of(tenant, name)
    }

    /// Looks up the inference statistics of one version of a model or tensor function. Callers keep
    /// the handle.
    pub(crate) fn served(&self, tenant: &TenantId, name: &Name, version: Version) -> Served {
        self.served.of(tenant, name, version)
    }

    /// Returns the sizing metrics of one version of a model on a device.
    pub(crate) fn sizes(&self, model: &ModelId, device: &str) -> SizeMetrics {
        self.sizes.of(model, device)
    }

    /// Returns the hedging metrics of one step of a workflow.
    pub(crate) fn hedges(&self, workflow: &WorkflowId, step: &str) -> HedgeMetrics {
        self.hedges.of(workflow, step)
    }

    /// Encodes all series in the OpenMetrics text format. With a tenant, omits the series of other
    /// tenants.
    pub(crate) fn encode(&self, of: Option<&TenantId>) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(match of {
            Some(tenant) => shown_to(tenant, &text),
            None => text,
        })
    }
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
    use weir_types::ErrorCode;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn tenant_sees_its_own_functions_and_the_node() {
        let metrics = Metrics::new();
        let _kept = ["acme", "acme2", "tenant"].map(|owner| {
            let function = metrics.function(&tenant(owner), &Name::new("secret").unwrap());
            function.ended(Some(ErrorCode::GuestTrap), Duration::ZERO, Duration::ZERO);
            function
        });
        let whole = metrics.encode(None).unwrap();
        let shown = metrics.encode(Some(&tenant("acme"))).unwrap();
        for owner in ["acme2", "tenant"] {
            let label = format!("tenant=\"{owner}\"");
            assert!(whole.contains(&label) && !shown.contains(&label), "{owner}");
        }
        for line in [
            "weir_invocations_total{tenant=\"acme\",function=\"secret\",code=\"guest-trap\"} 1",
            "weir_connections 0",
            "# EOF",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
        }
        assert_eq!(metrics.encode(Some(&tenant("other"))).unwrap().matches("tenant=").count(), 0);
    }

    #[test]
    fn series_live_until_the_last_handle_is_dropped() {
        let metrics = Metrics::new();
        let (tenant, name) = (tenant("acme"), Name::new("f").unwrap());
        let count = || metrics.encode(None).unwrap().matches("tenant=\"acme\"").count();
        let (deployed, running) = (metrics.function(&tenant, &name), metrics.function(&tenant, &name));
        drop(deployed);
        running.ended(Some(ErrorCode::GuestTrap), Duration::ZERO, Duration::ZERO);
        let again = metrics.function(&tenant, &name);
        drop(running);
        again.ended(Some(ErrorCode::GuestTrap), Duration::ZERO, Duration::ZERO);
        let text = metrics.encode(None).unwrap();
        assert!(text.contains("code=\"guest-trap\"} 2"), "{text}");
        drop(again);
        assert_eq!(count(), 0);
        let anew = metrics.function(&tenant, &name);
        anew.ended(None, Duration::ZERO, Duration::ZERO);
        assert!(metrics.encode(None).unwrap().contains("code=\"ok\"} 1"));
    }
}
