//! Canaries: new versions that get a share of the calls of a function or of the runs of a model.

use crate::{NodeId, Version};
use serde::{Deserialize, Serialize};

/// A version that gets a share of the calls, while the active version gets the others. Part of
/// [`Function`](super::Function) and [`Model`](super::Model).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Canary {
    /// The new version.
    pub version: Version,
    /// Its share of the calls, from [`PERCENT_MIN`](Self::PERCENT_MIN) to
    /// [`PERCENT_MAX`](Self::PERCENT_MAX).
    pub percent: u8,
    /// Time from which it has had this share.
    pub started_at_ms: u64,
    /// Time after its start at which the node promotes it, unless it is worse than the active
    /// version; `None`: only a request promotes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote_after_ms: Option<u64>,
}

impl Canary {
    /// The smallest share of the calls.
    pub const PERCENT_MIN: u8 = 1;
    /// The largest share of the calls.
    pub const PERCENT_MAX: u8 = 99;
    /// The longest time after which a canary is promoted: 30 days.
    pub const PROMOTE_AFTER_MS_MAX: u64 = 30 * 24 * 3_600_000;
}

/// A canary beside the active version. Response of `GET /v1/functions/{name}/canary`
/// and `GET /v1/models/{name}/canary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CanaryReport {
    /// The canary.
    #[serde(flatten)]
    pub canary: Canary,
    /// The active version.
    pub active: Version,
    /// Calls of the canary since its start.
    pub canary_calls: VersionCalls,
    /// Calls of the active version in the same time.
    pub active_calls: VersionCalls,
    /// The unmet condition of the promotion, such as the rest of the time or missing calls. `None` if
    /// the node does not promote the canary automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Nodes of the cluster that did not answer; their calls are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<NodeId>,
}

/// Calls of a version of a function, or runs of a version of a model. Part of [`CanaryReport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct VersionCalls {
    /// Calls that ended, except those that failed by the fault of their client.
    pub calls: u64,
    /// Calls that failed: with an HTTP status of 500 or above, or because a queue was full.
    pub failed: u64,
    /// Run time that 95 % of the successful calls kept to; `None` before the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
}
