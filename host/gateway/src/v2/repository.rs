//! `/v2/repository`: the index of models, and loading into and unloading from device memory.

use super::super::Caller;
use super::super::body::small;
use super::super::error::ApiError;
use super::super::invoke::call_ctx;
use super::super::request_id::RequestId;
use super::super::traces::CallRoute;
use super::target::{At, NamedTarget};
use crate::NodeState;
use crate::json::read_object;
use crate::state::NodeExtractor;
use axum::Extension;
use axum::Json;
use axum::extract::{Path, Request, State};
use http::HeaderMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Instant;
use weir_dispatch::ModelTarget;
use weir_types::ErrorCode;

/// Size limit of the request bodies.
const BODY_BYTES_MAX: usize = 64 << 10;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Index {
    ready: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Change {
    parameters: Map<String, Value>,
}

/// Index entry of one version, which may be damaged.
#[derive(Debug, Serialize)]
pub(crate) struct RepositoryEntry {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) state: &'static str,
    pub(crate) reason: String,
}

/// `POST /v2/repository/index`.
pub(super) async fn index(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Vec<RepositoryEntry>>, ApiError> {
    let Index { ready } = body(request).await?;
    Ok(Json(entries(&node, &caller, ready)))
}

/// `POST /v2/repository/models/{name}/load`.
pub(super) async fn load(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(at): Path<At>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let headers = request.headers().clone();
    let Change { parameters } = body(request).await?;
    let names: Vec<_> = parameters.into_iter().map(|(name, _)| name).collect();
    bring_in(&node, &caller, &id, &headers, &at, &names).await?;
    Ok(Json(json!({})))
}

/// `POST /v2/repository/models/{name}/unload`.
pub(super) async fn unload(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(at): Path<At>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Change { .. } = body(request).await?;
    give_back(&node, &caller, &at)?;
    Ok(Json(json!({})))
}

/// Lists all versions that the caller may use. A version is ready unless it is damaged or its
/// dependencies are missing, even if it is not in device memory.
pub(crate) fn entries(node: &NodeState, caller: &Caller, only_ready: bool) -> Vec<RepositoryEntry> {
    let there = NamedTarget::list(node, caller).into_iter().flat_map(|target| {
        let name = target.name().clone();
        let unready = target.unready(node);
        target.versions(node).into_iter().map(move |version| RepositoryEntry {
            name: name.to_string(),
            version: version.to_string(),
            state: if unready.is_none() { "READY" } else { "UNAVAILABLE" },
            reason: unready.clone().unwrap_or_default(),
        })
    });
    let mut all: Vec<_> = there.filter(|entry| !only_ready || entry.state == "READY").collect();
    if !only_ready && !caller.is_limited() {
        all.extend(node.models.damaged_versions(&caller.tenant).into_iter().map(|(id, why)| {
            RepositoryEntry {
                name: id.name.to_string(),
                version: id.version.to_string(),
                state: "UNAVAILABLE",
                reason: why,
            }
        }));
    }
    all
}

/// Loads a model into device memory ahead of its inferences. Functions and the targets of workflows
/// are loaded by their first calls.
pub(crate) async fn bring_in(
    node: &NodeState,
    caller: &Caller,
    id: &RequestId,
    headers: &HeaderMap,
    at: &At,
    parameters: &[String],
) -> Result<(), ApiError> {
    if let Some(name) = parameters.iter().find(|name| *name == "config" || name.starts_with("file:")) {
        let text = format!("{name:?} is not supported here: push models with PUT /v1/models/NAME/versions/N");
        return Err(ApiError::new(ErrorCode::NotSupported, text));
    }
    let target = at.find(node, caller).await?;
    if let NamedTarget::Model(entry) = &target {
        // Inferences go to any node of the cluster that has the model, so this node, which got the
        // request, loads it.
        let mut call = call_ctx(node, &target, CallRoute::Load, None, headers, id, Instant::now())?;
        node.dispatch.load_here(&mut call, ModelTarget::new(entry.clone(), None)).await?;
    }
    Ok(())
}

/// Unloads all versions from device memory, each as soon as it is unused. They can still be called,
/// and the next call reloads them.
pub(crate) fn give_back(node: &NodeState, caller: &Caller, at: &At) -> Result<(), ApiError> {
    let target = at.find_known(node, caller)?;
    if let NamedTarget::Model(_) = target {
        for version in target.versions(node) {
            // A version that is deleted meanwhile is unloaded anyway.
            if let Ok(entry) = node.models.get(&caller.tenant, target.name(), Some(version)) {
                node.models.unload(&entry, &node.dispatch.placements);
            }
        }
    }
    Ok(())
}

/// Parses a small JSON body, which may be missing.
async fn body<T: Default + DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    let body = small(request.into_body(), BODY_BYTES_MAX).await?;
    if body.is_empty() {
        return Ok(T::default());
    }
    read_object(&body).map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("the body cannot be used: {error}"))
    })
}
