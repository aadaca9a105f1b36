//! `/v1/models` and `/v1/kernel-graphs`: pushing and managing models. A kernel graph is a model
//! with another kind of content.

mod capacity;
mod profile;
pub(super) use capacity::capacity;
pub(super) use profile::profile;

use super::Caller;
use super::alias;
use super::cached;
use super::canary;
use super::error::ApiError;
use super::openai;
use super::routes::Routes;
use super::table::MANAGE;
use super::uploads::{self, ReceivedUpload};
use super::versions::{parse_name, parse_version, read_version};
use super::visibility::{self, Collection, Visibility};
use super::workflows::{refuse_if_used, refuse_name_of_workflow};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json};
use http::HeaderMap;
use std::sync::Arc;
use weir_control::canary::CanaryOf;
use weir_control::models::{ModelEntry, ModelPushError, ModelRoles, ModelsError, PushRequest};
use weir_datastore::Revision;
use weir_inference::Content;
use weir_storage::blobs::Staged;
use weir_types::api::{Canary, EventKind, EventResource, Model, ModelPushed, ModelVersion};
use weir_types::{
    Batching, BatchingMode, COPIES_MIN_MAX, ErrorCode, KEEP_ALIVE_MS_MAX, ModelId, ModelLabels,
    ModelManifest, Name, TenantId, Version,
};
use weir_workflow::TargetKind;

/// Maximum number of run slots that a manifest may request.
const SLOTS_MAX: u32 = 256;
/// Size limit of a kernel graph, with its sources.
const KERNEL_GRAPH_BYTES_MAX: u64 = 16 << 20;

/// Returns the routes of one kind of model.
pub(super) fn routes(collection: &str, content: Content) -> Routes {
    let all = format!("/v1/{collection}");
    Routes::default()
        .route(&all, MANAGE, get(list))
        .route(&format!("{all}/{{name}}"), MANAGE, put(push_next).get(show).delete(remove))
        .route(
            &format!("{all}/{{name}}/versions/{{version}}"),
            MANAGE,
            put(push).get(show_version).delete(remove_version),
        )
        .route(&format!("{all}/{{name}}/rollback"), MANAGE, post(roll_back))
        .with(|router| router.route_layer(Extension(content)))
}

/// `PUT /v1/models/{name}/versions/{version}`.
async fn push(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
    request: Request,
) -> Result<Json<ModelPushed>, ApiError> {
    let version = Some(parse_version(&version)?);
    let kept = keep(&node, content, &caller, &parse_name(&name)?, version, request).await?;
    Ok(Json(kept.visible(&node).await))
}

/// `PUT /v1/models/{name}`: pushes the next version.
async fn push_next(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<ModelPushed>, ApiError> {
    let kept = keep(&node, content, &caller, &parse_name(&name)?, None, request).await?;
    Ok(Json(kept.visible(&node).await))
}

/// A version that was pushed.
struct KeptVersion {
    answer: ModelPushed,
    /// The revision of the change in the registry.
    revision: Revision,
}

impl KeptVersion {
    /// The answer, after a wait for the other nodes of the cluster.
    async fn visible(self, node: &NodeState) -> ModelPushed {
        let Visibility { visible_on, not_visible_on } =
            visibility::await_others(node, Collection::Models, self.revision).await;
        ModelPushed { visible_on, not_visible_on, ..self.answer }
    }
}

async fn keep(
    node: &NodeState,
    content: Content,
    caller: &Caller,
    name: &Name,
    version: Option<Version>,
    request: Request,
) -> Result<KeptVersion, ApiError> {
    refuse_name_of_workflow(node, &caller.tenant, name)?;
    node.check_names(&caller.tenant, name)?;
    // Check before the upload arrives, which takes longer.
    node.models.may_push(&caller.tenant, name, content)?;
    let bytes_max = match content {
        Content::Network => node.config.models.model_bytes_max,
        Content::KernelGraph => KERNEL_GRAPH_BYTES_MAX.min(node.config.models.model_bytes_max),
    };
    let received = uploads::receive(node, caller, request, node.models.blobs(), bytes_max).await?;
    let ReceivedUpload { mut manifest, staged, options, place: _place }: ReceivedUpload<ModelManifest> =
        received;
    if options.role().is_some() && content == Content::KernelGraph {
        let text = "kernel graphs have neither canaries, shadows nor previews: canary, promote_after_ms, shadow and preview are for functions and models";
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    if options.dry_run || options.digest.is_some() {
        let text = "dry_run and digest are for functions; a push takes the file of the model";
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    super::manifest::check_slo(manifest.slo_ms)?;
    if let Some(slots) = manifest.slots.filter(|slots| !(1..=SLOTS_MAX).contains(slots)) {
        return Err(ApiError::new(
            ErrorCode::LimitOverCap,
            format!("slots = {slots} is not within 1 to {SLOTS_MAX}"),
        ));
    }
    // Check before the model is validated, which takes longer.
    manifest.batching.check().map_err(ModelsError::from)?;
    manifest.autosize.map_or(Ok(()), |autosize| autosize.check()).map_err(ModelsError::from)?;
    cached::check_ttl(manifest.cache_ttl_ms)?;
    if let Some(keep_ms) = manifest.keep_alive_ms.filter(|keep_ms| *keep_ms > KEEP_ALIVE_MS_MAX) {
        return Err(ApiError::new(
            ErrorCode::LimitOverCap,
            format!("keep_alive_ms = {keep_ms} is above {KEEP_ALIVE_MS_MAX}"),
        ));
    }
    if manifest.copies_min > COPIES_MIN_MAX {
        return Err(ApiError::new(
            ErrorCode::LimitOverCap,
            format!("copies_min = {} is above {COPIES_MIN_MAX}", manifest.copies_min),
        ));
    }
    if content == Content::KernelGraph {
        if manifest.copies_min > 0 {
            let text = "copies_min is for models; a kernel graph is loaded when it is called";
            return Err(ApiError::new(ErrorCode::InvalidRequest, text));
        }
        run_alone(&mut manifest)?;
    }
    let request = PushRequest {
        tenant: caller.tenant.clone(),
        name: name.clone(),
        version,
        manifest,
        content,
        may_change_signature: options.allow_signature_change,
        role: options.role(),
    };
    push_version(node, caller, name, request, staged).await
}

/// Pushes a checked upload.
async fn push_version(
    node: &NodeState,
    caller: &Caller,
    name: &Name,
    request: PushRequest,
    staged: Staged,
) -> Result<KeptVersion, ApiError> {
    let before = node.models.roles(&caller.tenant, name);
    let pushed = node.models.push(request, staged).await;
    let (entry, created) = pushed.map_err(|error| push_error(node, caller, name, error))?;
    if created {
        tracing::info!(tenant = %caller.tenant, model = %name, version = %entry.record.version, "pushed");
        note(node, EventKind::Deployed, &entry, "was pushed");
    }
    let canary = canary::note_push(node, before, &entry);
    let removed_versions =
        if created { remove_old_versions(node, entry.source.id()).await } else { Vec::new() };
    let revision = node.models.revision(&entry);
    let answer = pushed_as(node, &entry, canary, removed_versions);
    Ok(KeptVersion { answer, revision })
}

/// The answer to a push of `entry`.
fn pushed_as(
    node: &NodeState,
    entry: &ModelEntry,
    canary: Option<Canary>,
    removed_versions: Vec<Version>,
) -> ModelPushed {
    let ModelId { tenant, name, version } = entry.source.id();
    let roles = node.models.roles(tenant, name);
    ModelPushed {
        model: node.models.describe(entry),
        canary,
        shadow: roles.shadow.filter(|shadow| shadow.version == *version),
        is_preview: !roles.serves(*version),
        removed_versions,
        visible_on: Vec::new(),
        not_visible_on: Vec::new(),
    }
}

/// Removes the versions above `models.versions_keep`. The push has succeeded already, so a failure is
/// only logged; the next push tries again.
async fn remove_old_versions(node: &NodeState, pushed: &ModelId) -> Vec<Version> {
    let ModelId { tenant, name, .. } = pushed;
    let catalog = node.dispatch.catalog.clone();
    let is_used = {
        let ModelId { tenant, name, .. } = pushed.clone();
        move |version| catalog.is_used(TargetKind::Model, &tenant, &name, version)
    };
    match node.models.prune(pushed, node.config.models.versions_keep, is_used).await {
        Ok(removed) => {
            if !removed.is_empty() {
                tracing::info!(%tenant, model = %name, versions = removed.len(), "removed old versions");
                let text = format!("versions_keep: removed {} old versions of model {name}", removed.len());
                node.note(EventKind::Removed, EventResource::Model, tenant, name, text);
            }
            removed
        }
        Err(error) => {
            tracing::warn!(%tenant, model = %name, %error, "removing old versions failed");
            Vec::new()
        }
    }
}

/// Records an event of a version.
fn note(node: &NodeState, kind: EventKind, entry: &ModelEntry, what: &str) {
    let ModelId { tenant, name, version } = entry.source.id();
    let resource = resource_of(entry.content());
    let text = format!("{resource} {name}:{version} {what}");
    node.note(kind, resource, tenant, &format!("{name}:{version}"), text);
}

fn resource_of(content: Content) -> EventResource {
    match content {
        Content::Network => EventResource::Model,
        Content::KernelGraph => EventResource::KernelGraph,
    }
}

/// Adds the users of a model to the error of a push that they could not use.
fn push_error(node: &NodeState, caller: &Caller, name: &Name, error: ModelsError) -> ApiError {
    let ModelsError::SignatureChanged { .. } = error else { return error.into() };
    let users = node.dispatch.catalog.users_of_active(&caller.tenant, name);
    let users = match users.as_slice() {
        [] => "no function or workflow".to_owned(),
        users => users.join(", "),
    };
    let text = format!("{error}. In use by: {users}. allow_signature_change=true pushes it nevertheless");
    ApiError::new(ErrorCode::SignatureChanged, text)
}

/// Disables batching and concurrency for a kernel graph: the items of a kernel may affect each
/// other's outputs, and a tenant's worker runs one thing at a time.
fn run_alone(manifest: &mut ModelManifest) -> Result<(), ApiError> {
    if manifest.batching != Batching::default() && manifest.batching.mode != BatchingMode::Off {
        let text = "kernel graphs are not batched: leave batching out";
        return Err(ApiError::new(ErrorCode::InvalidManifest, text));
    }
    manifest.batching = Batching { mode: BatchingMode::Off, ..Batching::default() };
    manifest.slots = Some(1);
    Ok(())
}

/// `GET /v1/models`.
async fn list(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if content == Content::Network && openai::is_client(&headers) {
        return openai::list(&node, &caller);
    }
    let models = node.models.list(&caller.tenant);
    let model = |entry: &Arc<ModelEntry>| {
        let mut model = summary_of(&node, entry);
        // They may be large. `show` has them.
        model.active.manifest.labels = ModelLabels::default();
        model
    };
    let models: Vec<Model> = models.iter().filter(|entry| entry.content() == content).map(model).collect();
    Json(models).into_response()
}

/// `GET /v1/models/{name}`.
async fn show(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    if content == Content::Network && openai::is_client(&headers) {
        return openai::show(&node, &caller, &name);
    }
    Ok(Json(summary(&node, content, &caller.tenant, &name)?).into_response())
}

/// A model and its versions, as the API returns it.
pub(super) fn summary(
    node: &NodeState,
    content: Content,
    tenant: &TenantId,
    name: &Name,
) -> Result<Model, ApiError> {
    let active = node.models.get_of(content, tenant, name, None)?;
    Ok(summary_of(node, &active))
}

/// The model whose active version is `active`.
fn summary_of(node: &NodeState, active: &ModelEntry) -> Model {
    let ModelId { tenant, name, .. } = active.source.id();
    let versions = node.models.versions(tenant, name);
    let ModelRoles { canary, shadow, .. } = node.models.roles(tenant, name);
    let aliases = node.models.aliases(tenant, name);
    Model { active: node.models.describe(active), versions, canary, shadow, aliases }
}

/// `GET /v1/models/{name}/versions/{version}`.
async fn show_version(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Json<ModelVersion>, ApiError> {
    let version = parse_version(&version)?;
    let entry = node.models.get_of(content, &caller.tenant, &parse_name(&name)?, Some(version))?;
    Ok(Json(node.models.describe(&entry)))
}

/// `POST /v1/models/{name}/rollback`: ends a canary or else a shadow, or pushes an earlier version again, as the
/// newest.
async fn roll_back(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<ModelVersion>, ApiError> {
    let name = parse_name(&name)?;
    let version = read_version(body).await?;
    let active = node.models.get_of(content, &caller.tenant, &name, None)?;
    let ModelRoles { canary, shadow, .. } = node.models.roles(&caller.tenant, &name);
    let note_end = |canary: Canary| {
        let text = format!("canary {} of model {name} was rolled back by a request", canary.version);
        node.note_canary(EventKind::CanaryRolledBack, (CanaryOf::Model, &caller.tenant, &name), text);
    };
    if let (Some(canary), None) = (canary, version) {
        node.models.end_canary(&caller.tenant, &name, canary).await?;
        note_end(canary);
        return Ok(Json(node.models.describe(&active)));
    }
    if shadow.is_some() && version.is_none() {
        node.models.end_shadow(&caller.tenant, &name).await?;
        return Ok(Json(node.models.describe(&active)));
    }
    let entry = node.models.roll_back(&caller.tenant, &name, version).await?;
    canary.into_iter().for_each(note_end);
    tracing::info!(tenant = %caller.tenant, model = %name, version = %entry.record.version, "rolled back");
    note(&node, EventKind::RolledBack, &entry, "restores an earlier version");
    Ok(Json(node.models.describe(&entry)))
}

/// `POST /v1/models/{name}/versions/{version}/release`: ends the quarantine of a version on this
/// node.
pub(super) async fn release(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Json<ModelVersion>, ApiError> {
    let name = parse_name(&name)?;
    let version = parse_version(&version)?;
    let entry = node.models.get_of(Content::Network, &caller.tenant, &name, Some(version))?;
    if !node.models.release(&entry) {
        let text = format!("{name}:{version} is not quarantined on this node");
        return Err(ApiError::new(ErrorCode::Conflict, text));
    }
    tracing::info!(tenant = %caller.tenant, model = %name, %version, "released from quarantine");
    note(&node, EventKind::Released, &entry, "was released from its quarantine");
    Ok(Json(node.models.describe(&entry)))
}

/// `DELETE /v1/models/{name}`.
async fn remove(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    delete(&node, content, &caller, &parse_name(&name)?, None).await
}

/// `DELETE /v1/models/{name}/versions/{version}`.
async fn remove_version(
    State(node): NodeExtractor,
    Extension(content): Extension<Content>,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    delete(&node, content, &caller, &parse_name(&name)?, Some(parse_version(&version)?)).await
}

async fn delete(
    node: &NodeState,
    content: Content,
    caller: &Caller,
    name: &Name,
    version: Option<Version>,
) -> Result<Response, ApiError> {
    // An unreadable model has no known kind, and can be removed as either kind.
    if let Ok(entry) = node.models.get(&caller.tenant, name, None)
        && entry.content() != content
    {
        node.models.get_of(content, &caller.tenant, name, None)?;
    }
    refuse_if_used(node, TargetKind::Model, &caller.tenant, name, version)?;
    node.models.delete(&caller.tenant, name, version).await?;
    tracing::info!(tenant = %caller.tenant, model = %name, "deleted");
    let what = version.map_or_else(|| name.to_string(), |version| format!("{name}:{version}"));
    let text = format!("{} {what} was removed", resource_of(content));
    node.note(EventKind::Removed, resource_of(content), &caller.tenant, &what, text);
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

impl From<ModelsError> for ApiError {
    fn from(error: ModelsError) -> Self {
        let code = match &error {
            ModelsError::NoModel(_) | ModelsError::NoKernelGraph(_) => ErrorCode::ModelNotFound,
            ModelsError::KernelGraphsOff => ErrorCode::NotSupported,
            ModelsError::NoVersion { .. } | ModelsError::NoActive(_) => ErrorCode::VersionNotFound,
            ModelsError::Alias(error) => alias::code(error),
            ModelsError::NoCanary(_) => ErrorCode::CanaryNotFound,
            ModelsError::NoShadow(_) => ErrorCode::ShadowNotFound,
            ModelsError::Exists { .. } => ErrorCode::VersionConflict,
            ModelsError::SignatureChanged { .. } => ErrorCode::SignatureChanged,
            ModelsError::Batching(_) | ModelsError::Autosize(_) | ModelsError::Labels(_) => {
                ErrorCode::InvalidManifest
            }
            ModelsError::NotThere(..) => ErrorCode::InvalidModel,
            ModelsError::TooManyVersions(_)
            | ModelsError::NoNextVersion(_)
            | ModelsError::Conflict(_)
            | ModelsError::OtherKind(..)
            | ModelsError::NotNewer { .. }
            | ModelsError::InTrial { .. }
            | ModelsError::LastActive { .. }
            | ModelsError::NothingBefore(_) => ErrorCode::Conflict,
            ModelsError::Push(ModelPushError::Prepare(error)) if error.code() != ErrorCode::Internal => {
                error.code()
            }
            ModelsError::Push(ModelPushError::Turn(fault)) => fault.code,
            ModelsError::Datastore(error) if error.is_temporary() => ErrorCode::Unavailable,
            ModelsError::Datastore(error) if error.is_full() => ErrorCode::DiskFull,
            ModelsError::Damaged { .. } => ErrorCode::Unavailable,
            ModelsError::Push(ModelPushError::Blob(error)) => return error.clone().into(),
            ModelsError::Push(_) | ModelsError::Datastore(_) | ModelsError::CutOff(_) => {
                return Self::internal(&error);
            }
        };
        Self::new(code, error.to_string())
    }
}
