//! `/v1/calls`: recent calls of the tenant on this node, and their timelines.

use super::Caller;
use super::error::ApiError;
use crate::state::NodeExtractor;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use weir_types::ErrorCode;
use weir_types::api::{CallKind, CallTimeline, RecentCall, RecentCallPage};

/// Calls listed by default, and at most.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 500;

/// Query of `GET /v1/calls`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CallQuery {
    kind: Option<CallKind>,
    name: Option<String>,
    outcome: Option<CallOutcome>,
    limit: Option<usize>,
}

/// Outcome of a call, as a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CallOutcome {
    Ok,
    Failed,
}

impl CallQuery {
    fn selects(&self, call: &RecentCall) -> bool {
        self.kind.is_none_or(|kind| kind == call.kind)
            && self.name.as_deref().is_none_or(|name| name == call.name.as_str())
            && self.outcome.is_none_or(|outcome| (outcome == CallOutcome::Failed) == call.is_failed())
    }
}

/// `GET /v1/calls`.
pub(super) async fn list(
    State(node): NodeExtractor,
    Extension(Caller { tenant, .. }): Extension<Caller>,
    query: Result<Query<CallQuery>, QueryRejection>,
) -> Result<Json<RecentCallPage>, ApiError> {
    let Query(query) = query.map_err(|error| {
        let text =
            format!("{error}; takes kind=function|model|workflow, name=NAME, outcome=ok|failed and limit=N");
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    let limit = query.limit.unwrap_or(LIMIT);
    if limit > LIMIT_MAX {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("limit = {limit} is above {LIMIT_MAX}"),
        ));
    }
    let calls = node.tracking.tracer.recent().list(&tenant, limit, |call| query.selects(call));
    Ok(Json(RecentCallPage { calls }))
}

/// `GET /v1/calls/{request_id}`.
pub(super) async fn show(
    State(node): NodeExtractor,
    Extension(Caller { tenant, .. }): Extension<Caller>,
    Path(request_id): Path<String>,
) -> Result<Json<CallTimeline>, ApiError> {
    let found = node.tracking.tracer.recent().find(&tenant, &request_id).ok_or_else(|| {
        let text = format!(
            "no timeline of request {request_id} is kept here: ask the node that received the call, after its end; send the header weir-explain with the call to keep it for certain"
        );
        ApiError::new(ErrorCode::InvocationNotFound, text)
    })?;
    Ok(Json(CallTimeline::clone(&found)))
}
