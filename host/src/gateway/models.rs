//! `/v1/models`: pushing models and looking after them.

use super::Caller;
use super::cached;
use super::error::ApiError;
use super::functions::{parse_name, parse_version};
use super::uploads::{self, Received};
use super::workflows::{refuse_if_used, refuse_name_of_workflow};
use crate::models::{ModelsError, PushError};
use crate::node::NodeState;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;
use weir_types::api::{Model, ModelVersion};
use weir_types::{ErrorCode, ModelManifest, Name, Version};
use weir_workflow::TargetKind;

type Node = State<Arc<NodeState>>;

/// Slots that a manifest may ask for.
const SLOTS_MAX: u32 = 256;

/// `PUT /v1/models/{name}/versions/{version}`.
pub(super) async fn push(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
    request: Request,
) -> Result<Json<ModelVersion>, ApiError> {
    keep(&node, &caller, &parse_name(&name)?, Some(parse_version(&version)?), request).await
}

/// `PUT /v1/models/{name}`: the next version.
pub(super) async fn push_next(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<ModelVersion>, ApiError> {
    keep(&node, &caller, &parse_name(&name)?, None, request).await
}

async fn keep(
    node: &NodeState,
    caller: &Caller,
    name: &Name,
    version: Option<Version>,
    request: Request,
) -> Result<Json<ModelVersion>, ApiError> {
    refuse_name_of_workflow(node, &caller.tenant, name)?;
    let received = uploads::receive(node, request, node.models.blobs(), node.config.model_bytes_max).await?;
    let Received { manifest, staged, place: _place, .. }: Received<ModelManifest> = received;
    super::manifest::check_slo(manifest.slo_ms)?;
    if let Some(slots) = manifest.slots.filter(|slots| !(1..=SLOTS_MAX).contains(slots)) {
        return Err(ApiError::new(
            ErrorCode::LimitOverCap,
            format!("slots = {slots} is not within 1 to {SLOTS_MAX}"),
        ));
    }
    // Before the model is checked, which takes longer.
    manifest.batching.check().map_err(ModelsError::from)?;
    cached::check_ttl(manifest.cache_ttl_ms)?;
    let (entry, created) = node.models.push(&caller.tenant, name, version, staged, manifest).await?;
    if created {
        tracing::info!(tenant = %caller.tenant, model = %name, version = %entry.record.version, "pushed");
    }
    Ok(Json(node.models.describe(&entry)))
}

/// `GET /v1/models`.
pub(super) async fn list(State(node): Node, Extension(caller): Extension<Caller>) -> Json<Vec<Model>> {
    let models = node.models.list(&caller.tenant);
    let model = |entry: &Arc<_>| {
        let newest = node.models.describe(entry);
        let versions = node.models.versions(&caller.tenant, &newest.name);
        Model { newest, versions }
    };
    Json(models.iter().map(model).collect())
}

/// `GET /v1/models/{name}`.
pub(super) async fn show(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Model>, ApiError> {
    let name = parse_name(&name)?;
    let newest = node.models.describe(&*node.models.get(&caller.tenant, &name, None)?);
    Ok(Json(Model { newest, versions: node.models.versions(&caller.tenant, &name) }))
}

/// `GET /v1/models/{name}/versions/{version}`.
pub(super) async fn show_version(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Json<ModelVersion>, ApiError> {
    let version = parse_version(&version)?;
    let entry = node.models.get(&caller.tenant, &parse_name(&name)?, Some(version))?;
    Ok(Json(node.models.describe(&entry)))
}

/// `DELETE /v1/models/{name}`.
pub(super) async fn remove(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    delete(&node, &caller, &parse_name(&name)?, None).await
}

/// `DELETE /v1/models/{name}/versions/{version}`.
pub(super) async fn remove_version(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    delete(&node, &caller, &parse_name(&name)?, Some(parse_version(&version)?)).await
}

async fn delete(
    node: &NodeState,
    caller: &Caller,
    name: &Name,
    version: Option<Version>,
) -> Result<Response, ApiError> {
    refuse_if_used(node, TargetKind::Model, &caller.tenant, name, version)?;
    node.models.delete(&caller.tenant, name, version).await?;
    tracing::info!(tenant = %caller.tenant, model = %name, "deleted");
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

impl From<ModelsError> for ApiError {
    fn from(error: ModelsError) -> Self {
        let code = match &error {
            ModelsError::NoModel(_) => ErrorCode::ModelNotFound,
            ModelsError::NoVersion { .. } => ErrorCode::VersionNotFound,
            ModelsError::Exists { .. } => ErrorCode::VersionConflict,
            ModelsError::Batching(_) => ErrorCode::InvalidManifest,
            ModelsError::NotThere(..) => ErrorCode::InvalidModel,
            ModelsError::TooManyVersions(_) | ModelsError::Conflict(_) => ErrorCode::Conflict,
            ModelsError::Push(PushError::Prepare(error)) if error.code() != ErrorCode::Internal => {
                error.code()
            }
            ModelsError::Datastore(
                weir_datastore::Error::Unavailable { .. } | weir_datastore::Error::Closed,
            ) => ErrorCode::Unavailable,
            ModelsError::Push(PushError::Blob(error)) => return error.clone().into(),
            ModelsError::Push(_) | ModelsError::Datastore(_) | ModelsError::CutOff(_) => {
                return Self::internal(&error);
            }
        };
        Self::new(code, error.to_string())
    }
}
