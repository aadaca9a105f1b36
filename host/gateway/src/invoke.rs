//! `/fn/{name}/{path}`: function calls.

use super::body::receive;
use super::cached;
use super::canary::VersionChoice;
use super::error::ApiError;
use super::guest_url;
use super::invocations::{self, Later};
use super::lookups::LookupFor;
use super::prefer::PreferHeader;
use super::request_id::RequestId;
use super::traces::{self, CallRoute};
use super::v2::{self, NamedTarget};
use super::versions::parse_version_ref;
use super::websocket::{self, OverWebSocket};
use crate::NodeState;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method};
use std::sync::Arc;
use std::time::Instant;
use weir_call::body::BodyLimit;
use weir_call::headers;
use weir_call::until;
use weir_call::websocket::is_accepted;
use weir_cluster::ForwardGrant;
use weir_cluster::refused;
use weir_control::models::ModelChoices;
use weir_control::registry::DeployedFunction;
use weir_dispatch::{CallCtx, FunctionTarget, HttpRequest, deadline};
use weir_sandbox::instance::GuestRequestBody;
use weir_types::api::InvocationKind;
use weir_types::{ErrorCode, FunctionKind, Name, TenantId, VersionRef};

/// The function in the path of a call: `NAME`, `NAME@VERSION` or `NAME@ALIAS` after `/fn/`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallTarget {
    name_len: usize,
    /// The length of the name with the version.
    len: usize,
}

impl CallTarget {
    /// Parses the path after `/fn/`.
    pub(super) fn parse(call: &str) -> Self {
        let len = call.find('/').unwrap_or(call.len());
        Self { name_len: call[..len].find('@').unwrap_or(len), len }
    }

    /// The name of the function in the path after `/fn/`.
    pub(super) fn name(self, call: &str) -> &str {
        &call[..self.name_len]
    }

    /// The length of the part of the path that the function does not see.
    fn prefix_len(self) -> usize {
        "/fn/".len() + self.len
    }

    /// The version in the path after `/fn/`, if it names one.
    fn version(self, call: &str) -> Result<Option<VersionRef>, ApiError> {
        call[self.name_len..self.len].strip_prefix('@').map(parse_version_ref).transpose()
    }
}

/// Calls the function in the path of the request.
pub(super) async fn invoke(
    node: &NodeState,
    tenant: TenantId,
    target: CallTarget,
    mut request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    let call = &request.uri().path()["/fn/".len()..];
    let name = target.name(call);
    let named = target.version(call)?;
    let choice = VersionChoice::for_request(&request).of_version(named.as_ref());
    let deployment = find(node, &tenant, name, choice).await?;
    let offer = match websocket::Offer::take(&mut request) {
        Ok(offer) => offer,
        Err(refusal) => return Ok(*refusal),
    };
    if let Some(prefer) = PreferHeader::take(request.headers_mut())? {
        let limits = &deployment.manifest.limits;
        let later = Later {
            tenant,
            kind: InvocationKind::Function,
            name: deployment.id.name.clone(),
            version: None,
            chosen: deployment.id.version,
            body_bytes_max: limits.request_body_bytes,
            deadline: deadline(Instant::now(), limits.deadline_ms),
        };
        return invocations::accept(node, later, prefer, request, id).await;
    }
    if !node.takes_calls() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
    }
    let version = deployment.id.version;
    let answered = match offer {
        // Boxed: other calls do not contain this future.
        Some(offer) => Box::pin(websocket::open(node, deployment, target, request, offer, id)).await,
        None => run(node, deployment, None, target, request, id).await,
    };
    match answered {
        Ok(mut response) => {
            response.headers_mut().insert(headers::VERSION, version.0.into());
            Ok(response)
        }
        Err(error) => Err(ApiError { version: Some(version), ..error }),
    }
}

/// Runs a call that another node of the cluster forwarded to this node.
pub(super) async fn invoke_granted(
    node: &NodeState,
    grant: ForwardGrant,
    target: CallTarget,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    let name = target.name(&request.uri().path()["/fn/".len()..]);
    // The event of a new version may arrive after the first call of the version.
    let Some(deployment) = node.registry.find_version(&grant.tenant, name, grant.version).await else {
        return Ok(refused("the node does not know that version of the function\n"));
    };
    if !node.knows_chosen(&grant).await {
        return Ok(refused("the node does not know the versions of models that the call uses\n"));
    }
    if !grant.is_websocket {
        return run(node, deployment, Some(grant), target, request, id).await;
    }
    // The node of the client has its own limit: several such nodes may use this one.
    let Ok(permit) = node.permits.websockets.take(&grant.tenant, false) else {
        return Ok(refused("the WebSockets of the node are in use\n"));
    };
    let request = request.map(|body| websocket::end_messages(node, body));
    let response = Box::pin(run(node, deployment, Some(grant), target, request, id)).await?;
    Ok(match is_accepted(response.status(), response.headers()) {
        true => response.map(|body| websocket::end_answer(node, body, permit)),
        false => response,
    })
}

/// The version of a function for one call. Looks an unknown function up, because another node may
/// have deployed it a moment ago.
async fn find(
    node: &NodeState,
    tenant: &TenantId,
    name: &str,
    choice: VersionChoice<'_>,
) -> Result<Arc<DeployedFunction>, ApiError> {
    let known = || {
        let entry = node.registry.get(tenant, name)?;
        choice.choose(&entry).cloned()
    };
    if let Some(known) = known() {
        return Ok(known);
    }
    if let Ok(new) = Name::new(name) {
        Box::pin(node.look_up(tenant, &new, LookupFor::Tenant)).await?;
    }
    if let Some(known) = known() {
        return Ok(known);
    }
    match (choice.named(), node.registry.get(tenant, name)) {
        (Some(named), Some(entry)) => match entry.resolve(Some(named))? {
            Some(version) => Ok(entry.require(version)?.clone()),
            None => Err(unknown(name)),
        },
        _ => Err(unknown(name)),
    }
}

pub(super) async fn run(
    node: &NodeState,
    deployment: Arc<DeployedFunction>,
    grant: Option<ForwardGrant>,
    called: CallTarget,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let target = NamedTarget::Function(deployment.clone());
    let route = CallRoute::Function { method: &head.method, path: head.uri.path() };
    let is_socket = head.extensions.get::<OverWebSocket>().is_some()
        || grant.as_ref().is_some_and(|grant| grant.is_websocket);
    let granted_ms = grant.as_ref().map_or(u64::MAX, |grant| grant.deadline_in_ms);
    let mut ctx = call_ctx(node, &target, route, grant, &head.headers, id, Instant::now())?;
    if is_socket {
        let limit_ms = websocket::time_ms_max(node, &deployment.manifest.limits);
        ctx.deadline = deadline(ctx.arrived, limit_ms.min(granted_ms));
        ctx.is_websocket = true;
    }
    let trace = ctx.trace.clone();
    let function = node.dispatch.function_target(&ctx, deployment);
    let account = function.account.clone();
    let answered = match function.deployment().record.kind {
        FunctionKind::Tensor => match check_method(&head.method) {
            // Boxed, so that the futures of calls of HTTP functions do not contain it.
            Ok(()) => Box::pin(v2::function(node, ctx, function, &head.headers, body)).await,
            Err(error) => Err(error),
        },
        FunctionKind::Http02 | FunctionKind::Http03 => {
            http(node, ctx, function, head, called, body, id).await
        }
    };
    match &answered {
        Ok(response) => trace.answered(response.status()),
        Err(error) => {
            trace.failed(error.code);
            account.close(error.code);
        }
    }
    answered
}

/// Builds the context of a call of `target` from the headers of a client's call, or of a call that
/// another node forwarded with a `grant`.
pub(super) fn call_ctx(
    node: &NodeState,
    target: &NamedTarget,
    route: CallRoute<'_>,
    grant: Option<ForwardGrant>,
    headers: &HeaderMap,
    id: &RequestId,
    arrived: Instant,
) -> Result<CallCtx, ApiError> {
    let limit_ms = target.time_ms_max(node);
    let limit_ms = grant.as_ref().map_or(limit_ms, |grant| grant.deadline_in_ms.min(limit_ms));
    let models = match (&grant, target) {
        // The node that received the call has chosen.
        (Some(grant), _) => {
            let chosen = (!grant.chosen.is_empty()).then(|| grant.chosen.clone());
            chosen.map(|chosen| Arc::new(ModelChoices::from_chosen(chosen)))
        }
        (None, NamedTarget::Model(_)) => None,
        (None, NamedTarget::Function(_) | NamedTarget::Workflow(_)) => {
            node.models.choices(VersionChoice::from_headers(headers).key())
        }
    };
    Ok(CallCtx {
        id: grant.as_ref().map_or(id.invocation, |grant| grant.invocation),
        request_id: id.shared(),
        objective: ForwardGrant::objective(grant.as_ref(), target.objective()),
        trace: traces::start(node, target, route, headers, id, grant.is_some()),
        arrived,
        deadline: deadline(arrived, limit_ms),
        priority: priority(headers)?,
        depth: 0,
        inputs: Vec::new(),
        models,
        granted: grant.map(|grant| grant.granted),
        is_websocket: false,
    })
}

async fn http(
    node: &NodeState,
    ctx: CallCtx,
    function: FunctionTarget,
    mut head: http::request::Parts,
    called: CallTarget,
    body: Body,
    id: &RequestId,
) -> Result<Response, ApiError> {
    let length = content_length(&head.headers)?;
    let limit = request_limit(function.deployment());
    let arena = node.arena.tenant(&function.deployment().id.tenant);
    let body = match ctx.is_websocket {
        // Each message has its limit.
        true => GuestRequestBody::Stream(body),
        false => received(&ctx, function.deployment(), receive(body, length, &arena, limit)).await?,
    };
    prepare(&mut head.headers, id);
    guest_url::set_prefix(&mut head, called.prefix_len(), ctx.granted.is_some());
    guest_url::set_scheme(&mut head);
    let guest_uri = guest_url::guest_uri(&head.uri, called.prefix_len());
    let call = HttpCall { ctx, function, request: HttpRequest { head, guest_uri, body } };
    let DeployedFunction { manifest, answers, .. } = &**call.function.deployment();
    // The response to a forwarded call is cached by the node that forwarded it.
    if manifest.cache_ttl_ms.is_some()
        && !call.ctx.is_websocket
        && call.ctx.granted.is_none()
        && let Some(scope) = node.response_cache.scope(answers, manifest.cache_ttl_ms)
    {
        return Box::pin(cached::http(node, &scope, call)).await;
    }
    call.run(node).await
}

/// Call of an HTTP function, with its body received whole or as a stream.
pub(super) struct HttpCall {
    pub(super) ctx: CallCtx,
    pub(super) function: FunctionTarget,
    pub(super) request: HttpRequest,
}

impl HttpCall {
    /// Runs the call, on this node or another.
    pub(super) async fn run(self, node: &NodeState) -> Result<Response, ApiError> {
        let Self { ctx, function, request } = self;
        Ok(node.dispatch.http(ctx, function, request).await?)
    }
}

/// Rejects a request that cannot be an inference.
fn check_method(method: &Method) -> Result<(), ApiError> {
    if method == Method::POST {
        return Ok(());
    }
    let text = "this is a tensor function: POST {\"inputs\": [{\"name\": ..., \"datatype\": \"FP32\", \"shape\": [1], \"data\": [0]}]}";
    Err(ApiError::new(ErrorCode::MethodNotAllowed, text))
}

pub(super) fn request_limit(deployment: &DeployedFunction) -> BodyLimit {
    let bytes_max = deployment.manifest.limits.request_body_bytes;
    BodyLimit { bytes_max, setting: "limits.request_body_bytes" }
}

/// Receives the body of a call of `deployment`, unless the call's deadline passes first.
pub(super) async fn received<T>(
    ctx: &CallCtx,
    deployment: &DeployedFunction,
    receiving: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    until(ctx.deadline, receiving).await.unwrap_or_else(|| {
        let limit_ms = deployment.manifest.limits.deadline_ms;
        let text = format!("the request body did not arrive within {limit_ms} ms (limits.deadline_ms)");
        Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
    })
}

/// The error for a function that the tenant does not have, or that the client may not call.
pub(super) fn unknown(name: &str) -> ApiError {
    match Name::new(name) {
        Ok(name) => ApiError::new(
            ErrorCode::FunctionNotFound,
            format!("there is no function {name}; `weir functions` lists them"),
        ),
        Err(error) => ApiError::new(ErrorCode::InvalidName, error.to_string()),
    }
}

/// Removes the headers of the connection and those that only the node sets, and sets headers that
/// functions may rely on.
fn prepare(headers: &mut HeaderMap, id: &RequestId) {
    for name in [CONNECTION, TRANSFER_ENCODING, headers::SHADOW] {
        headers.remove(name);
    }
    headers.insert(headers::REQUEST_ID, id.header());
    headers.entry(HOST).or_insert(HeaderValue::from_static("localhost"));
}

pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| ApiError::new(ErrorCode::InvalidRequest, "content-length is not a number"))
}

pub(super) fn priority(headers: &HeaderMap) -> Result<u32, ApiError> {
    let Some(value) = headers.get(headers::PRIORITY) else { return Ok(0) };
    let priority = value.to_str().ok().and_then(|text| text.parse().ok());
    priority.ok_or_else(|| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{} is not a number from 0 up", headers::PRIORITY))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Alias, Version};

    #[test]
    fn path_may_name_a_version() {
        let parts = |call: &'static str| {
            let target = CallTarget::parse(call);
            (target.name(call), target.version(call).map_err(|error| error.code))
        };
        for plain in ["hello", "hello/", "hello/a@2", "hello/@"] {
            assert_eq!(parts(plain), ("hello", Ok(None)), "{plain}");
        }
        assert_eq!(parts("hello@12/a@b"), ("hello", Ok(Some(Version(12).into()))));
        let alias = VersionRef::Alias(Alias::new("two").unwrap());
        assert_eq!(parts("hello@two/a"), ("hello", Ok(Some(alias))));
        for bad in ["hello@", "hello@0", "hello@-1", "hello@Two", "hello@1@2", "hello@4294967296"] {
            assert_eq!(parts(bad), ("hello", Err(ErrorCode::InvalidRequest)), "{bad}");
        }
        assert_eq!(parts("@1"), ("", Ok(Some(Version(1).into()))));
    }
}
