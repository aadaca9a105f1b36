//! Metrics of the node's process: connections, instances and memory.

use super::websockets::WebSocketMetrics;
use super::{counter, gauge};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_types::TenantId;

/// Series of the process.
pub struct ProcessMetrics {
    /// Idle instances, kept for another call.
    pub instances_idle: Gauge,
    instance_waits: Family<ScopeLabels, Counter>,
    /// Open connections.
    pub connections: Gauge,
    /// Connections closed because their address had too many.
    pub connections_refused: Counter,
    /// Memory of the bodies and tensors of requests in progress.
    pub arena_used_bytes: Gauge,
    /// Memory that the arena keeps for later bodies and tensors.
    pub arena_pooled_bytes: Gauge,
    tenant_arena_bytes: Family<TenantLabels, Gauge>,
    /// Linear memory of guests.
    pub guest_memory: GuestMemoryMetrics,
    /// WebSockets.
    pub websockets: WebSocketMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabels {
    tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabels {
    scope: &'static str,
}

/// The instances of functions that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceScope {
    /// Instances of one tenant.
    Tenant,
    /// Instances of the node.
    Node,
}

impl From<InstanceScope> for ScopeLabels {
    fn from(scope: InstanceScope) -> Self {
        let scope = match scope {
            InstanceScope::Tenant => "tenant",
            InstanceScope::Node => "node",
        };
        Self { scope }
    }
}

/// Series of the linear memory of guests. The node's configuration bounds the number of
/// tenants.
pub struct GuestMemoryMetrics {
    /// Linear memory of all instances.
    pub bytes: Gauge,
    tenant_bytes: Family<TenantLabels, Gauge>,
    refused: Family<ScopeLabels, Counter>,
}

impl GuestMemoryMetrics {
    fn register(registry: &mut Registry) -> Self {
        let bytes = gauge(registry, "instances_memory_bytes", "Linear memory of all instances");
        let tenant_bytes = Family::default();
        let help = "Linear memory of the instances of a tenant's functions";
        registry.register("tenant_instances_memory_bytes", help, tenant_bytes.clone());
        let refused = Family::default();
        let help = "Calls that failed because guests together had too much memory, by the scope of the limit";
        registry.register("instances_memory_refused", help, refused.clone());
        Self { bytes, tenant_bytes, refused }
    }

    /// Looks up the gauge of a tenant. Callers keep the handle.
    pub fn tenant_bytes(&self, tenant: &TenantId) -> Gauge {
        self.tenant_bytes.get_or_create(&TenantLabels { tenant: tenant.to_string() }).clone()
    }

    /// Counts a call that failed.
    pub fn refused(&self, scope: InstanceScope) {
        self.refused.get_or_create(&scope.into()).inc();
    }
}

impl ProcessMetrics {
    /// Sets the memory that bodies and tensors of a tenant use.
    pub fn set_tenant_arena_bytes(&self, tenant: &TenantId, bytes: u64) {
        let gauge = self.tenant_arena_bytes.get_or_create(&TenantLabels { tenant: tenant.to_string() });
        gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a call that waits for an instance permit.
    pub fn instance_waited(&self, scope: InstanceScope) {
        self.instance_waits.get_or_create(&scope.into()).inc();
    }

    pub(super) fn register(registry: &mut Registry) -> Self {
        let idle = "Idle instances that wait for another call of their function";
        let refused = "Connections closed because their remote address had too many";
        let used = "Memory used by bodies and tensors of requests in progress";
        let pooled = "Memory kept for the next bodies and tensors";
        let instance_waits = Family::default();
        let waits = "Calls that waited for an instance permit, by the scope of the limit";
        registry.register("instance_waits", waits, instance_waits.clone());
        let tenant_arena_bytes = Family::default();
        let help = "Memory used by bodies and tensors of a tenant's requests in progress";
        registry.register("tenant_arena_used_bytes", help, tenant_arena_bytes.clone());
        Self {
            instances_idle: gauge(registry, "instances_idle", idle),
            instance_waits,
            connections: gauge(registry, "connections", "Open connections"),
            connections_refused: counter(registry, "connections_refused", refused),
            arena_used_bytes: gauge(registry, "arena_used_bytes", used),
            arena_pooled_bytes: gauge(registry, "arena_pooled_bytes", pooled),
            tenant_arena_bytes,
            guest_memory: GuestMemoryMetrics::register(registry),
            websockets: WebSocketMetrics::register(registry),
        }
    }
}
