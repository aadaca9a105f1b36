//! `PUT /v1/functions/{name}`: turns an upload into a version that can be called.

use super::advice::{advice, denied_imports, ungranted_imports};
use super::component::ComponentSource;
use crate::cached;
use crate::error::ApiError;
use crate::secrets;
use crate::state::NodeExtractor;
use crate::uploads::{self, ReceivedUpload};
use crate::versions::{await_others, find, parse_name};
use crate::visibility::Visibility;
use crate::workflows::refuse_name_of_workflow;
use crate::{Caller, NodeState};
use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use std::sync::Arc;
use std::time::Duration;
use weir_control::canary::CanaryOf;
use weir_control::registry::{DeployedFunction, FunctionEntry, FunctionParts, FunctionRecord, InactiveRole};
use weir_sandbox::SandboxConfig;
use weir_sandbox::component::ComponentLoadError;
use weir_sandbox::component::compile::CompileError;
use weir_sandbox::instance::Needs;
use weir_telemetry::Phase;
use weir_telemetry::logs::now_ms;
use weir_types::api::{Deployed, EventKind, EventResource, FunctionVersion};
use weir_types::{
    ErrorCode, FunctionId, FunctionKind, FunctionManifest, Limits, Name, TenantId, Version,
    check_outbound_host,
};
use weir_workflow::TargetKind;

/// A component that can start on this node.
struct Ready {
    kind: FunctionKind,
    imports: Vec<String>,
    needs: Needs,
    compile_time_ms: u64,
}

/// The parts of the answers that do not depend on the version.
struct Answers<'a> {
    node: &'a NodeState,
    imports: Vec<String>,
    denied: Vec<String>,
    compile_time_ms: u64,
}

impl Answers<'_> {
    fn answer(&self, function: FunctionVersion, created: bool, entry: Option<&FunctionEntry>) -> Deployed {
        let canary = entry.and_then(|entry| entry.head.canary);
        let shadow = entry.and_then(|entry| entry.head.shadow);
        let shadow = shadow.filter(|shadow| shadow.version == function.version);
        let is_preview = entry.is_some_and(|entry| !entry.serves(function.version));
        Deployed {
            removed_versions: Vec::new(),
            visible_on: Vec::new(),
            not_visible_on: Vec::new(),
            canary: canary.filter(|canary| canary.version == function.version),
            shadow,
            is_preview,
            created,
            path: match is_preview || shadow.is_some() {
                true => format!("/fn/{}@{}/", function.name, function.version),
                false => format!("/fn/{}/", function.name),
            },
            compile_time_ms: self.compile_time_ms,
            denied_imports: self.denied.clone(),
            warnings: advice(self.node, &function, &self.imports),
            function,
        }
    }
}

/// `PUT /v1/functions/{name}`.
pub(crate) async fn deploy(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Deployed>, ApiError> {
    let name = parse_name(&name)?;
    let deployed = match deploy_version(&node, &caller, &name, request).await? {
        Upload::DryRun(answer) => return Ok(Json(answer)),
        Upload::Deployed(answer) => answer,
    };
    let version = deployed.function.version;
    let Visibility { visible_on, not_visible_on } =
        await_others::<FunctionParts>(&node, &caller.tenant, &name, version).await;
    Ok(Json(Deployed { visible_on, not_visible_on, ..deployed }))
}

/// The answer to an upload.
enum Upload {
    DryRun(Deployed),
    Deployed(Deployed),
}

/// Deploys an upload, unless a version with the same role is the same.
async fn deploy_version(
    node: &Arc<NodeState>,
    caller: &Caller,
    name: &Name,
    request: Request,
) -> Result<Upload, ApiError> {
    let tenant = &caller.tenant;
    refuse_name_of_workflow(node, tenant, name)?;
    node.check_names(tenant, name)?;
    let ReceivedUpload { manifest, options, staged, place: _place } =
        uploads::receive(node, caller, request, &node.blobs, node.config.sandbox.component_bytes_max).await?;
    check_caps(&manifest, node)?;
    let component = ComponentSource::find(node, tenant, name, staged, options.digest)?;
    let Ready { kind, imports, needs, compile_time_ms } = make_ready(node, tenant, &component).await?;
    check_needs(needs, &manifest.limits)?;
    if options.strict {
        check_imports(&imports, &manifest)?;
    }
    check_public(kind, &manifest)?;
    secrets::check_grants(node, tenant, &manifest).await?;
    let denied = denied_imports(&imports, &manifest);
    let answers = Answers { node, imports: imports.clone(), denied, compile_time_ms };
    let record = FunctionRecord {
        version: Version(1),
        kind,
        digest: component.digest(),
        component_bytes: component.bytes(),
        deployed_at_ms: now_ms(),
        imports,
        manifest,
    };
    let before = node.registry.get(tenant, name.as_str());
    let role = options.role();
    if options.dry_run {
        return Ok(Upload::DryRun(dry_run(&answers, tenant, name, before.as_deref(), record, role)));
    }
    let kept = component.keep(node).await?;
    if let Some(entry) = &before
        && let Some(active) = entry.active().filter(|active| is_same(active, &record))
    {
        return Ok(Upload::Deployed(answers.answer(entry.describe(active), false, Some(entry))));
    }
    if let (Some(entry), Some(role)) = (&before, role)
        && let Some(same) = same_beside(entry, &record, role)
    {
        let same = same.clone();
        let entry = set_role(node, tenant, entry, same.record.version, role).await?;
        return Ok(Upload::Deployed(answers.answer(entry.describe(&same), false, Some(&entry))));
    }
    let record = move |version| FunctionRecord { version, ..record.clone() };
    let deployment = match role {
        Some(role) => node.registry.deploy_beside(tenant, name, kept, record, role).await?,
        None => node.registry.deploy(tenant, name, kept, record).await?,
    };
    let entry = find::<FunctionParts>(node, caller, name)?;
    note_deployment(node, tenant, before.as_deref(), &entry, deployment.id.version);
    node.sweep_instances();
    let removed_versions = remove_old_versions(node, tenant, name).await;
    let entry = find::<FunctionParts>(node, caller, name)?;
    let answer = answers.answer(entry.describe(&deployment), true, Some(&entry));
    Ok(Upload::Deployed(Deployed { removed_versions, ..answer }))
}

/// The answer to a deploy that changes nothing: the version that the name has already, or else the
/// version that a deploy would create.
fn dry_run(
    answers: &Answers<'_>,
    tenant: &TenantId,
    name: &Name,
    before: Option<&FunctionEntry>,
    record: FunctionRecord,
    role: Option<InactiveRole>,
) -> Deployed {
    let active = before.and_then(FunctionEntry::active).filter(|version| is_same(version, &record));
    let beside = || same_beside(before?, &record, role?);
    if let (Some(same), Some(entry)) = (active.or_else(beside), before) {
        return answers.answer(entry.describe(same), false, before);
    }
    let version = before.map_or(Version(1), |entry| entry.head.next);
    let function = FunctionRecord { version, ..record }.describe(tenant, name, false);
    answers.answer(function, false, None)
}

/// The version with the component and the manifest of `record` that a deploy with `role` repeats: the
/// canary, the shadow, or for a preview the newest.
fn same_beside<'a>(
    entry: &'a FunctionEntry,
    record: &FunctionRecord,
    role: InactiveRole,
) -> Option<&'a Arc<DeployedFunction>> {
    let is_same = |version: &&Arc<DeployedFunction>| is_same(version, record);
    match role {
        InactiveRole::Canary { .. } => entry.canary().filter(is_same),
        InactiveRole::Shadow { .. } => entry.shadow().filter(is_same),
        InactiveRole::Preview => entry.versions.values().rev().find(is_same),
    }
}

/// Gives the canary or the shadow `version` another share of the calls, unless it has the share.
async fn set_role(
    node: &NodeState,
    tenant: &TenantId,
    before: &Arc<FunctionEntry>,
    version: Version,
    role: InactiveRole,
) -> Result<Arc<FunctionEntry>, ApiError> {
    let name = &before.name;
    let entry = match role {
        InactiveRole::Canary { share, now_ms }
            if !before.head.canary.is_some_and(|canary| share.is_of(canary)) =>
        {
            node.registry.set_share(tenant, name, version, (share, now_ms)).await?
        }
        InactiveRole::Shadow { share, now_ms }
            if !before.head.shadow.is_some_and(|shadow| share.is_of(shadow)) =>
        {
            node.registry.set_shadow_share(tenant, name, version, (share, now_ms)).await?
        }
        _ => return Ok(before.clone()),
    };
    note_deployment(node, tenant, Some(before), &entry, version);
    Ok(entry)
}

/// Whether a version has the component and the manifest of `record`.
fn is_same(version: &DeployedFunction, record: &FunctionRecord) -> bool {
    version.record.digest == record.digest && version.record.manifest == record.manifest
}

/// Records the deployment of `version`, and the start and the end of canaries by it.
fn note_deployment(
    node: &NodeState,
    tenant: &TenantId,
    before: Option<&FunctionEntry>,
    entry: &FunctionEntry,
    version: Version,
) {
    let name = &entry.name;
    if before.is_none_or(|before| !before.versions.contains_key(&version)) {
        tracing::info!(%tenant, function = %name, %version, "deployed");
        let text = format!("function {name} has version {version}");
        node.note(EventKind::Deployed, EventResource::Function, tenant, name, text);
    }
    let is_canary = |of: Version| entry.head.canary.is_some_and(|canary| canary.version == of);
    if let Some(ended) =
        before.and_then(|before| before.head.canary).filter(|ended| !is_canary(ended.version))
    {
        let text = format!("canary {} of function {name} was replaced by version {version}", ended.version);
        node.note_canary(EventKind::CanaryRolledBack, (CanaryOf::Function, tenant, name), text);
    }
    if let Some(canary) = entry.head.canary.filter(|canary| canary.version == version) {
        let active = entry.head.active;
        let percent = canary.percent;
        let text = format!(
            "canary {version} of function {name} gets {percent} % of the calls, and version {active} the others"
        );
        node.note_canary(EventKind::CanaryStarted, (CanaryOf::Function, tenant, name), text);
    }
}

/// Removes the versions above `sandbox.versions_keep`. The deploy has succeeded already, so a failure
/// is only logged; the next deploy tries again.
async fn remove_old_versions(node: &NodeState, tenant: &TenantId, name: &Name) -> Vec<Version> {
    let catalog = node.dispatch.catalog.clone();
    let is_used = move |deployment: &DeployedFunction| {
        let FunctionId { tenant, name, version } = &deployment.id;
        deployment.gate.is_busy() || catalog.is_used(TargetKind::Function, tenant, name, *version)
    };
    match node.registry.prune(tenant, name, node.config.sandbox.versions_keep, is_used).await {
        Ok(removed) if removed.is_empty() => removed,
        Ok(removed) => {
            tracing::info!(%tenant, function = %name, versions = removed.len(), "removed old versions");
            let text = format!("versions_keep: removed {} old versions of function {name}", removed.len());
            node.note(EventKind::Removed, EventResource::Function, tenant, name, text);
            node.sweep_components().await;
            removed
        }
        Err(error) => {
            tracing::warn!(%tenant, function = %name, %error, "removing old versions failed");
            Vec::new()
        }
    }
}

/// Compiles the component, unless a deploy of any function of any tenant has already left a usable
/// artifact.
async fn make_ready(
    node: &NodeState,
    tenant: &TenantId,
    component: &ComponentSource,
) -> Result<Ready, ApiError> {
    let digest = component.digest();
    node.dispatch.recompiler.forgive(digest);
    if let Some(FunctionRecord { kind, imports, .. }) = node.registry.find(digest)
        && let Ok(needs) = node.components.try_out(digest, kind).await
    {
        return Ok(Ready { kind, imports, needs, compile_time_ms: 0 });
    }
    let file = component.file(node).await?;
    let turn = node.permits.compiles.turn(tenant).await?;
    let compiled = node.components.compile(digest, &file).await?;
    drop(turn);
    node.metrics.phase(Phase::Compile, Duration::from_millis(compiled.compile_time_ms));
    node.metrics.compiled_with_cache(compiled.cache.hits, compiled.cache.misses);
    let needs = node.components.try_out(digest, compiled.kind).await.map_err(|error| match error {
        ComponentLoadError::Broken(_) => CompileError::unfit(&error).into(),
        ComponentLoadError::Missing => ApiError::internal(&error),
    })?;
    Ok(Ready {
        kind: compiled.kind,
        imports: compiled.imports,
        needs,
        compile_time_ms: compiled.compile_time_ms,
    })
}

/// Rejects a component with imports that its manifest does not grant.
fn check_imports(imports: &[String], manifest: &FunctionManifest) -> Result<(), ApiError> {
    let ungranted = ungranted_imports(imports, manifest);
    if ungranted.is_empty() {
        return Ok(());
    }
    let text =
        format!("--strict: the component imports what its manifest does not grant: {}", ungranted.join(", "));
    Err(ApiError::new(ErrorCode::NotGranted, text))
}

/// Rejects a public tensor function.
fn check_public(kind: FunctionKind, manifest: &FunctionManifest) -> Result<(), ApiError> {
    if !manifest.public || kind != FunctionKind::Tensor {
        return Ok(());
    }
    let text = "a tensor function cannot be public: its callers may name objects of the tenant; put an HTTP function in front of it";
    Err(ApiError::new(ErrorCode::InvalidManifest, text))
}

/// Rejects a manifest that asks for more than the node allows.
fn check_caps(manifest: &FunctionManifest, node: &NodeState) -> Result<(), ApiError> {
    cached::check_ttl(manifest.cache_ttl_ms)?;
    crate::manifest::check_slo(manifest.slo_ms)?;
    for host in &manifest.outbound_hosts {
        check_outbound_host(host)
            .map_err(|error| ApiError::new(ErrorCode::InvalidManifest, format!("outbound_hosts: {error}")))?;
    }
    let SandboxConfig { limit_caps, reuse_caps, .. } = &node.config.sandbox;
    let over_limit = manifest.limits.first_over(limit_caps).map(|over| ("limits", over));
    let over_reuse = || Some(("reuse", manifest.reuse.as_ref()?.first_over(reuse_caps)?));
    let Some((table, (name, asked, cap))) = over_limit.or_else(over_reuse) else { return Ok(()) };
    if asked == 0 {
        return Err(ApiError::new(ErrorCode::InvalidManifest, format!("{table}.{name} must be at least 1")));
    }
    let text = format!("{table}.{name} = {asked} is over this node's cap of {cap}");
    Err(ApiError::new(ErrorCode::LimitOverCap, text))
}

/// Rejects a component that needs more at its start than the manifest allows.
fn check_needs(needs: Needs, limits: &Limits) -> Result<(), ApiError> {
    let over = |what: &str, needed: u64, name: &str, allowed: u64| {
        let text = format!(
            "the component begins with {what} of {needed}, and limits.{name} allows {allowed}: raise that, or build the component to begin with less"
        );
        Err(ApiError::new(ErrorCode::LimitOverCap, text))
    };
    let Needs { memory_bytes, table_elements } = needs;
    if memory_bytes > limits.memory_bytes {
        return over("a memory (in bytes)", memory_bytes, "memory_bytes", limits.memory_bytes);
    }
    if table_elements > limits.table_elements.into() {
        return over("a table (in elements)", table_elements, "table_elements", limits.table_elements.into());
    }
    Ok(())
}
