//! Deploys of workflow documents.

use crate::client::{Client, UploadReader};
use crate::output::OutputSettings;
use anyhow::Result;
use std::io::Cursor;
use weir_types::api::WorkflowDeployed;
use weir_types::{Cost, Name};

/// A workflow document with its name.
pub(crate) struct WorkflowUpload<'a> {
    pub(crate) name: &'a Name,
    /// Text of the document, in TOML or JSON.
    pub(crate) document: &'a str,
    /// Latency objective, instead of that of the document.
    pub(crate) slo_ms: Option<u64>,
    /// Cost objective, instead of that of the document.
    pub(crate) cost_slo: Option<Cost>,
    /// Validates the document without deploying it.
    pub(crate) dry_run: bool,
}

impl WorkflowUpload<'_> {
    /// Deploys the workflow.
    pub(crate) fn send(&self, client: &Client, output: OutputSettings) -> Result<WorkflowDeployed> {
        let Self { name, document, slo_ms, cost_slo, dry_run } = self;
        let mut path = format!("/v1/workflows/{name}?dry_run={dry_run}");
        path.extend(slo_ms.map(|slo_ms| format!("&slo_ms={slo_ms}")));
        path.extend(cost_slo.map(|cost_slo| format!("&cost_slo={cost_slo}")));
        let bytes = document.as_bytes().to_vec();
        let length = bytes.len() as u64;
        let mut upload = UploadReader::new(
            Box::new(Cursor::new(bytes)),
            length,
            output,
            &format!("sending {name}"),
            "checking it",
        );
        client.put(&path, &format!("deploy {name}"), &[], &mut upload)
    }
}
