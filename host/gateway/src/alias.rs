//! Aliases of the versions of functions, models and workflows: the routes that change them.

use super::Caller;
use super::body::small;
use super::error::ApiError;
use super::permission::RouteAccess;
use super::routes::Routes;
use super::table::MANAGE;
use super::versions::{VersionedResource, find, parse_name, resource_of};
use crate::NodeState;
use crate::json::read_object;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use axum::{Extension, Json};
use http::StatusCode;
use std::marker::PhantomData;
use weir_control::registry::FunctionParts;
use weir_control::workflows::Workflows;
use weir_control::{AliasChange, AliasError};
use weir_inference::Content;
use weir_telemetry::logs::now_ms;
use weir_types::api::{AliasRequest, AliasTarget, EventKind, EventResource};
use weir_types::{Alias, ErrorCode, Name, TenantId};

/// Size limit of the JSON body that sets an alias.
const ALIAS_BYTES_MAX: usize = 64 << 10;

/// A kind of item whose versions have aliases.
trait Aliased: Send + Sync + 'static {
    /// Reads the item from the datastore: another node may have pushed the version or moved the alias
    /// a moment ago. An error if the caller has no such item.
    fn require(
        node: &NodeState,
        caller: &Caller,
        name: &Name,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Changes an alias, at a time in Unix milliseconds.
    fn change(
        node: &NodeState,
        caller: &Caller,
        name: &Name,
        alias: Alias,
        to: (AliasChange, u64),
    ) -> impl Future<Output = Result<Option<AliasTarget>, ApiError>> + Send;

    /// The resource of events.
    fn resource() -> EventResource;
}

/// Functions or workflows.
struct Deployments<K>(PhantomData<K>);

impl<K: VersionedResource> Aliased for Deployments<K> {
    async fn require(node: &NodeState, caller: &Caller, name: &Name) -> Result<(), ApiError> {
        K::registry(node).refresh(&caller.tenant, name).await?;
        find::<K>(node, caller, name).map(drop)
    }

    async fn change(
        node: &NodeState,
        caller: &Caller,
        name: &Name,
        alias: Alias,
        to: (AliasChange, u64),
    ) -> Result<Option<AliasTarget>, ApiError> {
        Ok(K::registry(node).change_alias(&caller.tenant, name, alias, to).await?)
    }

    fn resource() -> EventResource {
        resource_of::<K>()
    }
}

struct PushedModels;

impl Aliased for PushedModels {
    async fn require(node: &NodeState, caller: &Caller, name: &Name) -> Result<(), ApiError> {
        node.models.refresh(&caller.tenant, name).await?;
        Ok(node.models.get_of(Content::Network, &caller.tenant, name, None).map(drop)?)
    }

    async fn change(
        node: &NodeState,
        caller: &Caller,
        name: &Name,
        alias: Alias,
        to: (AliasChange, u64),
    ) -> Result<Option<AliasTarget>, ApiError> {
        Ok(node.models.change_alias(&caller.tenant, name, alias, to).await?)
    }

    fn resource() -> EventResource {
        EventResource::Model
    }
}

/// The routes of aliases. `function` is the access to routes of one function.
pub(super) fn routes(function: RouteAccess) -> Routes {
    routes_of::<Deployments<FunctionParts>>("functions", function)
        .merge(routes_of::<PushedModels>("models", MANAGE))
        .merge(routes_of::<Deployments<Workflows>>("workflows", MANAGE))
}

fn routes_of<A: Aliased>(collection: &str, access: RouteAccess) -> Routes {
    let alias = format!("/v1/{collection}/{{name}}/aliases/{{alias}}");
    Routes::default().route(&alias, access, put(set::<A>).delete(remove::<A>)).route(
        &format!("{alias}/rollback"),
        access,
        post(roll_back::<A>),
    )
}

/// `PUT /v1/{collection}/{name}/aliases/{alias}`.
async fn set<A: Aliased>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    body: Body,
) -> Result<Json<AliasTarget>, ApiError> {
    let of = parse(&path)?;
    let body = small(body, ALIAS_BYTES_MAX).await?;
    A::require(&node, &caller, &of.0).await?;
    let AliasRequest { version } = read_object(&body).map_err(|error| {
        let text = format!("the body must be {{\"version\": N}}: {error}");
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    show(change::<A>(&node, &caller, of, AliasChange::Set(version)).await?)
}

/// `POST /v1/{collection}/{name}/aliases/{alias}/rollback`.
async fn roll_back<A: Aliased>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
) -> Result<Json<AliasTarget>, ApiError> {
    let of = parse(&path)?;
    A::require(&node, &caller, &of.0).await?;
    show(change::<A>(&node, &caller, of, AliasChange::RollBack).await?)
}

/// `DELETE /v1/{collection}/{name}/aliases/{alias}`.
async fn remove<A: Aliased>(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let of = parse(&path)?;
    A::require(&node, &caller, &of.0).await?;
    change::<A>(&node, &caller, of, AliasChange::Remove).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The name and the alias in a path.
fn parse((name, alias): &(String, String)) -> Result<(Name, Alias), ApiError> {
    let name = parse_name(name)?;
    let alias =
        Alias::new(alias).map_err(|error| ApiError::new(ErrorCode::InvalidName, error.to_string()))?;
    Ok((name, alias))
}

async fn change<A: Aliased>(
    node: &NodeState,
    caller: &Caller,
    (name, alias): (Name, Alias),
    to: AliasChange,
) -> Result<Option<AliasTarget>, ApiError> {
    let now_ms = now_ms();
    let changed = A::change(node, caller, &name, alias.clone(), (to, now_ms)).await?;
    // An alias that named this version before is unchanged.
    if changed.is_none_or(|target| target.changed_at_ms == now_ms) {
        note::<A>(node, &caller.tenant, (&name, &alias), changed);
    }
    Ok(changed)
}

/// Records the change of an alias.
fn note<A: Aliased>(
    node: &NodeState,
    tenant: &TenantId,
    (name, alias): (&Name, &Alias),
    target: Option<AliasTarget>,
) {
    let resource = A::resource();
    let text = match target {
        Some(AliasTarget { version, .. }) => {
            format!("alias {alias} of {resource} {name} is version {version}")
        }
        None => format!("alias {alias} of {resource} {name} was removed"),
    };
    tracing::info!(%tenant, %name, "{text}");
    node.note(EventKind::AliasChanged, resource, tenant, name, text);
}

fn show(target: Option<AliasTarget>) -> Result<Json<AliasTarget>, ApiError> {
    // Only a removal leaves no target.
    target.map(Json).ok_or_else(|| ApiError::new(ErrorCode::Internal, "the alias has no version"))
}

/// The error code of an alias that names no version or was not changed.
pub(super) fn code(error: &AliasError) -> ErrorCode {
    match error {
        AliasError::Unknown { .. } | AliasError::NotSet { .. } | AliasError::NothingBefore { .. } => {
            ErrorCode::VersionNotFound
        }
        AliasError::TooMany(_) | AliasError::InUse { .. } => ErrorCode::Conflict,
    }
}
