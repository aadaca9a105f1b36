//! The outcomes of forwarded calls: the node that ran a call keeps its outcome, and the node that
//! received the call asks for it. `GET /cluster/v1/outcomes/{invocation}`, only for nodes that show
//! the cluster's secret.

use super::Cluster;
use crate::placement::Placements;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use std::time::Duration;
use weir_call::Fault;
use weir_scheduler::InvocationOutcome;
use weir_types::{ErrorCode, InvocationId, NodeId};

/// The path of the API.
pub const OUTCOMES_PATH: &str = "/cluster/v1/outcomes/";

/// The time limit for another node's response: an explanation without an outcome is better than a
/// late one.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The size limit of another node's response.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Responds to a node that has shown the cluster's secret.
pub fn answer_outcome(placements: &Placements, method: &Method, path: &str) -> Result<Response, Fault> {
    if *method != Method::GET {
        return Err(Fault::new(ErrorCode::MethodNotAllowed, "an outcome is read (GET)"));
    }
    let invocation = path.strip_prefix(OUTCOMES_PATH).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let Some(invocation) = invocation else {
        return Err(Fault::new(ErrorCode::InvalidRequest, format!("{path} names no invocation")));
    };
    Ok(match placements.outcome(InvocationId(invocation)) {
        Some(outcome) => Json(outcome).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

impl Cluster {
    /// The outcome of a call that ran on `node`; `None` if the call has not ended, or the node does
    /// not know or does not respond.
    pub async fn outcome(&self, node: NodeId, invocation: InvocationId) -> Option<InvocationOutcome> {
        let target = format!("{OUTCOMES_PATH}{:x}", invocation.0);
        let asked = async {
            let response = self.ask(node, Method::GET, &target).await.ok()?;
            let is_kept = response.status().is_success();
            let body = axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.ok()?;
            is_kept.then(|| serde_json::from_slice(&body).ok())?
        };
        tokio::time::timeout(ANSWER_MAX, asked).await.ok()?
    }
}
