//! Metrics of outbound requests.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use weir_types::TenantId;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutboundLabels {
    tenant: String,
    reason: &'static str,
}

/// Series of outbound requests. The node's configuration bounds the number of tenants.
pub struct OutboundMetrics {
    refused: Family<OutboundLabels, Counter>,
}

impl OutboundMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let refused = Family::default();
        let help = "Refused outbound requests of guests and callbacks, by reason";
        registry.register("outbound_refused", help, refused.clone());
        Self { refused }
    }

    /// Counts a refused request.
    pub fn refused(&self, tenant: &TenantId, reason: &'static str) {
        self.refused.get_or_create(&OutboundLabels { tenant: tenant.to_string(), reason }).inc();
    }
}
