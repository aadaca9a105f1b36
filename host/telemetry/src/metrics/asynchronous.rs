//! Metrics of asynchronous invocations, by tenant.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_types::TenantId;
use weir_types::api::{CallbackStatus, InvocationStatus};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AsynchronousLabels {
    tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    tenant: String,
    outcome: &'static str,
}

/// Series of asynchronous invocations. The node's configuration bounds the number of tenants.
pub struct AsyncMetrics {
    accepted: Family<AsynchronousLabels, Counter>,
    attempts: Family<AsynchronousLabels, Counter>,
    ended: Family<AttemptLabels, Counter>,
    callbacks: Family<AttemptLabels, Counter>,
    /// Unfinished invocations, on all nodes.
    pub queued: Gauge,
    running: Gauge,
}

impl AsyncMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            accepted: Family::default(),
            attempts: Family::default(),
            ended: Family::default(),
            callbacks: Family::default(),
            queued: Gauge::default(),
            running: Gauge::default(),
        };
        let Self { accepted, attempts, ended, callbacks, queued, running } = &metrics;
        registry.register(
            "async_accepted",
            "Asynchronous invocations accepted by this node",
            accepted.clone(),
        );
        registry.register(
            "async_attempts",
            "Attempts of asynchronous invocations started by this node",
            attempts.clone(),
        );
        registry.register(
            "async_ended",
            "Asynchronous invocations that ended on this node, by outcome",
            ended.clone(),
        );
        registry.register(
            "async_callbacks",
            "Callbacks that this node delivered or gave up, by outcome",
            callbacks.clone(),
        );
        let help = "Asynchronous invocations that have not ended or not called back, of all nodes";
        registry.register("async_queued", help, queued.clone());
        let help = "Asynchronous invocations and callbacks that this node works on";
        registry.register("async_running", help, running.clone());
        metrics
    }

    pub fn accepted(&self, tenant: &TenantId) {
        self.accepted.get_or_create(&AsynchronousLabels { tenant: tenant.to_string() }).inc();
    }

    pub fn attempt(&self, tenant: &TenantId) {
        self.attempts.get_or_create(&AsynchronousLabels { tenant: tenant.to_string() }).inc();
    }

    pub fn ended(&self, tenant: &TenantId, status: InvocationStatus) {
        let ended = AttemptLabels { tenant: tenant.to_string(), outcome: status.as_str() };
        self.ended.get_or_create(&ended).inc();
    }

    pub fn called_back(&self, tenant: &TenantId, status: CallbackStatus) {
        let outcome = if status == CallbackStatus::Delivered { "delivered" } else { "failed" };
        self.callbacks.get_or_create(&AttemptLabels { tenant: tenant.to_string(), outcome }).inc();
    }

    /// Sets the number of unfinished invocations, and of those that this node works on.
    pub fn queue(&self, queued: usize, running: usize) {
        self.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
    }
}
