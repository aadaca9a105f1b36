//! Metrics of triggers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_types::TenantId;
use weir_types::api::TickOutcome;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TickLabels {
    tenant: String,
    outcome: &'static str,
}

/// Series of triggers. The node's configuration bounds the number of tenants.
pub struct TriggerMetrics {
    /// Triggers that are not paused, of all tenants.
    pub enabled: Gauge,
    ticks: Family<TickLabels, Counter>,
}

impl TriggerMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self { enabled: Gauge::default(), ticks: Family::default() };
        registry.register("triggers", "Triggers that are not paused, of all nodes", metrics.enabled.clone());
        let help = "Ticks of triggers that this node handled, by outcome";
        registry.register("trigger_ticks", help, metrics.ticks.clone());
        metrics
    }

    /// Counts ticks with this outcome.
    pub fn ticks(&self, tenant: &TenantId, outcome: TickOutcome, ticks: u64) {
        let labels = TickLabels { tenant: tenant.to_string(), outcome: outcome.as_str() };
        self.ticks.get_or_create(&labels).inc_by(ticks);
    }
}
