//! Metrics of the node's process: connections, instances and memory.

use super::{counter, gauge};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Series of the process.
pub struct ProcessMetrics {
    /// Idle instances, kept for another call.
    pub instances_idle: Gauge,
    /// Open connections.
    pub connections: Gauge,
    /// Connections closed because their address had too many.
    pub connections_refused: Counter,
    /// Memory of the bodies and tensors of requests in progress.
    pub arena_used_bytes: Gauge,
    /// Memory that the arena keeps for later bodies and tensors.
    pub arena_pooled_bytes: Gauge,
}

impl ProcessMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let idle = "Idle instances that wait for another call of their function";
        let refused = "Connections closed because their remote address had too many";
        let used = "Memory used by bodies and tensors of requests in progress";
        let pooled = "Memory kept for the next bodies and tensors";
        Self {
            instances_idle: gauge(registry, "instances_idle", idle),
            connections: gauge(registry, "connections", "Open connections"),
            connections_refused: counter(registry, "connections_refused", refused),
            arena_used_bytes: gauge(registry, "arena_used_bytes", used),
            arena_pooled_bytes: gauge(registry, "arena_pooled_bytes", pooled),
        }
    }
}
