//! Metrics of answers on their way to clients.

use super::gauge;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_types::TenantId;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cut {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    scope: &'static str,
}

/// Why the node cut off an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutCause {
    /// The client took nothing, or less than the lowest rate.
    Stalled,
    /// The function that wrote the answer exceeded its limit of time.
    Overrun,
}

/// The limit that refused a request or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerScope {
    /// Answers of one connection.
    Connection,
    /// Answers of one tenant.
    Tenant,
    /// Answers of the node.
    Node,
}

impl AnswerScope {
    fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Tenant => "tenant",
            Self::Node => "node",
        }
    }
}

/// Series of answers. The node's configuration bounds the number of tenants.
pub struct AnswerMetrics {
    /// Memory of answers that clients have not taken yet.
    pub bytes: Gauge,
    tenant_bytes: Family<AnswerLabels, Gauge>,
    cut: Family<Cut, Counter>,
    refused: Family<RefusedLabels, Counter>,
}

impl AnswerMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let bytes = gauge(registry, "answer_bytes", "Memory of answers that clients have not taken yet");
        let tenant_bytes = Family::default();
        let help = "Memory of a tenant's answers that clients have not taken yet";
        registry.register("tenant_answer_bytes", help, tenant_bytes.clone());
        let cut = Family::default();
        registry.register("answers_cut", "Answers that the node cut off, by cause", cut.clone());
        let refused = Family::default();
        let help = "Requests refused because too many bytes of answers waited, by the scope of the limit";
        registry.register("answers_refused", help, refused.clone());
        Self { bytes, tenant_bytes, cut, refused }
    }

    /// Looks up the gauge of a tenant. Callers keep the handle.
    pub fn tenant_bytes(&self, tenant: &TenantId) -> Gauge {
        self.tenant_bytes.get_or_create(&AnswerLabels { tenant: tenant.to_string() }).clone()
    }

    /// Counts an answer that was cut off.
    pub fn cut(&self, cause: CutCause) {
        let cause = match cause {
            CutCause::Stalled => "stalled",
            CutCause::Overrun => "overrun",
        };
        self.cut.get_or_create(&Cut { cause }).inc();
    }

    /// Counts a request that was refused.
    pub fn refused(&self, scope: AnswerScope) {
        self.refused.get_or_create(&RefusedLabels { scope: scope.as_str() }).inc();
    }
}
