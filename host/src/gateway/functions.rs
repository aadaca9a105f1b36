//! `/v1/functions`: deploying functions and looking after them.

use super::Caller;
use super::body::small;
use super::error::ApiError;
use super::manifest::{self, Options, Upload};
use crate::blobs::PutError;
use crate::component::policy::{self, Verdict};
use crate::node::NodeState;
use crate::registry::{FunctionEntry, FunctionRecord, RegistryError};
use crate::telemetry::Phase;
use crate::telemetry::logs::now_ms;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use weir_types::api::{Deployed, Function, FunctionVersion, LogLine, Rollback};
use weir_types::{ErrorCode, FunctionManifest, Name, Version};

/// The largest JSON body of a management call.
const JSON_BYTES_MAX: usize = 64 << 10;
/// A component larger than this gets advice with its deployment.
const LARGE_COMPONENT_BYTES: u64 = 8 << 20;

type Node = State<Arc<NodeState>>;

/// `PUT /v1/functions/{name}`.
pub(super) async fn deploy(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Deployed>, ApiError> {
    let name = parse_name(&name)?;
    let (manifest, options, upload): (FunctionManifest, Options, Upload) =
        manifest::read(request, node.config.component_bytes_max).await?;
    check_limits(&manifest, &node)?;
    let upload = node
        .blobs
        .stage(upload, node.config.component_bytes_max)
        .await
        .map_err(|error| upload_error(error, "component"))?;
    let digest = upload.digest;

    let current = node.registry.get(&caller.tenant, name.as_str());
    if let Some(entry) = &current
        && let Some(active) = entry.active()
        && active.record.digest == digest
        && active.record.manifest == manifest
    {
        return Ok(Json(answer(&node, &entry.describe(active), &active.record.imports, &manifest, false, 0)));
    }
    // Compiled before, for any function of any tenant: what was found then still holds.
    let known = node.registry.find(digest).filter(|record| node.components.is_compiled(digest, record.kind));
    let (kind, imports, compile_time_ms) = match known {
        Some(record) => (record.kind, record.imports, 0),
        None => {
            let compiled = node.components.compile(digest, upload.path()).await?;
            node.metrics.phase(Phase::Compile, Duration::from_millis(compiled.compile_time_ms));
            (compiled.kind, compiled.imports, compiled.compile_time_ms)
        }
    };
    let denied = denied_imports(&imports, &manifest);
    if options.strict && !denied.is_empty() {
        let text = format!(
            "--strict: the component imports what its manifest does not grant: {}",
            denied.join(", ")
        );
        return Err(ApiError::new(ErrorCode::NotGranted, text));
    }
    let component_bytes = upload.bytes;
    let _adding = node.blobs.adding().await;
    node.blobs.keep(upload).await.map_err(|error| ApiError::internal(&error))?;
    let deployment = node
        .registry
        .deploy(&caller.tenant, &name, |version| FunctionRecord {
            version,
            kind,
            digest,
            component_bytes,
            deployed_at_ms: now_ms(),
            imports: imports.clone(),
            manifest: manifest.clone(),
        })
        .await?;
    tracing::info!(tenant = %caller.tenant, function = %name, version = %deployment.id.version, "deployed");
    let entry = find(&node, &caller, &name)?;
    Ok(Json(answer(&node, &entry.describe(&deployment), &imports, &manifest, true, compile_time_ms)))
}

fn answer(
    node: &NodeState,
    function: &FunctionVersion,
    imports: &[String],
    manifest: &FunctionManifest,
    created: bool,
    compile_time_ms: u64,
) -> Deployed {
    Deployed {
        function: function.clone(),
        created,
        path: format!("/fn/{}/", function.name),
        compile_time_ms,
        denied_imports: denied_imports(imports, manifest),
        warnings: advice(node, function, imports),
    }
}

fn denied_imports(imports: &[String], manifest: &FunctionManifest) -> Vec<String> {
    imports.iter().filter(|name| policy::verdict(name, manifest) == Verdict::Denied).cloned().collect()
}

fn advice(node: &NodeState, function: &FunctionVersion, imports: &[String]) -> Vec<String> {
    let mut advice = Vec::new();
    for model in &function.manifest.models {
        if node.models.get(&function.tenant, &model.name, model.version).is_err() {
            advice.push(format!(
                "model {model} is granted but not on this node yet: weir models push {} FILE.onnx",
                model.name
            ));
        }
    }
    let uses_models = imports.iter().any(|name| name.starts_with("weir:inference/models@"));
    if uses_models && function.manifest.models.is_empty() {
        advice.push(
            "the component uses models, but the manifest grants none: add models = [\"NAME\"]".to_owned(),
        );
    }
    if !uses_models && !function.manifest.models.is_empty() {
        advice.push("the manifest grants models, but the component does not use any".to_owned());
    }
    if function.component_bytes > LARGE_COMPONENT_BYTES {
        let mib = function.component_bytes >> 20;
        advice.push(format!("the component has {mib} MiB; strip it, and build it with opt-level = \"s\" and lto = true, to load faster"));
    }
    advice
}

/// `GET /v1/functions`.
pub(super) async fn list(State(node): Node, Extension(caller): Extension<Caller>) -> Json<Vec<Function>> {
    Json(node.registry.list(&caller.tenant).iter().filter_map(|entry| summary(entry)).collect())
}

/// `GET /v1/functions/{name}`.
pub(super) async fn show(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Function>, ApiError> {
    let name = parse_name(&name)?;
    summary(&*find(&node, &caller, &name)?).map(Json).ok_or_else(|| RegistryError::NoFunction(name).into())
}

/// `GET /v1/functions/{name}/versions`, oldest first.
pub(super) async fn versions(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Vec<FunctionVersion>>, ApiError> {
    let entry = find(&node, &caller, &parse_name(&name)?)?;
    Ok(Json(entry.versions.values().map(|version| entry.describe(version)).collect()))
}

/// `GET /v1/functions/{name}/versions/{version}`.
pub(super) async fn show_version(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Json<FunctionVersion>, ApiError> {
    let entry = find(&node, &caller, &parse_name(&name)?)?;
    Ok(Json(entry.describe(entry.require(parse_version(&version)?)?)))
}

/// `POST /v1/functions/{name}/rollback`.
pub(super) async fn roll_back(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<Function>, ApiError> {
    let name = parse_name(&name)?;
    let body = small(body, JSON_BYTES_MAX).await?;
    let rollback = if body.is_empty() { Ok(Rollback::default()) } else { serde_json::from_slice(&body) };
    let Rollback { version } = rollback.map_err(|error| {
        ApiError::new(
            ErrorCode::InvalidRequest,
            format!("the body must be {{}} or {{\"version\": N}}: {error}"),
        )
    })?;
    let entry = node.registry.roll_back(&caller.tenant, &name, version).await?;
    tracing::info!(tenant = %caller.tenant, function = %name, version = %entry.head.active, "rolled back");
    summary(&entry).map(Json).ok_or_else(|| RegistryError::NoFunction(name).into())
}

/// `DELETE /v1/functions/{name}`.
pub(super) async fn remove(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    node.registry.delete(&caller.tenant, &name).await?;
    tracing::info!(tenant = %caller.tenant, function = %name, "deleted");
    node.sweep_components().await?;
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

/// `DELETE /v1/functions/{name}/versions/{version}`.
pub(super) async fn remove_version(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    node.registry.delete_version(&caller.tenant, &parse_name(&name)?, parse_version(&version)?).await?;
    node.sweep_components().await?;
    Ok(http::StatusCode::NO_CONTENT.into_response())
}

/// What `GET .../logs` takes.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LogQuery {
    lines: usize,
    follow: bool,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { lines: 100, follow: false }
    }
}

/// `GET /v1/functions/{name}/logs`, as newline-delimited JSON.
pub(super) async fn logs(
    State(node): Node,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<LogQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("{error}; takes lines=N and follow=true"))
    })?;
    let entry = find(&node, &caller, &parse_name(&name)?)?;
    let (tail, news) = entry.log.tail_and_follow(query.lines);
    drop(entry);
    let tail = stream::iter(tail.into_iter().map(|line| encode(&line)));
    let body = if query.follow {
        let news = stream::unfold((news, node.stopping.clone()), async |(mut news, stop)| {
            loop {
                let line = tokio::select! {
                    line = news.recv() => line,
                    () = stop.cancelled() => return None,
                };
                match line {
                    Ok(line) => return Some((encode(&line), (news, stop))),
                    // The reader was too slow and lost lines; it goes on with the oldest there are.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        Body::from_stream(tail.chain(news))
    } else {
        Body::from_stream(tail)
    };
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn encode(line: &LogLine) -> Result<Bytes, std::io::Error> {
    let mut json = serde_json::to_vec(line).map_err(std::io::Error::other)?;
    json.push(b'\n');
    Ok(json.into())
}

fn summary(entry: &FunctionEntry) -> Option<Function> {
    let active = entry.describe(entry.active()?);
    Some(Function { active, versions: entry.versions.keys().copied().collect() })
}

fn find(node: &NodeState, caller: &Caller, name: &Name) -> Result<Arc<FunctionEntry>, ApiError> {
    node.registry
        .get(&caller.tenant, name.as_str())
        .ok_or_else(|| RegistryError::NoFunction(name.clone()).into())
}

pub(super) fn parse_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|error| ApiError::new(ErrorCode::InvalidName, error.to_string()))
}

pub(super) fn parse_version(text: &str) -> Result<Version, ApiError> {
    let number = text.parse().ok().filter(|number| *number > 0);
    let text = format!("{text:?} is not a version: versions are numbers from 1 up");
    number.map(Version).ok_or_else(|| ApiError::new(ErrorCode::InvalidRequest, text))
}

pub(super) fn upload_error(error: PutError, what: &str) -> ApiError {
    match error {
        PutError::TooLarge { bytes_max } => ApiError::new(
            ErrorCode::BodyTooLarge,
            format!("the {what} has more than the node's {bytes_max} bytes"),
        ),
        PutError::Source(why) => {
            ApiError::new(ErrorCode::BodyMismatch, format!("the {what} did not arrive in full: {why}"))
        }
        PutError::Io(error) => ApiError::internal(&error),
    }
}

fn check_limits(manifest: &FunctionManifest, node: &NodeState) -> Result<(), ApiError> {
    let Some((name, asked, cap)) = manifest.limits.first_over(&node.config.limit_caps) else { return Ok(()) };
    let text = if asked == 0 {
        format!("limits.{name} must be at least 1")
    } else {
        format!("limits.{name} = {asked} is over this node's cap of {cap}")
    };
    Err(ApiError::new(ErrorCode::LimitOverCap, text))
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        let code = match &error {
            RegistryError::NoFunction(_) => ErrorCode::FunctionNotFound,
            RegistryError::NoVersion { .. } | RegistryError::NothingEarlier(_) => ErrorCode::VersionNotFound,
            RegistryError::IsActive { .. }
            | RegistryError::TooManyVersions(_)
            | RegistryError::Conflict(_) => ErrorCode::Conflict,
            RegistryError::Datastore(
                weir_datastore::Error::Unavailable { .. } | weir_datastore::Error::Closed,
            ) => ErrorCode::Unavailable,
            RegistryError::Damaged { .. } | RegistryError::Datastore(_) => return Self::internal(&error),
        };
        Self::new(code, error.to_string())
    }
}
