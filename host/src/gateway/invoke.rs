//! `/fn/{name}/{path}`: calling a function.

use super::body::{receive, receive_whole};
use super::error::ApiError;
use super::headers;
use super::request_id::RequestId;
use super::tensors;
use crate::cluster::wire::Grant;
use crate::cluster::{NotForwarded, refused};
use crate::dispatch::{Account, Admission, Admitted, Away, Invocation, deadline};
use crate::instance::RequestBody;
use crate::node::NodeState;
use crate::registry::Deployment;
use crate::telemetry::{Trace, TraceParent};
use crate::until::until;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Uri};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_types::{ErrorCode, FunctionId, FunctionKind, Name, TenantId};

/// Nodes that an invocation is placed on, one after the other, where they do not take it.
const PLACES_MAX: usize = 4;
/// The pause before a call is placed once more.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How much longer than the deadline another node may take to say that it has passed.
const PASSED_ON_GRACE: Duration = Duration::from_secs(1);

/// Call the function whose name is the first `name_len` bytes behind `/fn/`.
pub(super) async fn invoke(
    node: &NodeState,
    tenant: TenantId,
    name_len: usize,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    let name = &request.uri().path()["/fn/".len()..][..name_len];
    let entry = node.registry.get(&tenant, name).ok_or_else(|| unknown(name))?;
    let deployment = entry.active().ok_or_else(|| unknown(name))?.clone();
    if !node.is_ready() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another"));
    }
    run(node, deployment, None, name_len, request, id).await
}

/// Run a call that another node of the cluster has passed on to this one.
pub(super) async fn invoke_granted(
    node: &NodeState,
    grant: Grant,
    name_len: usize,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    if !node.is_ready() {
        return Ok(refused("the node is shutting down\n"));
    }
    let name = &request.uri().path()["/fn/".len()..][..name_len];
    // The news of a version may come after the first call of it.
    let Some(deployment) = node.registry.find_version(&grant.tenant, name, grant.version).await else {
        return Ok(refused("the node does not know that version of the function\n"));
    };
    run(node, deployment, Some(grant), name_len, request, id).await
}

async fn run(
    node: &NodeState,
    deployment: Arc<Deployment>,
    grant: Option<Grant>,
    name_len: usize,
    request: Request,
    id: &RequestId,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (mut head, body) = request.into_parts();
    let parent =
        head.headers.get(headers::TRACEPARENT).and_then(|value| TraceParent::parse(value.to_str().ok()?));
    let FunctionId { tenant, name, .. } = &deployment.id;
    let trace = Trace::start(&node.sampler, parent.as_ref(), tenant.as_str(), name.as_str(), id.as_str());
    let limit_ms = deployment.manifest.limits.deadline_ms;
    let invocation = Invocation {
        id: grant.as_ref().map_or(id.invocation, |grant| grant.invocation),
        request_id: id.shared(),
        trace,
        arrived,
        deadline: deadline(
            arrived,
            grant.as_ref().map_or(limit_ms, |grant| grant.deadline_in_ms.min(limit_ms)),
        ),
        priority: priority(&head.headers)?,
        deployment,
        grant,
    };
    let account = node.dispatch.account(&invocation);
    prepare(&mut head.headers, id);
    let answered = match invocation.deployment.record.kind {
        FunctionKind::Tensor => tensor(node, invocation, &account, &head, body).await,
        FunctionKind::Http02 | FunctionKind::Http03 => {
            http(node, invocation, &account, head, name_len, body).await
        }
    };
    answered.inspect_err(|error| account.close(error.code))
}

async fn http(
    node: &NodeState,
    invocation: Invocation,
    account: &Arc<Account>,
    mut head: http::request::Parts,
    name_len: usize,
    body: Body,
) -> Result<Response, ApiError> {
    let (length, bytes_max) = (content_length(&head.headers)?, request_bytes_max(&invocation));
    let mut body = Some(in_time(&invocation, receive(body, length, &node.arena, bytes_max)).await?);
    let admission = match admit(node, &invocation, account, &head, &mut body).await? {
        Turn::Here(admission) => admission,
        Turn::Answered(response) => return Ok(response),
    };
    head.uri = guest_uri(&head.uri, name_len);
    let (head, body) = (http::Request::from_parts(head, ()), body.unwrap_or_else(RequestBody::none));
    Ok(node.dispatch.http(invocation, admission, account, head, body).await?)
}

async fn tensor(
    node: &NodeState,
    invocation: Invocation,
    account: &Arc<Account>,
    head: &http::request::Parts,
    body: Body,
) -> Result<Response, ApiError> {
    tensors::check_method(&head.method)?;
    let length = content_length(&head.headers)?;
    let bytes_max = request_bytes_max(&invocation).min(tensors::JSON_BYTES_MAX);
    let received = in_time(&invocation, receive_whole(body, length, &node.arena, bytes_max)).await?;
    let mut body = Some(RequestBody::Whole(received.clone()));
    match admit(node, &invocation, account, head, &mut body).await? {
        Turn::Here(admission) => tensors::invoke(node, &invocation, admission, account, received).await,
        Turn::Answered(response) => Ok(response),
    }
}

/// What has become of an invocation that was to be placed.
enum Turn {
    /// It is to run on this node.
    Here(Admission),
    /// Another node has run it.
    Answered(Response),
}

/// Have the invocation placed, and run by another node if it was placed there. A node that does not take it, or is lost while it runs what
/// may run twice, is not the end of it.
async fn admit(
    node: &NodeState,
    invocation: &Invocation,
    account: &Account,
    head: &http::request::Parts,
    body: &mut Option<RequestBody>,
) -> Result<Turn, ApiError> {
    let mut was_lost = false;
    for places_left in (0..PLACES_MAX).rev() {
        let (away, held) = match node.dispatch.admit(invocation).await? {
            Admitted::Here(admission) => return Ok(Turn::Here(admission)),
            Admitted::There(away, held) => (away, held),
        };
        let Some(cluster) = &node.cluster else { break };
        let grant = grant(invocation, &away);
        let sent = match body {
            Some(RequestBody::Whole(whole)) => Body::from(Bytes::from(whole.clone())),
            _ => body.take().map_or_else(Body::empty, RequestBody::into_body),
        };
        let forwarded = cluster.forward(&away, &grant, head, sent, held);
        let Some(forwarded) = until(invocation.deadline + PASSED_ON_GRACE, forwarded).await else {
            let text = format!("the node at {} did not answer in time", away.address);
            return Err(ApiError::new(ErrorCode::DeadlineExceeded, text));
        };
        let error = match forwarded {
            Ok(response) => {
                node.metrics.passed_on.inc();
                account.pass_on();
                return Ok(Turn::Answered(response));
            }
            Err(error) => error,
        };
        let may_go_on = match &error {
            NotForwarded::Refused(_) => true,
            NotForwarded::Lost(_) => {
                !std::mem::replace(&mut was_lost, true) && may_run_twice(invocation, head)
            }
        };
        if !may_go_on || places_left == 0 || body.is_none() {
            let text = format!("{error}; the node was {}", away.address);
            return Err(ApiError::new(ErrorCode::NodeLost, text));
        }
        tracing::warn!(address = away.address, %error, "a call is placed once more");
        node.metrics.placed_again.inc();
        // The dispatcher is about to hear of it too.
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Err(ApiError::new(ErrorCode::Unavailable, "no node has taken the call; try again"))
}

/// What the node at the other end of `away` may do for the invocation.
fn grant(invocation: &Invocation, away: &Away) -> Grant {
    let left = invocation.deadline.saturating_duration_since(Instant::now());
    let id = &invocation.deployment.id;
    Grant {
        invocation: invocation.id,
        tenant: id.tenant.clone(),
        version: id.version,
        deadline_in_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        models: away.models.clone(),
        evict: away.evict.clone(),
    }
}

/// Whether running the invocation a second time does no harm.
fn may_run_twice(invocation: &Invocation, head: &http::request::Parts) -> bool {
    head.method.is_safe() || invocation.deployment.manifest.idempotent
}

fn request_bytes_max(invocation: &Invocation) -> u64 {
    invocation.deployment.manifest.limits.request_body_bytes
}

/// The body, unless the invocation's deadline passes first.
async fn in_time<T>(
    invocation: &Invocation,
    receiving: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    until(invocation.deadline, receiving).await.unwrap_or_else(|| {
        let limit_ms = invocation.deployment.manifest.limits.deadline_ms;
        let text = format!("the request body did not arrive within {limit_ms} ms (limits.deadline_ms)");
        Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
    })
}

fn unknown(name: &str) -> ApiError {
    match Name::new(name) {
        Ok(name) => ApiError::new(
            ErrorCode::FunctionNotFound,
            format!("there is no function {name}; `weir functions` lists them"),
        ),
        Err(error) => ApiError::new(ErrorCode::InvalidName, error.to_string()),
    }
}

/// The request target as the function sees it: without `/fn/{name}`.
fn guest_uri(uri: &Uri, name_len: usize) -> Uri {
    let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let rest = &target["/fn/".len() + name_len..];
    let target = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    // A suffix of a valid target behind a slash is valid.
    let target =
        PathAndQuery::from_maybe_shared(Bytes::from(target)).unwrap_or(PathAndQuery::from_static("/"));
    if uri.authority().is_none() {
        return Uri::from(target);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static("/"))
}

/// Take out what belongs to the connection, and put in what a function may rely on.
fn prepare(headers: &mut HeaderMap, id: &RequestId) {
    for name in [CONNECTION, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    headers.insert(headers::REQUEST_ID, id.header());
    headers.entry(HOST).or_insert(HeaderValue::from_static("localhost"));
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| ApiError::new(ErrorCode::InvalidRequest, "content-length is not a number"))
}

fn priority(headers: &HeaderMap) -> Result<u32, ApiError> {
    let Some(value) = headers.get(headers::PRIORITY) else { return Ok(0) };
    let priority = value.to_str().ok().and_then(|text| text.parse().ok());
    priority.ok_or_else(|| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{} is not a number from 0 up", headers::PRIORITY))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_sees_its_own_paths() {
        let seen = |uri: &'static str| guest_uri(&Uri::from_static(uri), "hello".len()).to_string();
        assert_eq!(seen("/fn/hello"), "/");
        assert_eq!(seen("/fn/hello/"), "/");
        assert_eq!(seen("/fn/hello/a/b?c=d"), "/a/b?c=d");
        assert_eq!(seen("/fn/hello?c=d"), "/?c=d");
        assert_eq!(seen("http://example.com/fn/hello/x"), "http://example.com/x");
    }
}
