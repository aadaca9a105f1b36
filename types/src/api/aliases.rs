//! Aliases: other names of versions of a function, model or workflow.

use crate::{Alias, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version that an alias names. Response of `PUT /v1/models/{name}/aliases/{alias}`, and of the
/// same routes of functions and workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasTarget {
    /// The version.
    pub version: Version,
    /// The version that the alias named before, to roll back to. It may be removed by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Version>,
    /// Time of the last change.
    pub changed_at_ms: u64,
}

/// The aliases of a function, model or workflow that were set. Until they are set, `stable` names the
/// active version and `canary` the canary.
pub type Aliases = BTreeMap<Alias, AliasTarget>;

/// Body of `PUT /v1/models/{name}/aliases/{alias}`, and of the same routes of functions and
/// workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AliasRequest {
    /// The version to name.
    pub version: Version,
}
