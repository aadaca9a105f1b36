//! `/v1/workflows`: deploying workflows. `versions.rs` has the other routes.

use super::Caller;
use super::body::small;
use super::error::ApiError;
use super::versions::{VersionedResource, await_others, find, missing, parse_name};
use super::visibility::{Collection, Visibility};
use crate::NodeState;
use crate::state::NodeExtractor;
use axum::extract::{Path, Query, Request, State};
use axum::{Extension, Json};
use serde::Deserialize;
use std::num::NonZeroU64;
use std::sync::Arc;
use weir_control::registry::{ActiveVersion, Registry};
use weir_control::workflows::{Catalog, DeployedWorkflow, WorkflowEntry, WorkflowRecord, Workflows};
use weir_telemetry::logs::now_ms;
use weir_types::api::{self, EventKind, EventResource, WorkflowDeployed, WorkflowVersion};
use weir_types::{Cost, ErrorCode, FunctionId, Name, TenantId, Version};
use weir_workflow::{DOCUMENT_BYTES_MAX, Document, Plan, StepAction, TargetKind};

/// Size limit of a record in the datastore.
const RECORD_BYTES_MAX: usize = 512 << 10;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WorkflowOptions {
    /// Checks the workflow without deploying it.
    dry_run: bool,
    /// Objectives of the calls, which override the objectives in the document.
    slo_ms: Option<NonZeroU64>,
    cost_slo: Option<Cost>,
}

/// `PUT /v1/workflows/{name}`: a document in TOML or JSON.
pub(super) async fn deploy(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Query(options): Query<WorkflowOptions>,
    request: Request,
) -> Result<Json<WorkflowDeployed>, ApiError> {
    let name = parse_name(&name)?;
    let deployed = deploy_version(&node, &caller, &name, &options, request).await?;
    if options.dry_run {
        return Ok(Json(deployed));
    }
    let version = deployed.workflow.version;
    let Visibility { visible_on, not_visible_on } =
        await_others::<Workflows>(&node, &caller.tenant, &name, version).await;
    Ok(Json(WorkflowDeployed { visible_on, not_visible_on, ..deployed }))
}

/// Deploys a document, unless the active version is the same.
async fn deploy_version(
    node: &Arc<NodeState>,
    caller: &Caller,
    name: &Name,
    options: &WorkflowOptions,
    request: Request,
) -> Result<WorkflowDeployed, ApiError> {
    let document = small(request.into_body(), DOCUMENT_BYTES_MAX).await?;
    check_name(node, &caller.tenant, name)?;
    let objective = (options.slo_ms, options.cost_slo);
    let catalog = node.dispatch.catalog.clone();
    let tenant = caller.tenant.clone();
    // Checking every case of a large workflow takes milliseconds.
    let record =
        node.json(DOCUMENT_BYTES_MAX, move || record(&catalog, &tenant, &document, &objective)).await?;
    let entry = node.workflows.get(&caller.tenant, name.as_str());
    let (active, head) = match &entry {
        Some(entry) => (entry.active(), entry.head.next),
        None => (None, Version(1)),
    };
    let answer = |workflow, created| WorkflowDeployed {
        workflow,
        created,
        path: format!("/v2/models/{name}/infer"),
        visible_on: Vec::new(),
        not_visible_on: Vec::new(),
    };
    if let (Some(entry), Some(active)) = (&entry, active)
        && active.record.is_same_as(&record)
    {
        let workflow = Workflows::describe(node, entry, active);
        return Ok(answer(workflow, false));
    }
    if options.dry_run {
        let tried = node.workflows.try_out(&caller.tenant, name, WorkflowRecord { version: head, ..record });
        let mut workflow =
            Workflows::describe(node, &tried, tried.active().ok_or_else(|| missing::<Workflows>(name))?);
        workflow.active = false;
        return Ok(answer(workflow, false));
    }
    node.blobs.check_room(0).await?;
    node.check_names(&caller.tenant, name)?;
    let made = move |version| WorkflowRecord { version, ..record.clone() };
    let workflow = node.workflows.deploy(&caller.tenant, name, (), made).await?;
    tracing::info!(tenant = %caller.tenant, workflow = %name, version = %workflow.id.version, "deployed");
    let text = format!("workflow {name} has version {}", workflow.id.version);
    node.note(EventKind::Deployed, EventResource::Workflow, &caller.tenant, name, text);
    let entry = find::<Workflows>(node, caller, name)?;
    Ok(answer(Workflows::describe(node, &entry, &workflow), true))
}

/// Builds the record of a document, if the document is a workflow.
fn record(
    catalog: &Catalog,
    tenant: &TenantId,
    bytes: &[u8],
    (slo_ms, cost_slo): &(Option<NonZeroU64>, Option<Cost>),
) -> Result<WorkflowRecord, ApiError> {
    let invalid =
        |error: &dyn std::fmt::Display| ApiError::new(ErrorCode::InvalidWorkflow, error.to_string());
    let document = Document::parse(bytes).map_err(|error| invalid(&error))?;
    let pin = |_: &str, wanted: &_| catalog.pin(tenant, wanted).map(Some);
    let plan = Plan::new(&document, &pin).map_err(|error| invalid(&error))?;
    check_hedges(catalog, tenant, &plan)?;
    let pinned = plan.pinned().map(|(step, pinned)| (step.to_owned(), pinned.clone())).collect();
    let record = WorkflowRecord {
        version: Version(1),
        deployed_at_ms: now_ms(),
        slo_ms: slo_ms.or(document.slo_ms).map(NonZeroU64::get),
        cost_slo: cost_slo.or(document.cost_slo),
        document: String::from_utf8_lossy(bytes).into_owned(),
        pinned,
    };
    let bytes = serde_json::to_vec(&record).map_or(usize::MAX, |record| record.len());
    if bytes > RECORD_BYTES_MAX {
        let text = format!(
            "the workflow, with the inputs and outputs of its targets, takes {bytes} bytes, and the maximum is {RECORD_BYTES_MAX}; use other workflows as steps"
        );
        return Err(ApiError::new(ErrorCode::InvalidWorkflow, text));
    }
    Ok(record)
}

/// Rejects a hedged step whose function must not run twice.
fn check_hedges(catalog: &Catalog, tenant: &TenantId, plan: &Plan) -> Result<(), ApiError> {
    for step in plan.steps().iter().filter(|step| step.is_hedged) {
        let StepAction::Run(Some(pinned)) = &step.action else { continue };
        if let Some(FunctionId { name, version, .. }) = catalog.harmful_twice(tenant, pinned) {
            let text = format!(
                "step {}: hedge may run function {name}:{version} twice, and its manifest does not say that this does no harm; deploy it with idempotent = true (`weir deploy --idempotent`), or leave hedge out",
                step.name
            );
            return Err(ApiError::new(ErrorCode::InvalidWorkflow, text));
        }
    }
    Ok(())
}

/// Rejects a workflow name that is in use: `/v2/models/NAME` and `models.open(NAME)` must be
/// unambiguous.
fn check_name(node: &NodeState, tenant: &TenantId, name: &Name) -> Result<(), ApiError> {
    let taken = |what: &str| {
        let text = format!("a {what} {name} exists already; choose another name for the workflow");
        Err(ApiError::new(ErrorCode::Conflict, text))
    };
    if node.registry.get(tenant, name.as_str()).is_some() {
        return taken("function");
    }
    if !node.models.versions(tenant, name).is_empty() {
        return taken("model");
    }
    Ok(())
}

/// Rejects a function or model with the name of a workflow.
pub(super) fn refuse_name_of_workflow(
    node: &NodeState,
    tenant: &TenantId,
    name: &Name,
) -> Result<(), ApiError> {
    if node.workflows.get(tenant, name.as_str()).is_none() {
        return Ok(());
    }
    let text = format!("a workflow {name} exists already; choose another name");
    Err(ApiError::new(ErrorCode::Conflict, text))
}

/// Rejects the deletion of a target that a workflow runs.
pub(super) fn refuse_if_used(
    node: &NodeState,
    kind: TargetKind,
    tenant: &TenantId,
    name: &Name,
    version: Option<Version>,
) -> Result<(), ApiError> {
    let Some(user) = node.dispatch.catalog.user_of(kind, tenant, name, version) else { return Ok(()) };
    let text = format!("workflow {user} runs it; delete that version of the workflow first");
    Err(ApiError::new(ErrorCode::Conflict, text))
}

impl VersionedResource for Workflows {
    type Summary = api::Workflow;
    type Version = WorkflowVersion;

    const TARGET: TargetKind = TargetKind::Workflow;
    const COLLECTION: Collection = Collection::Workflows;

    fn registry(node: &NodeState) -> &Arc<Registry<Self>> {
        &node.workflows
    }

    fn describe(node: &NodeState, entry: &WorkflowEntry, version: &DeployedWorkflow) -> WorkflowVersion {
        entry.describe(version, node.dispatch.catalog.unready(version))
    }

    fn summary(active: WorkflowVersion, versions: Vec<Version>, head: &ActiveVersion) -> api::Workflow {
        api::Workflow { active, versions, aliases: head.aliases.clone() }
    }
}
