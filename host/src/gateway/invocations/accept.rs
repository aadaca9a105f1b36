//! Acceptance of asynchronous requests.

use super::super::error::ApiError;
use super::super::headers::REQUEST_ID;
use super::super::prefer::Wishes;
use super::super::request_id::RequestId;
use crate::asynchronous::{Offer, check_callback};
use crate::node::NodeState;
use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::LOCATION;
use http::{HeaderName, HeaderValue, StatusCode};
use std::time::Instant;
use weir_types::api::InvocationKind;
use weir_types::{ErrorCode, FunctionKind, Name, TenantId, Version};

/// Preferences that the node applied (RFC 7240).
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Target and limits of an asynchronous request.
pub(in super::super) struct Later {
    pub(in super::super) tenant: TenantId,
    pub(in super::super) kind: InvocationKind,
    pub(in super::super) name: Name,
    pub(in super::super) version: Option<Version>,
    pub(in super::super) body_bytes_max: u64,
    /// Deadline for the arrival of the body.
    pub(in super::super) deadline: Instant,
}

/// Stores a request, and responds with the location of its result.
pub(in super::super) async fn accept(
    node: &NodeState,
    later: Later,
    wishes: Wishes,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    if !node.is_ready() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
    }
    let Later { tenant, kind, name, version, body_bytes_max, deadline } = later;
    let Wishes { key, callback, wait } = wishes;
    if let Some(address) = &callback {
        check_callback(address, &node.callback_hosts(&tenant, kind, &name))?;
    }
    let mut request = request;
    request.headers_mut().insert(REQUEST_ID, id.header());
    let offer = Offer {
        tenant: tenant.clone(),
        kind,
        name,
        version,
        request,
        request_id: id.shared(),
        key,
        callback,
        body_bytes_max,
        deadline,
    };
    let mut invocation = node.invocations.accept(offer).await?;
    if let Some(wait) = wait
        && let Ok(mut watched) = node.invocations.watch(&tenant, invocation.id)
    {
        invocation = tokio::select! {
            ended = watched.ended(wait) => ended?,
            () = node.stopping.cancelled() => invocation,
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
    /// Returns the hosts that callbacks of calls of `name` may reach: the function's outbound
    /// hosts, and for models the hosts in the node's settings.
    pub(in super::super) fn callback_hosts(
        &self,
        tenant: &TenantId,
        kind: InvocationKind,
        name: &Name,
    ) -> Vec<String> {
        let function = self.registry.get(tenant, name.as_str());
        let active = function.as_ref().and_then(|function| function.active());
        let answers = active
            .filter(|active| kind == InvocationKind::Function || active.record.kind == FunctionKind::Tensor);
        match answers {
            Some(active) => active.manifest.outbound_hosts.clone(),
            None if kind == InvocationKind::Inference => self.config.asynchronous.callback_hosts.clone(),
            None => Vec::new(),
        }
    }
}
