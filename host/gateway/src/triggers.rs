//! `/v1/triggers`: requests that the node sends on a schedule, for messages or for events.

use super::Gateway;
use super::body::small;
use super::error::ApiError;
use super::lookups::LookupFor;
use super::permission::Caller;
use super::versions::parse_name;
use crate::NodeState;
use crate::json::read_object;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use weir_asynchronous::RequestRunner;
use weir_call::Fault;
use weir_call::body::{BodyLimit, receive_whole};
use weir_triggers::{ChangedTrigger, RequestSender, TriggerError};
use weir_types::api::{AcceptedEvents, Invocation, InvocationKind, Trigger, TriggerSpec, TriggerTarget};
use weir_types::{ErrorCode, TenantId};

/// Size of a trigger besides the body of its request.
const SPEC_BYTES_MAX: usize = 64 << 10;
/// Size limit of the description of an accepted invocation.
const INVOCATION_BYTES_MAX: usize = 64 << 10;

/// `GET /v1/triggers`, sorted by name.
pub(super) async fn list(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<Trigger>> {
    Json(node.triggers.list(&caller.tenant))
}

/// `GET /v1/triggers/{name}`.
pub(super) async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Trigger>, ApiError> {
    Ok(Json(node.triggers.show(&caller.tenant, &parse_name(&name)?).await?))
}

/// `PUT /v1/triggers/{name}`: creates or replaces a trigger.
pub(super) async fn put(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<Trigger>), ApiError> {
    let name = parse_name(&name)?;
    // A body may be escaped or in base64.
    let body_bytes_max = node.triggers.body_bytes_max().saturating_mul(2);
    let body = small(body, SPEC_BYTES_MAX.saturating_add(body_bytes_max)).await?;
    let spec: TriggerSpec = read_object(&body).map_err(|error| {
        let text = format!(
            "the body is {{\"source\": {{\"cron\": \"*/5 * * * *\"}}, \"target\": {{\"function\": NAME}}, ...}}: {error}"
        );
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    check_target(&node, &caller.tenant, &spec.target).await?;
    let ChangedTrigger { trigger, is_new } = node.triggers.put(&caller.tenant, &name, spec).await?;
    tracing::info!(tenant = %caller.tenant, %name, is_new, "stored a trigger");
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(trigger)))
}

/// `DELETE /v1/triggers/{name}`.
pub(super) async fn delete(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let name = parse_name(&name)?;
    node.triggers.delete(&caller.tenant, &name).await?;
    tracing::info!(tenant = %caller.tenant, %name, "deleted a trigger");
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/triggers/{name}/run`: sends the request of a trigger now.
pub(super) async fn run(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    let sender = Gateway::new(node.clone());
    let invocation = node.triggers.run(&sender, &caller.tenant, &name).await?;
    let location = HeaderValue::from_str(&format!("/v1/invocations/{}", invocation.id)).ok();
    let mut response = (StatusCode::ACCEPTED, Json(invocation)).into_response();
    response.headers_mut().extend(location.map(|location| (LOCATION, location)));
    Ok(response)
}

/// `POST /v1/triggers/{name}/events`: takes events for a trigger.
pub(super) async fn events(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<AcceptedEvents>), ApiError> {
    let name = parse_name(&name)?;
    let limit = BodyLimit {
        bytes_max: node.triggers.message_bytes_max() as u64,
        setting: "async.triggers.message_bytes_max",
    };
    let body = receive_whole(body, None, &node.arena.tenant(&caller.tenant), limit).await?;
    let body = Bytes::from_owner(body);
    let trigger = node.triggers.trigger_for_events(&caller.tenant, &name).await?;
    if !trigger.target().name().is_some_and(|target| caller.covers(target.as_str())) {
        return Err(TriggerError::NotFound(name).into());
    }
    let sender = Gateway::new(node.clone());
    let taken = node.triggers.take_events(&sender, trigger, &headers, &body).await?;
    Ok((StatusCode::ACCEPTED, Json(taken)))
}

/// `POST /v1/triggers/{name}/pause`.
pub(super) async fn pause(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Trigger>, ApiError> {
    set_enabled(&node, &caller.tenant, &name, false).await
}

/// `POST /v1/triggers/{name}/resume`.
pub(super) async fn resume(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Trigger>, ApiError> {
    set_enabled(&node, &caller.tenant, &name, true).await
}

async fn set_enabled(
    node: &NodeState,
    tenant: &TenantId,
    name: &str,
    enabled: bool,
) -> Result<Json<Trigger>, ApiError> {
    let name = parse_name(name)?;
    let trigger = node.triggers.set_enabled(tenant, &name, enabled).await?;
    tracing::info!(%tenant, %name, enabled, "paused or resumed a trigger");
    Ok(Json(trigger))
}

/// Refuses a trigger whose target does not exist.
async fn check_target(node: &NodeState, tenant: &TenantId, target: &TriggerTarget) -> Result<(), ApiError> {
    let (kind, code, noun) = match target.function {
        Some(_) => (InvocationKind::Function, ErrorCode::FunctionNotFound, "function"),
        None => (InvocationKind::Inference, ErrorCode::ModelNotFound, "model, workflow or tensor function"),
    };
    // An invalid target is refused with the other settings.
    let Some(name) = target.name() else { return Ok(()) };
    if node.current_version(tenant, kind, name).is_some() {
        return Ok(());
    }
    if node.look_up(tenant, name, LookupFor::Tenant).await?
        && node.current_version(tenant, kind, name).is_some()
    {
        return Ok(());
    }
    Err(ApiError::new(code, format!("there is no {noun} {name}; deploy it before the trigger")))
}

impl From<TriggerError> for ApiError {
    fn from(error: TriggerError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl RequestSender for Gateway {
    async fn send(&self, tenant: TenantId, request: Request) -> Result<Invocation, Fault> {
        if let Err(error) = self.node.permits.quotas.admit_event(&tenant) {
            return Err(Fault::new(ErrorCode::RateLimited, error.text));
        }
        let response = self.run(tenant, None, request).await?;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), INVOCATION_BYTES_MAX).await;
        let body = body.map_err(|error| Fault::new(ErrorCode::Internal, error.to_string()))?;
        serde_json::from_slice(&body).map_err(|error| {
            let text = format!("the request of a trigger was answered {status} instead of accepted: {error}");
            Fault::new(ErrorCode::Internal, text)
        })
    }
}
