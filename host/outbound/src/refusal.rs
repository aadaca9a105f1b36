//! Refused requests: the reason, and the setting that would permit the request.

use crate::class::AddressClass;
use wasmtime_wasi_http::Error;

/// A destination that a tenant may not reach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OutboundRefusal {
    /// The kind of rule that refused.
    pub reason: RefusalReason,
    /// Explanation: the refused destination, the rule, and the setting that permits the
    /// destination. Addresses that a lookup returned are left out.
    pub text: String,
}

/// Kind of rule that refused a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The manifest, or `async.callback_hosts`, does not grant the host.
    NotGranted,
    /// A listener of the node, or a store of its cluster.
    NodeEndpoint,
    /// A rule in `outbound.deny`, of the node or of the tenant.
    DenyRule,
    /// Outside of the tenant's `only`.
    TenantCeiling,
    /// An address of this class, which no rule allows.
    Address(&'static str),
}

impl RefusalReason {
    pub(crate) fn class(class: AddressClass) -> Self {
        Self::Address(class.as_str())
    }

    /// The label of the metric.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotGranted => "not-granted",
            Self::NodeEndpoint => "node-endpoint",
            Self::DenyRule => "deny-rule",
            Self::TenantCeiling => "tenant-ceiling",
            Self::Address(class) => class,
        }
    }
}

/// A request that was not sent, or whose response did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The tenant may not reach the destination.
    #[error(transparent)]
    Refused(#[from] OutboundRefusal),
    /// The lookup, the connection or the exchange failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// The error that a guest receives.
impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Refused(OutboundRefusal { reason: RefusalReason::NotGranted, .. }) => {
                Self::HttpRequestDenied
            }
            SendError::Refused(_) => Self::DestinationIpProhibited,
            SendError::Failed(error) => error,
        }
    }
}
