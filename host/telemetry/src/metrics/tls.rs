//! Metrics of TLS.

use super::gauge;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write as _};

/// The reason why a TLS handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandshakeFailure {
    /// The address of the client had too many handshakes.
    Limit,
    /// The handshake took too long.
    Timeout,
    /// The client does not speak TLS.
    Plain,
    /// The client closed the connection, or does not accept the certificate or the protocol.
    Protocol,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    reason: HandshakeFailure,
}

/// Series of TLS.
pub struct TlsMetrics {
    failed: Family<Failed, Counter>,
    /// End of the certificate's validity, in seconds since 1970; 0 without TLS.
    pub certificate_expiry: Gauge,
}

impl HandshakeFailure {
    /// The failure's name in the metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Plain => "plain",
            Self::Protocol => "protocol",
        }
    }
}

impl EncodeLabelValue for HandshakeFailure {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(self.as_str())
    }
}

impl TlsMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let failed = Family::default();
        let help = "Failed TLS handshakes, by reason";
        registry.register("tls_handshakes_failed", help, failed.clone());
        let help = "End of the validity of the certificate for clients, in seconds since 1970; 0 without TLS";
        Self { failed, certificate_expiry: gauge(registry, "tls_certificate_expiry_seconds", help) }
    }

    /// Counts a failed handshake.
    pub fn failed(&self, reason: HandshakeFailure) {
        self.failed.get_or_create(&Failed { reason }).inc();
    }
}
