//! Metrics of TLS, of authentication and of the audit log.

use super::counter;
use super::tls::TlsMetrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use weir_types::TenantId;

/// A quota of a tenant that refuses requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaKind {
    /// Requests per second.
    Rate,
    /// Requests in progress.
    Running,
    /// Live instances of functions.
    Instances,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QuotaLabels {
    tenant: String,
    quota: &'static str,
}

/// Series of TLS, of authentication and of the audit log.
pub struct AccessMetrics {
    /// TLS: failed handshakes, and the certificate.
    pub tls: TlsMetrics,
    /// Requests without a token that the node knows.
    pub failed: Counter,
    /// Events of the audit log that were not written.
    pub audit_lost: Counter,
    /// Requests over a quota. The node's configuration bounds the number of tenants.
    over_quota: Family<QuotaLabels, Counter>,
}

impl AccessMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let failed = "Requests without a valid token";
        let lost = "Events of the audit log that were not written";
        let over_quota = Family::default();
        let help = "Requests that were refused because their tenant was over a quota";
        registry.register("requests_over_quota", help, over_quota.clone());
        Self {
            tls: TlsMetrics::register(registry),
            failed: counter(registry, "authentication_failures", failed),
            audit_lost: counter(registry, "audit_events_lost", lost),
            over_quota,
        }
    }

    /// Counts a request that its tenant's quota refused.
    pub fn over_quota(&self, tenant: &TenantId, kind: QuotaKind) {
        let quota = match kind {
            QuotaKind::Rate => "requests_per_s",
            QuotaKind::Running => "requests_running_max",
            QuotaKind::Instances => "instances_max",
        };
        self.over_quota.get_or_create(&QuotaLabels { tenant: tenant.to_string(), quota }).inc();
    }
}
