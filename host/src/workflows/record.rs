//! What the datastore holds about a version of a workflow.

use crate::registry::Record;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_types::{ContentHash, Cost, Version};
use weir_workflow::{Document, Pinned, Plan};

/// One version of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkflowRecord {
    pub(crate) version: Version,
    pub(crate) deployed_at_ms: u64,
    /// As it came.
    pub(crate) document: String,
    /// What calls are to keep to, by the document or by whoever deployed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slo_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost_slo: Option<Cost>,
    /// What each step ran when it was deployed, and runs.
    pub(crate) pinned: BTreeMap<String, Pinned>,
}

impl Record for WorkflowRecord {
    fn version(&self) -> Version {
        self.version
    }
}

impl WorkflowRecord {
    /// What to run; or why that cannot be told.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        let document = Document::parse(self.document.as_bytes()).map_err(|error| error.to_string())?;
        let pinned = |step: &str, _: &_| match self.pinned.get(step) {
            Some(pinned) => Ok(Some(pinned.clone())),
            None => Err("its record does not say what it runs".to_owned()),
        };
        Plan::new(&document, &pinned).map_err(|error| error.to_string())
    }

    /// Whether a deploy of `other` would change nothing.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        *self == Self { version: self.version, deployed_at_ms: self.deployed_at_ms, ..other.clone() }
    }

    /// What tells this version from every other that may come to have its number.
    pub(crate) fn digest(&self) -> ContentHash {
        // Plain values: writing them cannot fail.
        ContentHash::of(&serde_json::to_vec(&(&self.document, &self.pinned)).unwrap_or_default())
    }

    /// The author's words on it.
    pub(crate) fn description(&self) -> String {
        Document::parse(self.document.as_bytes()).map(|document| document.description).unwrap_or_default()
    }
}
