//! `/v1/placements/{request_id}`: why a call ran where it did.

use super::error::ApiError;
use super::{Caller, NodeState};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use http::HeaderValue;
use moka::sync::Cache;
use serde::Serialize;
use std::sync::Arc;
use weir_scheduler::{EstimateRatio, InvocationOutcome, PlacementRecord};
use weir_types::{ErrorCode, InvocationId, TenantId};

/// Number of remembered request ids that clients chose.
const GIVEN_IDS_MAX: u64 = 10_000;

/// The invocations of request ids that clients chose; other request ids are invocation ids.
#[derive(Debug, Clone)]
pub struct GivenIds(Cache<(TenantId, Arc<str>), InvocationId>);

impl Default for GivenIds {
    fn default() -> Self {
        Self(Cache::new(GIVEN_IDS_MAX))
    }
}

impl GivenIds {
    /// Remembers the invocation of a request id; the latest one counts.
    pub(crate) fn note(&self, tenant: &TenantId, request_id: Arc<str>, invocation: InvocationId) {
        self.0.insert((tenant.clone(), request_id), invocation);
    }

    fn find(&self, tenant: &TenantId, request_id: &str) -> Option<InvocationId> {
        let given = self.0.get(&(tenant.clone(), request_id.into()));
        given.or_else(|| {
            (request_id.len() == 16).then(|| u64::from_str_radix(request_id, 16).ok())?.map(InvocationId)
        })
    }
}

/// A placement with the comparison of its estimate with the outcome.
#[derive(Debug, Serialize)]
pub(super) struct Explained {
    request_id: String,
    #[serde(flatten)]
    placement: PlacementRecord,
    /// Estimated over actual times, once the call has ended.
    ratio: Option<EstimateRatio>,
}

/// `GET /v1/placements/{request_id}`.
pub(super) async fn show(
    State(node): State<Arc<NodeState>>,
    Extension(Caller { tenant, .. }): Extension<Caller>,
    Path(request_id): Path<String>,
) -> Result<Json<Explained>, ApiError> {
    let invocation = node.tracking.given_ids.find(&tenant, &request_id);
    let placement = invocation.and_then(|id| node.dispatch.placements.explanation(&tenant, id));
    let mut placement = placement.ok_or_else(|| {
        let text = format!(
            "no placement of request {request_id} is kept here: ask the node that received the call, which keeps the latest placements of each tenant; calls without models are not placed by the scheduler"
        );
        ApiError::new(ErrorCode::InvocationNotFound, text)
    })?;
    if placement.outcome.is_none() {
        placement.outcome = outcome_elsewhere(&node, &placement).await;
    }
    let ratio = placement.outcome.map(|outcome| placement.why.compare(&outcome));
    Ok(Json(Explained { request_id, placement, ratio }))
}

/// The outcome of a call that another node ran, from that node. If that node did not take the call,
/// it may have run here after all.
async fn outcome_elsewhere(node: &NodeState, placement: &PlacementRecord) -> Option<InvocationOutcome> {
    let placements = &node.dispatch.placements;
    let ran_on = placement.node.filter(|ran_on| *ran_on != placements.node())?;
    if let Some(outcome) = placements.outcome(placement.invocation) {
        return Some(outcome);
    }
    node.cluster.as_ref()?.outcome(ran_on, placement.invocation).await
}

/// The placement of a call as a header of its response: the estimate, without an outcome.
pub(super) fn header(node: &NodeState, tenant: &TenantId, invocation: InvocationId) -> Option<HeaderValue> {
    let placement = node.dispatch.placements.explanation(tenant, invocation)?;
    HeaderValue::from_str(&serde_json::to_string(&placement).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_of_clients_and_of_the_node_lead_to_invocations() {
        let (ids, tenant, other) =
            (GivenIds::default(), TenantId::default(), TenantId::new("other").unwrap());
        ids.note(&tenant, "mine".into(), InvocationId(7));
        assert_eq!(ids.find(&tenant, "mine"), Some(InvocationId(7)));
        assert_eq!(ids.find(&other, "mine"), None);
        let digits = InvocationId(0xab).digits();
        assert_eq!(ids.find(&tenant, std::str::from_utf8(&digits).unwrap()), Some(InvocationId(0xab)));
        assert_eq!(ids.find(&tenant, "ab"), None);
    }
}
