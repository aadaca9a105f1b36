//! Handlers that functions and workflows share: listing, showing, rolling back and removing
//! deployed versions.

use super::Caller;
use super::alias;
use super::body::small;
use super::error::ApiError;
use super::permission::{RouteAccess, Subject};
use super::routes::Routes;
use super::table::LIST;
use super::visibility::{self, Collection, Visibility};
use super::workflows::refuse_if_used;
use crate::NodeState;
use crate::json::read_object;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json};
use serde::Serialize;
use std::sync::Arc;
use weir_control::registry::{ActiveVersion, DeploymentKind, Noun, Registry, RegistryEntry, RegistryError};
use weir_types::api::{Canary, EventKind, EventResource, VersionRequest};
use weir_types::{ErrorCode, Name, TenantId, Version, VersionRef, VersionRefError};
use weir_workflow::TargetKind;

/// Size limit of the JSON body of a promotion or rollback.
const VERSION_BYTES_MAX: usize = 64 << 10;

/// A kind of deployment whose versions the API manages.
pub(super) trait VersionedResource: DeploymentKind {
    /// A name and its versions, as the API returns it.
    type Summary: Serialize;
    /// One version, as the API returns it.
    type Version: Serialize;

    /// The kind of workflow step that runs a version.
    const TARGET: TargetKind;
    /// The part of the registry that other nodes follow.
    const COLLECTION: Collection;

    fn registry(node: &NodeState) -> &Arc<Registry<Self>>;

    fn describe(node: &NodeState, entry: &RegistryEntry<Self>, version: &Self::Deployment) -> Self::Version;

    fn summary(active: Self::Version, versions: Vec<Version>, head: &ActiveVersion) -> Self::Summary;

    /// Releases the resources of inactive versions, after a rollback or a removal.
    fn rolled_back(_node: &NodeState) {}

    /// Releases the resources of removed versions.
    fn removed(_node: &NodeState) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// The routes below `/v1/{collection}`. `deploy` adds methods to the path of a name.
pub(super) fn routes<K: VersionedResource>(
    collection: &str,
    access: RouteAccess,
    deploy: MethodRouter<Arc<NodeState>>,
) -> Routes {
    let all = format!("/v1/{collection}");
    // A key that is limited to functions has no function in this path, and sees its own in the list.
    let list_access = if access.subject == Subject::Function { LIST } else { access };
    Routes::default()
        .route(&all, list_access, get(list::<K>))
        .route(&format!("{all}/{{name}}"), access, deploy.get(show::<K>).delete(remove::<K>))
        .route(&format!("{all}/{{name}}/versions"), access, get(versions::<K>))
        .route(
            &format!("{all}/{{name}}/versions/{{version}}"),
            access,
            get(show_version::<K>).delete(remove_version::<K>),
        )
        .route(&format!("{all}/{{name}}/rollback"), access, post(roll_back::<K>))
}

async fn list<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<K::Summary>> {
    let entries = K::registry(&node).list(&caller.tenant);
    let covered = entries.iter().filter(|entry| caller.covers(entry.name.as_str()));
    Json(covered.filter_map(|entry| summary(&node, entry)).collect())
}

async fn show<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<K::Summary>, ApiError> {
    let name = parse_name(&name)?;
    summary::<K>(&node, &*find(&node, &caller, &name)?).map(Json).ok_or_else(|| missing::<K>(&name))
}

/// Lists the versions of a name, oldest first.
async fn versions<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Vec<K::Version>>, ApiError> {
    let entry = find::<K>(&node, &caller, &parse_name(&name)?)?;
    Ok(Json(entry.versions.values().map(|version| K::describe(&node, &entry, version)).collect()))
}

async fn show_version<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Json<K::Version>, ApiError> {
    let entry = find::<K>(&node, &caller, &parse_name(&name)?)?;
    Ok(Json(K::describe(&node, &entry, entry.require(parse_version(&version)?)?)))
}

async fn roll_back<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<K::Summary>, ApiError> {
    let name = parse_name(&name)?;
    let version = read_version(body).await?;
    let before = find::<K>(&node, &caller, &name)?.head.clone();
    let entry = K::registry(&node).roll_back(&caller.tenant, &name, version).await?;
    tracing::info!(tenant = %caller.tenant, %name, version = %entry.head.active, "rolled back {}", K::NOUN);
    if let Some(Canary { version, .. }) = before.canary {
        let text = format!("canary {version} of {} {name} was rolled back by a request", K::NOUN);
        node.note(EventKind::CanaryRolledBack, resource_of::<K>(), &caller.tenant, &name, text);
    }
    if (before.canary.is_none() && before.shadow.is_none()) || entry.head.active != before.active {
        let text = format!("{} {name} is back at version {}", K::NOUN, entry.head.active);
        node.note(EventKind::RolledBack, resource_of::<K>(), &caller.tenant, &name, text);
    }
    K::rolled_back(&node);
    summary(&node, &entry).map(Json).ok_or_else(|| missing::<K>(&name))
}

async fn remove<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    refuse_if_used(&node, K::TARGET, &caller.tenant, &name, None)?;
    K::registry(&node).delete(&caller.tenant, &name).await?;
    tracing::info!(tenant = %caller.tenant, %name, "deleted {}", K::NOUN);
    let text = format!("{} {name} was removed", K::NOUN);
    node.note(EventKind::Removed, resource_of::<K>(), &caller.tenant, &name, text);
    K::rolled_back(&node);
    K::removed(&node).await;
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

async fn remove_version<K: VersionedResource>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    let version = parse_version(&version)?;
    refuse_if_used(&node, K::TARGET, &caller.tenant, &name, Some(version))?;
    K::registry(&node).delete_version(&caller.tenant, &name, version).await?;
    let text = format!("version {version} of {} {name} was removed", K::NOUN);
    node.note(EventKind::Removed, resource_of::<K>(), &caller.tenant, &format!("{name}:{version}"), text);
    K::removed(&node).await;
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

/// The entry of a name, or the API's error that the caller has no such name.
pub(super) fn find<K: VersionedResource>(
    node: &NodeState,
    caller: &Caller,
    name: &Name,
) -> Result<Arc<RegistryEntry<K>>, ApiError> {
    K::registry(node).get(&caller.tenant, name.as_str()).ok_or_else(|| missing::<K>(name))
}

/// Waits until the other nodes of the cluster serve the present state of a name, for a limited time.
/// Names no nodes if the name has no version `version`, as after a dry run.
pub(super) async fn await_others<K: VersionedResource>(
    node: &NodeState,
    tenant: &TenantId,
    name: &Name,
    version: Version,
) -> Visibility {
    let entry = K::registry(node).get(tenant, name.as_str());
    match entry.filter(|entry| entry.versions.contains_key(&version)) {
        Some(entry) => visibility::await_others(node, K::COLLECTION, entry.revision()).await,
        None => Visibility::default(),
    }
}

/// The resource of events about deployments of a kind.
pub(super) fn resource_of<K: DeploymentKind>() -> EventResource {
    match K::NOUN {
        Noun::Function => EventResource::Function,
        Noun::Workflow => EventResource::Workflow,
    }
}

/// The API's error for a name without an active version.
pub(super) fn missing<K: VersionedResource>(name: &Name) -> ApiError {
    RegistryError::NotThere(K::NOUN, name.clone()).into()
}

/// The name and its versions, as the API returns it.
pub(super) fn summary<K: VersionedResource>(
    node: &NodeState,
    entry: &RegistryEntry<K>,
) -> Option<K::Summary> {
    let active = K::describe(node, entry, entry.active()?);
    Some(K::summary(active, entry.versions.keys().copied().collect(), &entry.head))
}

/// Reads the version to activate, if the body names one.
pub(super) async fn read_version(body: Body) -> Result<Option<Version>, ApiError> {
    let body = small(body, VERSION_BYTES_MAX).await?;
    let request = if body.is_empty() { Ok(VersionRequest::default()) } else { read_object(&body) };
    let VersionRequest { version } = request.map_err(|error| {
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

/// Parses a version that may be an alias.
pub(super) fn parse_version_ref(text: &str) -> Result<VersionRef, ApiError> {
    text.parse().map_err(|error: VersionRefError| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        let code = match &error {
            RegistryError::NotThere(Noun::Function, _) => ErrorCode::FunctionNotFound,
            RegistryError::NotThere(Noun::Workflow, _) => ErrorCode::WorkflowNotFound,
            RegistryError::NoVersion { .. } | RegistryError::NothingEarlier(..) => ErrorCode::VersionNotFound,
            RegistryError::Alias(error) => alias::code(error),
            RegistryError::NoCanary(..) => ErrorCode::CanaryNotFound,
            RegistryError::NoShadow(..) => ErrorCode::ShadowNotFound,
            RegistryError::IsActive { .. }
            | RegistryError::IsCanary { .. }
            | RegistryError::IsShadow { .. }
            | RegistryError::UnfitVersion(..)
            | RegistryError::TooManyVersions(..)
            | RegistryError::NoNextVersion(..)
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
