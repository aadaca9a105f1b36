//! Shadows: versions that get copies of the calls of a function, or of the inferences of a model.

use super::VersionCalls;
use crate::{NodeId, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A version that gets copies of calls of the active version. Its answers are discarded. Part of
/// [`Function`](super::Function) and [`Model`](super::Model).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shadow {
    /// The version that gets the copies.
    pub version: Version,
    /// Percentage of the active version's calls that are copied, from
    /// [`PERCENT_MIN`](Self::PERCENT_MIN) to [`PERCENT_MAX`](Self::PERCENT_MAX).
    pub percent: u8,
    /// Time from which it has had this percentage.
    pub started_at_ms: u64,
}

impl Shadow {
    /// The smallest percentage of copied calls.
    pub const PERCENT_MIN: u8 = 1;
    /// The largest percentage of copied calls.
    pub const PERCENT_MAX: u8 = 100;
}

/// A shadow beside the active version. Response of `GET /v1/functions/{name}/shadow` and
/// `GET /v1/models/{name}/shadow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// The shadow.
    #[serde(flatten)]
    pub shadow: Shadow,
    /// The active version.
    pub active: Version,
    /// The copies that the shadow ran.
    pub shadow_calls: ComparedCalls,
    /// The calls of the active version that were copied.
    pub active_calls: ComparedCalls,
    /// Copies with an equal result: the status of a function, or the outputs of a model.
    pub equal: u64,
    /// Copies with another result.
    pub different: u64,
    /// Chosen calls without a copy, by reason: `body`, `limit`, `no-room` or `no-answer`.
    pub skipped: BTreeMap<String, u64>,
    /// Nodes of the cluster that did not answer; their copies are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<NodeId>,
}

/// Calls of one of the two versions that are compared. Part of [`ShadowReport`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparedCalls {
    /// The calls, with their failures and run times.
    #[serde(flatten)]
    pub calls: VersionCalls,
    /// Run time that half of the successful calls kept to; `None` before the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// Calls by the class of their status, such as `2xx`.
    pub statuses: BTreeMap<String, u64>,
}
