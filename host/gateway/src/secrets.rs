//! `/v1/secrets`: secrets of functions. No answer has a value.

use super::body::small;
use super::error::ApiError;
use super::permission::Caller;
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use http::StatusCode;
use serde::Deserialize;
use weir_control::registry::FunctionEntry;
use weir_control::secrets::SecretError;
use weir_types::api::{Secret, SecretRotation};
use weir_types::{ErrorCode, FunctionManifest, Name, SECRET_BYTES_MAX, SecretName, TenantId, Version};
use weir_workflow::TargetKind;

/// Query of changes of a secret.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ChangeQuery {
    /// Stores a value although the node lacks the keys of other secrets, or removes a secret that
    /// functions get.
    force: bool,
}

type ChangeOptions = Result<Query<ChangeQuery>, QueryRejection>;

/// `GET /v1/secrets`, sorted by name.
pub(super) async fn list(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<Secret>> {
    let secrets = node.dispatch.secrets.list(&caller.tenant).into_iter();
    Json(secrets.map(|secret| with_users(&node, &caller.tenant, secret)).collect())
}

/// `GET /v1/secrets/{secret}`.
pub(super) async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Secret>, ApiError> {
    let secret = node.dispatch.secrets.show(&caller.tenant, &parse_name(&name)?)?;
    Ok(Json(with_users(&node, &caller.tenant, secret)))
}

/// `PUT /v1/secrets/{secret}`: the body is the value.
pub(super) async fn set(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: ChangeOptions,
    body: Body,
) -> Result<Json<Secret>, ApiError> {
    let name = parse_name(&name)?;
    let ChangeQuery { force } = options(query)?;
    let value = small(body, SECRET_BYTES_MAX).await?;
    let secret = node.dispatch.secrets.set(&caller.tenant, &name, &value, force).await?;
    tracing::info!(tenant = %caller.tenant, %name, version = %secret.version, "stored a secret");
    node.sweep_instances();
    Ok(Json(with_users(&node, &caller.tenant, secret)))
}

/// `DELETE /v1/secrets/{secret}`.
pub(super) async fn remove(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: ChangeOptions,
) -> Result<StatusCode, ApiError> {
    let name = parse_name(&name)?;
    let ChangeQuery { force } = options(query)?;
    let users = users(&node, &caller.tenant, &name);
    if !users.is_empty() && !force {
        let users = users.iter().map(Name::to_string).collect::<Vec<_>>().join(", ");
        let text = format!(
            "functions get the secret {name}, and their calls would fail without it: {users}; deploy them without it, or remove it by force (`weir secrets delete {name} --force`)"
        );
        return Err(ApiError::new(ErrorCode::Conflict, text));
    }
    node.dispatch.secrets.remove(&caller.tenant, &name).await?;
    tracing::info!(tenant = %caller.tenant, %name, "removed a secret");
    node.sweep_instances();
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/secret-keys/rotate`: encrypts all secrets with the first key of the node.
pub(super) async fn rotate(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Result<Json<SecretRotation>, ApiError> {
    Ok(Json(node.dispatch.secrets.rotate(&caller.tenant).await?))
}

/// Checks that a manifest grants secrets that exist, in variables that it does not set otherwise.
pub(super) async fn check_grants(
    node: &NodeState,
    tenant: &TenantId,
    manifest: &FunctionManifest,
) -> Result<(), ApiError> {
    if let Some((variable, _)) = manifest.secrets.iter().find(|(name, _)| manifest.env.contains_key(*name)) {
        let text =
            format!("the manifest has the variable {variable} in env and in secrets: keep one of them");
        return Err(ApiError::new(ErrorCode::InvalidManifest, text));
    }
    Ok(node.dispatch.secrets.check(tenant, &manifest.secrets).await?)
}

/// Functions of which a version that calls or workflows use gets the secret.
fn users(node: &NodeState, tenant: &TenantId, secret: &SecretName) -> Vec<Name> {
    let catalog = &node.dispatch.catalog;
    let uses = |entry: &FunctionEntry| {
        let is_used = |version: Version| {
            entry.serves(version) || catalog.is_used(TargetKind::Function, tenant, &entry.name, version)
        };
        let mut versions = entry.versions.values();
        versions.any(|version| version.manifest.secrets.grants(secret) && is_used(version.id.version))
    };
    let entries = node.registry.list(tenant);
    entries.iter().filter(|entry| uses(entry)).map(|entry| entry.name.clone()).collect()
}

fn with_users(node: &NodeState, tenant: &TenantId, secret: Secret) -> Secret {
    Secret { functions: users(node, tenant, &secret.name), ..secret }
}

fn options(query: ChangeOptions) -> Result<ChangeQuery, ApiError> {
    let Query(query) = query.map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{error}; the query takes force=true"))
    })?;
    Ok(query)
}

fn parse_name(text: &str) -> Result<SecretName, ApiError> {
    SecretName::new(text).map_err(|error| ApiError::new(ErrorCode::InvalidName, error.to_string()))
}

impl From<SecretError> for ApiError {
    fn from(error: SecretError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
