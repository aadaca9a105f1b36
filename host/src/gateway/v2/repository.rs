//! `/v2/repository`: what there is, and what of it is in device memory.

use super::super::Caller;
use super::super::body::small;
use super::super::error::ApiError;
use super::super::request_id::RequestId;
use super::infer::{inference, ready};
use super::target::{At, Target};
use crate::cluster::Call;
use crate::cluster::wire::Grant;
use crate::instance::RequestBody;
use crate::node::NodeState;
use axum::Extension;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::Method;
use http::header::CONTENT_LENGTH;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;
use weir_device::Buffer;
use weir_types::ErrorCode;

/// The largest body of these requests.
const BODY_BYTES_MAX: usize = 64 << 10;

type Node = State<Arc<NodeState>>;

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

/// `POST /v2/repository/index`. Everything can be asked for inferences, whether or not it is in device memory; what is damaged cannot.
pub(super) async fn index(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Index { ready } = body(request).await?;
    let there = Target::list(&node, &caller.tenant).into_iter().flat_map(|target| {
        let versions = match &target {
            Target::Function(deployment) => vec![deployment.id.version],
            Target::Model(_) => node.models.versions(&caller.tenant, target.name()),
        };
        versions.into_iter().map(move |version| {
            json!({"name": target.name(), "version": version.to_string(), "state": "READY", "reason": ""})
        })
    });
    let mut all: Vec<_> = there.collect();
    if !ready {
        all.extend(node.models.damaged_versions(&caller.tenant).into_iter().map(|(id, why)| {
            json!({"name": id.name, "version": id.version.to_string(), "state": "UNAVAILABLE", "reason": why})
        }));
    }
    Ok(Json(all.into()))
}

/// `POST /v2/repository/models/{name}/load`: have the newest version in device memory before it is asked for. A function is loaded by its
/// first call.
pub(super) async fn load(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    grant: Option<Extension<Grant>>,
    Path(at): Path<At>,
    request: Request,
) -> Result<Response, ApiError> {
    let (headers, uri) = (request.headers().clone(), request.uri().clone());
    let Change { parameters } = body(request).await?;
    if let Some(name) = parameters.keys().find(|name| *name == "config" || name.starts_with("file:")) {
        let text = format!("{name:?} is not supported here: push models with PUT /v1/models/NAME/versions/N");
        return Err(ApiError::new(ErrorCode::NotSupported, text));
    }
    if let Target::Model(entry) = at.find(&node, &caller.tenant)? {
        let grant = grant.map(|Extension(grant)| grant);
        let inference = inference(&node, entry, grant, &headers, &id, Instant::now())?;
        // What the body says is of no account from here on.
        let mut headers = headers;
        headers.remove(CONTENT_LENGTH);
        let call = Call { method: &Method::POST, uri: &uri, headers: &headers };
        let mut nothing = Some(RequestBody::Whole(Buffer::default()));
        if let Err(response) = ready(&node, &inference, 1, call, &mut nothing).await? {
            return Ok(response);
        }
    }
    Ok(Json(json!({})).into_response())
}

/// `POST /v2/repository/models/{name}/unload`: give the device memory of all versions back, each once nobody uses it. It can still be asked
/// for inferences, the first of which loads it anew.
pub(super) async fn unload(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(at): Path<At>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Change { .. } = body(request).await?;
    if let Target::Model(newest) = at.find(&node, &caller.tenant)? {
        let name = &newest.source.id().name;
        for version in node.models.versions(&caller.tenant, name) {
            // One that is deleted meanwhile leaves by itself.
            if let Ok(entry) = node.models.get(&caller.tenant, name, Some(version)) {
                node.models.unload(&entry, &node.dispatch.placements);
            }
        }
    }
    Ok(Json(json!({})))
}

/// A small JSON body, which may be left out.
async fn body<T: Default + DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    let body = small(request.into_body(), BODY_BYTES_MAX).await?;
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&body).map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("the body cannot be used: {error}"))
    })
}
