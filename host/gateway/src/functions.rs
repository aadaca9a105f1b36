//! `/v1/functions`: deploying and managing functions.

mod advice;
mod deploy;
mod logs;

pub(super) use deploy::deploy;
pub(super) use logs::logs;

use super::Caller;
use super::body::small;
use super::error::ApiError;
use super::workflows::refuse_if_used;
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;
use weir_control::registry::{FunctionEntry, Noun, RegistryError};
use weir_types::api::{Function, FunctionVersion, Rollback};
use weir_types::{ErrorCode, Name, Version};
use weir_workflow::TargetKind;

/// Size limit of the JSON body of a management request.
const JSON_BYTES_MAX: usize = 64 << 10;

/// `GET /v1/functions`.
pub(super) async fn list(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<Function>> {
    Json(node.registry.list(&caller.tenant).iter().filter_map(|entry| summary(entry)).collect())
}

/// `GET /v1/functions/{name}`.
pub(super) async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Function>, ApiError> {
    let name = parse_name(&name)?;
    summary(&*find(&node, &caller, &name)?)
        .map(Json)
        .ok_or_else(|| RegistryError::NotThere(Noun::Function, name).into())
}

/// `GET /v1/functions/{name}/versions`, oldest first.
pub(super) async fn versions(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Vec<FunctionVersion>>, ApiError> {
    let entry = find(&node, &caller, &parse_name(&name)?)?;
    Ok(Json(entry.versions.values().map(|version| entry.describe(version)).collect()))
}

/// `GET /v1/functions/{name}/versions/{version}`.
pub(super) async fn show_version(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Json<FunctionVersion>, ApiError> {
    let entry = find(&node, &caller, &parse_name(&name)?)?;
    Ok(Json(entry.describe(entry.require(parse_version(&version)?)?)))
}

/// `POST /v1/functions/{name}/rollback`.
pub(super) async fn roll_back(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<Function>, ApiError> {
    let name = parse_name(&name)?;
    let version = read_rollback(body).await?;
    let entry = node.registry.roll_back(&caller.tenant, &name, version).await?;
    tracing::info!(tenant = %caller.tenant, function = %name, version = %entry.head.active, "rolled back");
    node.sweep_instances();
    summary(&entry).map(Json).ok_or_else(|| RegistryError::NotThere(Noun::Function, name).into())
}

/// `DELETE /v1/functions/{name}`.
pub(super) async fn remove(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    refuse_if_used(&node, TargetKind::Function, &caller.tenant, &name, None)?;
    node.registry.delete(&caller.tenant, &name).await?;
    tracing::info!(tenant = %caller.tenant, function = %name, "deleted");
    node.sweep_instances();
    node.sweep_components().await;
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

/// `DELETE /v1/functions/{name}/versions/{version}`.
pub(super) async fn remove_version(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    let version = parse_version(&version)?;
    refuse_if_used(&node, TargetKind::Function, &caller.tenant, &name, Some(version))?;
    node.registry.delete_version(&caller.tenant, &name, version).await?;
    node.sweep_components().await;
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

fn summary(entry: &FunctionEntry) -> Option<Function> {
    let active = entry.describe(entry.active()?);
    Some(Function { active, versions: entry.versions.keys().copied().collect() })
}

fn find(node: &NodeState, caller: &Caller, name: &Name) -> Result<Arc<FunctionEntry>, ApiError> {
    node.registry
        .get(&caller.tenant, name.as_str())
        .ok_or_else(|| RegistryError::NotThere(Noun::Function, name.clone()).into())
}

/// Reads the version to roll back to, if the body names one.
pub(super) async fn read_rollback(body: Body) -> Result<Option<Version>, ApiError> {
    let body = small(body, JSON_BYTES_MAX).await?;
    let rollback = if body.is_empty() { Ok(Rollback::default()) } else { serde_json::from_slice(&body) };
    let Rollback { version } = rollback.map_err(|error| {
        ApiError::new(
            ErrorCode::InvalidRequest,
            format!("the body must be {{}} or {{\"version\": N}}: {error}"),
        )
    })?;
    Ok(version)
}

pub(super) fn parse_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|error| ApiError::new(ErrorCode::InvalidName, error.to_string()))
}

pub(super) fn parse_version(text: &str) -> Result<Version, ApiError> {
    let number = text.parse().ok().filter(|number| *number > 0);
    let text = format!("{text:?} is not a version: versions are numbers from 1 up");
    number.map(Version).ok_or_else(|| ApiError::new(ErrorCode::InvalidRequest, text))
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        let code = match &error {
            RegistryError::NotThere(Noun::Function, _) => ErrorCode::FunctionNotFound,
            RegistryError::NotThere(Noun::Workflow, _) => ErrorCode::WorkflowNotFound,
            RegistryError::NoVersion { .. } | RegistryError::NothingEarlier(..) => ErrorCode::VersionNotFound,
            RegistryError::IsActive { .. }
            | RegistryError::TooManyVersions(..)
            | RegistryError::Conflict(..) => ErrorCode::Conflict,
            RegistryError::Datastore(error) if error.is_temporary() => ErrorCode::Unavailable,
            RegistryError::Datastore(error) if error.is_full() => ErrorCode::DiskFull,
            RegistryError::Damaged { .. } | RegistryError::Datastore(_) | RegistryError::CutOff(_) => {
                return Self::internal(&error);
            }
        };
        Self::new(code, error.to_string())
    }
}
