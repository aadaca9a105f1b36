//! Metrics of TLS, of authentication and of the audit log.

use super::counter;
use super::tls::TlsMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Series of TLS, of authentication and of the audit log.
pub struct AccessMetrics {
    /// TLS: failed handshakes, and the certificate.
    pub tls: TlsMetrics,
    /// Requests without a token that the node knows.
    pub failed: Counter,
    /// Events of the audit log that were not written.
    pub audit_lost: Counter,
}

impl AccessMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let failed = "Requests without a token that the node knows";
        let lost = "Events of the audit log that were not written";
        Self {
            tls: TlsMetrics::register(registry),
            failed: counter(registry, "authentication_failures", failed),
            audit_lost: counter(registry, "audit_events_lost", lost),
        }
    }
}
