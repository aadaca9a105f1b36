//! `/v1/invocations`, and the acceptance of asynchronous requests.

mod accept;
pub(super) use accept::{Later, accept};

use super::error::ApiError;
use super::{AsItWas, Caller};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::{Stream, stream};
use http::StatusCode;
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use weir_asynchronous::{AsyncError, Filter, Watched};
use weir_storage::blobs::PutError;
use weir_types::api::{Invocation, InvocationPage, InvocationStatus};
use weir_types::{AsyncId, ErrorCode, Name};

/// Invocations per page: by default, and at most.
const PAGE_LEN: usize = 100;
const PAGE_LEN_MAX: usize = 1_000;

/// Query of `GET /v1/invocations`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListQuery {
    status: Option<InvocationStatus>,
    name: Option<Name>,
    limit: Option<usize>,
    after: Option<AsyncId>,
}

/// `GET /v1/invocations`, newest first.
pub(super) async fn list(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<InvocationPage>, ApiError> {
    let Query(query) = query.map_err(|error| {
        let text =
            format!("{error}; takes status=queued|running|done|dead|cancelled, name=NAME, limit=N, after=ID");
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    let ListQuery { status, name, limit, after } = query;
    let limit = limit.unwrap_or(PAGE_LEN).min(PAGE_LEN_MAX);
    if limit == 0 {
        return Err(ApiError::new(ErrorCode::InvalidRequest, "limit is at least 1"));
    }
    let mut page = node.invocations.list(&caller.tenant, &Filter { status, name }, after, limit).await?;
    page.invocations.retain(|invocation| caller.covers(invocation.name.as_str()));
    Ok(Json(page))
}

/// Query of `GET /v1/invocations/{id}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ShowQuery {
    wait_ms: u64,
}

/// `GET /v1/invocations/{id}`: answers at once, or when the invocation has ended.
pub(super) async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    query: Result<Query<ShowQuery>, QueryRejection>,
) -> Result<Json<Invocation>, ApiError> {
    let Query(ShowQuery { wait_ms }) = query
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, format!("{error}; takes wait_ms=N")))?;
    let id = find_covered(&node, &caller, &id).await?;
    if wait_ms == 0 {
        return Ok(Json(node.invocations.show(&caller.tenant, id).await?));
    }
    let mut watched = node.invocations.watch(&caller.tenant, id)?;
    tokio::select! {
        ended = watched.ended(Duration::from_millis(wait_ms)) => Ok(Json(ended?)),
        () = node.shutdown.stopping.cancelled() => Ok(Json(node.invocations.show(&caller.tenant, id).await?)),
    }
}

/// `GET /v1/invocations/{id}/result`.
pub(super) async fn result(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id = find_covered(&node, &caller, &id).await?;
    let mut response = node.invocations.result(&caller.tenant, id).await?;
    response.extensions_mut().insert(AsItWas);
    Ok(response)
}

/// `DELETE /v1/invocations/{id}`: cancels an unfinished invocation, or deletes an ended one.
pub(super) async fn remove(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id = find_covered(&node, &caller, &id).await?;
    if let Some(cancelled) = node.invocations.cancel(&caller.tenant, id).await? {
        return Ok(Json(cancelled).into_response());
    }
    node.invocations.remove(&caller.tenant, id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `POST /v1/invocations/{id}/cancel`: cancels an unfinished invocation. Unlike `DELETE`, it never
/// deletes a result that has just arrived.
pub(super) async fn cancel(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Invocation>, ApiError> {
    let id = find_covered(&node, &caller, &id).await?;
    node.invocations.cancel(&caller.tenant, id).await?.map(Json).ok_or_else(|| {
        ApiError::new(ErrorCode::Conflict, format!("invocation {id} has ended: there is nothing to cancel"))
    })
}

/// `POST /v1/invocations/{id}/retry`.
pub(super) async fn retry(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Invocation>, ApiError> {
    let id = find_covered(&node, &caller, &id).await?;
    let current = |kind, name: &Name| node.current_version(&caller.tenant, kind, name);
    Ok(Json(node.invocations.retry(&caller.tenant, id, current).await?))
}

/// `GET /v1/invocations/{id}/events`: sends the state now and after each change, until the
/// invocation has ended.
pub(super) async fn events(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let id = find_covered(&node, &caller, &id).await?;
    let mut watched = node.invocations.watch(&caller.tenant, id)?;
    let first = watched.now().await?;
    let changes = changes(watched, first, node.shutdown.stopping.clone());
    Ok(Sse::new(changes).keep_alive(KeepAlive::default()))
}

fn changes(
    watched: Watched,
    first: Invocation,
    stop: CancellationToken,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((watched, Some(first), None), move |(mut watched, mut next, mut told)| {
        let stop = stop.clone();
        async move {
            loop {
                if told.as_ref().is_some_and(|told: &Invocation| told.status.is_end()) {
                    return None;
                }
                if let Some(invocation) = next.take().filter(|next| told.as_ref() != Some(next)) {
                    let event =
                        Event::default().event(invocation.status.as_str()).json_data(&invocation).ok()?;
                    told = Some(invocation);
                    return Some((Ok(event), (watched, None, told)));
                }
                tokio::select! {
                    () = watched.changed() => {}
                    () = stop.cancelled() => return None,
                }
                // If the invocation was deleted or is unreachable, the stream ends and the client
                // asks again.
                next = Some(watched.now().await.ok()?);
            }
        }
    })
}

/// Parses the id of an invocation. For a client that is limited to functions, invocations of others
/// look missing.
async fn find_covered(node: &NodeState, caller: &Caller, id: &str) -> Result<AsyncId, ApiError> {
    let id = parse_id(id)?;
    if caller.is_limited() {
        let invocation = node.invocations.show(&caller.tenant, id).await?;
        if !caller.covers(invocation.name.as_str()) {
            return Err(AsyncError::missing(id).into());
        }
    }
    Ok(id)
}

fn parse_id(text: &str) -> Result<AsyncId, ApiError> {
    text.parse().map_err(|error: weir_types::AsyncIdError| {
        ApiError::new(ErrorCode::InvalidRequest, error.to_string())
    })
}

impl From<AsyncError> for ApiError {
    fn from(error: AsyncError) -> Self {
        match error {
            AsyncError::Refused { code, text } => Self::new(code, text),
            AsyncError::Blob(error) => error.into(),
            AsyncError::Put(PutError::DiskFull(full)) => full.into(),
            AsyncError::Datastore(error) if error.is_full() => {
                Self::new(ErrorCode::DiskFull, error.to_string())
            }
            // A node whose lease has ended gets a new one within a third of its time.
            AsyncError::Datastore(error) if error.is_temporary() => {
                Self::new(ErrorCode::Unavailable, format!("{error}; try again"))
            }
            other => Self::internal(&other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_datastore::{Error, LeaseId};

    #[test]
    fn failures_of_the_datastore_are_temporary_full_or_internal() {
        let cause = || std::sync::Arc::new(std::io::Error::other("why"));
        let code = |error: Error| ApiError::from(AsyncError::Datastore(error)).code;
        assert_eq!(code(Error::LeaseNotFound(LeaseId(7))), ErrorCode::Unavailable);
        assert_eq!(code(Error::Unavailable { source: cause() }), ErrorCode::Unavailable);
        assert_eq!(code(Error::QuotaExceeded { source: cause() }), ErrorCode::DiskFull);
        let damaged = Error::Corrupted { path: "registry".into(), source: cause() };
        assert_eq!(code(damaged), ErrorCode::Internal);
    }
}
