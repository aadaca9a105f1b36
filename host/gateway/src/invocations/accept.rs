//! Acceptance of asynchronous requests.

use super::super::error::ApiError;
use super::super::prefer::PreferHeader;
use super::super::request_id::RequestId;
use super::super::traces;
use crate::NodeState;
use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::LOCATION;
use http::{HeaderName, HeaderValue, StatusCode};
use std::time::Instant;
use weir_asynchronous::{InvocationRequest, LinkedWrite, check_callback};
use weir_call::headers::REQUEST_ID;
use weir_types::api::InvocationKind;
use weir_types::{ErrorCode, FunctionKind, Name, TenantId, Version};

/// Preferences that the node applied (RFC 7240).
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Target and limits of an asynchronous request.
pub(crate) struct Later {
    pub(crate) tenant: TenantId,
    pub(crate) kind: InvocationKind,
    pub(crate) name: Name,
    /// The version that the request names.
    pub(crate) version: Option<Version>,
    /// The version that the invocation runs.
    pub(crate) chosen: Version,
    pub(crate) body_bytes_max: u64,
    /// Deadline for the arrival of the body.
    pub(crate) deadline: Instant,
}

/// Stores a request, and responds with the location of its result.
pub(crate) async fn accept(
    node: &NodeState,
    later: Later,
    prefer: PreferHeader,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    if !node.takes_calls() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
    }
    let PreferHeader { key, callback, wait } = prefer;
    if let Some(address) = &callback {
        check_callback(address, &node.callback_hosts(&later.tenant, later.kind, &later.name))?;
    }
    let mut request = request;
    let linked = request.extensions_mut().remove::<LinkedWrite>();
    request.headers_mut().insert(REQUEST_ID, id.header());
    let trace = traces::accept(node, &later, request.headers_mut(), id);
    let Later { tenant, kind, name, version, chosen, body_bytes_max, deadline } = later;
    let offer = InvocationRequest {
        tenant: tenant.clone(),
        kind,
        name,
        version,
        chosen,
        request,
        request_id: id.shared(),
        key,
        callback,
        body_bytes_max,
        deadline,
        linked,
    };
    let mut invocation = node.invocations.accept(offer).await?;
    trace.answered(StatusCode::ACCEPTED);
    drop(trace);
    if let Some(wait) = wait
        && let Ok(mut watched) = node.invocations.watch(&tenant, invocation.id)
    {
        invocation = tokio::select! {
            ended = watched.ended(wait) => ended?,
            () = node.shutdown.stopping.cancelled() => invocation,
        };
    }
    let location = format!("/v1/invocations/{}", invocation.id);
    let mut response = (StatusCode::ACCEPTED, Json(invocation)).into_response();
    let headers = response.headers_mut();
    headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static("respond-async"));
    headers.extend(HeaderValue::from_str(&location).ok().map(|location| (LOCATION, location)));
    Ok(response)
}

impl NodeState {
    /// Returns the version of a target that a call without a version uses now, except canaries.
    pub(crate) fn current_version(
        &self,
        tenant: &TenantId,
        kind: InvocationKind,
        name: &Name,
    ) -> Option<Version> {
        let function = || Some(self.registry.get(tenant, name.as_str())?.head.active);
        match kind {
            InvocationKind::Function => function(),
            InvocationKind::Inference => function()
                .or_else(|| Some(self.workflows.get(tenant, name.as_str())?.head.active))
                .or_else(|| self.models.roles(tenant, name).active),
        }
    }

    /// Returns the hosts that callbacks of calls of `name` may reach: the function's outbound
    /// hosts, and for models the hosts in the node's settings.
    pub(crate) fn callback_hosts(&self, tenant: &TenantId, kind: InvocationKind, name: &Name) -> Vec<String> {
        let function = self.registry.get(tenant, name.as_str());
        let active = function.as_ref().and_then(|function| function.active());
        let answers = active
            .filter(|active| kind == InvocationKind::Function || active.record.kind == FunctionKind::Tensor);
        match answers {
            Some(active) => active.manifest.outbound_hosts.clone(),
            None if kind == InvocationKind::Inference => self.invocations.callback_hosts().to_vec(),
            None => Vec::new(),
        }
    }
}
