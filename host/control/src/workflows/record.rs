//! The datastore's record of a version of a workflow.

use crate::registry::VersionRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_call::Objective;
use weir_types::{ContentHash, Cost, Version};
use weir_workflow::{Document, Pinned, Plan};

/// One version of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowRecord {
    /// The number of the version.
    pub version: Version,
    /// The time of the deployment, in milliseconds since the Unix epoch.
    pub deployed_at_ms: u64,
    /// The document as uploaded.
    pub document: String,
    /// The objective of calls, set by the document or by the deployment request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// The cost objective of calls, set by the document or by the deployment request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// The target of each step, pinned at deployment.
    pub pinned: BTreeMap<String, Pinned>,
}

impl VersionRecord for WorkflowRecord {
    fn version(&self) -> Version {
        self.version
    }
}

impl From<&WorkflowRecord> for Objective {
    fn from(record: &WorkflowRecord) -> Self {
        Self::new(record.slo_ms, record.cost_slo)
    }
}

impl WorkflowRecord {
    /// The plan, or the reason why there is none.
    pub fn plan(&self) -> Result<Plan, String> {
        let document = Document::parse(self.document.as_bytes()).map_err(|error| error.to_string())?;
        let pinned = |step: &str, _: &_| match self.pinned.get(step) {
            Some(pinned) => Ok(Some(pinned.clone())),
            None => Err("its record does not contain the targets of its steps".to_owned()),
        };
        Plan::new(&document, &pinned).map_err(|error| error.to_string())
    }

    /// Whether a deployment of `other` would change nothing.
    pub fn is_same_as(&self, other: &Self) -> bool {
        *self == Self { version: self.version, deployed_at_ms: self.deployed_at_ms, ..other.clone() }
    }

    /// Distinguishes this version from any other that may get the same number later.
    pub fn digest(&self) -> ContentHash {
        // Plain values: serialising them cannot fail.
        ContentHash::from_content(&serde_json::to_vec(&(&self.document, &self.pinned)).unwrap_or_default())
    }

    /// The author's description.
    pub fn description(&self) -> String {
        Document::parse(self.document.as_bytes()).map(|document| document.description).unwrap_or_default()
    }
}
