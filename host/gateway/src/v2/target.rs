//! Resolution of the names in paths.

use super::super::canary::VersionChoice;
use super::super::error::ApiError;
use super::super::lookups::LookupFor;
use super::super::permission::Caller;
use super::super::versions::{parse_name, parse_version_ref};
use super::cached::Cached;
use crate::NodeState;
use http::HeaderMap;
use serde::Deserialize;
use std::sync::Arc;
use weir_call::Objective;
use weir_control::models::{ModelEntry, ModelsError};
use weir_control::registry::{DeployedFunction, DeploymentKind, RegistryEntry, RegistryError};
use weir_control::workflows::DeployedWorkflow;
use weir_dispatch::{CallCtx, ModelTarget, Target};
use weir_inference::BatchRules;
use weir_telemetry::Served;
use weir_types::{ErrorCode, FunctionKind, Name, Port, Signature, TenantId, Version, VersionRef};

/// Name in a path, with an optional version, by number or alias.
#[derive(Debug, Deserialize)]
pub(crate) struct At {
    name: String,
    #[serde(default)]
    version: Option<String>,
}

/// Target of an inference.
pub(crate) enum NamedTarget {
    Function(Arc<DeployedFunction>),
    Model(Arc<ModelEntry>),
    Workflow(Arc<DeployedWorkflow>),
}

impl NamedTarget {
    /// Returns the tenant that owns the target.
    pub(crate) fn tenant(&self) -> &TenantId {
        match self {
            Self::Function(deployment) => &deployment.id.tenant,
            Self::Model(entry) => &entry.source.id().tenant,
            Self::Workflow(workflow) => &workflow.id.tenant,
        }
    }

    /// Returns the owner's objective.
    pub(crate) fn objective(&self) -> Objective {
        match self {
            Self::Function(deployment) => (&*deployment.manifest).into(),
            Self::Model(entry) => (&entry.record.manifest).into(),
            Self::Workflow(workflow) => (&workflow.record).into(),
        }
    }

    /// Returns the time limit of a call.
    pub(crate) fn time_ms_max(&self, node: &NodeState) -> u64 {
        match self {
            Self::Function(deployment) => deployment.manifest.limits.deadline_ms,
            Self::Model(_) | Self::Workflow(_) => node.config.gateway.infer_wall_ms_max,
        }
    }

    /// Returns the target of `call`, with an account for the call of a function.
    pub(crate) fn into_target(self, node: &NodeState, call: &CallCtx) -> Target {
        match self {
            Self::Function(deployment) => Target::Function(node.dispatch.function_target(call, deployment)),
            Self::Model(entry) => Target::Model(ModelTarget::new(entry, None)),
            Self::Workflow(workflow) => Target::Workflow(workflow),
        }
    }

    /// Returns the rules for batching requests; none if requests are not batched.
    pub(crate) fn batching(&self) -> Option<BatchRules> {
        let Self::Model(entry) = self else { return None };
        BatchRules::for_signature(&entry.source.prepared.signature, &entry.source.batching).ok().flatten()
    }
}

impl At {
    /// Creates a path from a name, and a version that may be empty for none.
    pub(crate) fn new(name: String, version: String) -> Self {
        Self { name, version: Some(version).filter(|version| !version.is_empty()) }
    }

    /// Whether the path names a version.
    pub(crate) fn has_version(&self) -> bool {
        self.version.is_some()
    }

    /// Returns the version that the path names, if any.
    pub(super) fn version(&self) -> Result<Option<VersionRef>, ApiError> {
        self.version.as_deref().map(parse_version_ref).transpose()
    }

    /// Finds a target that the caller may use: the version that the path names, or else the active
    /// version. Looks unknown targets up, because another node may have deployed them a moment ago.
    pub(crate) async fn find(&self, node: &NodeState, caller: &Caller) -> Result<NamedTarget, ApiError> {
        self.look_for(node, caller, None).await
    }

    /// Finds the target of one call, which may be a canary.
    pub(crate) async fn find_for_call(
        &self,
        node: &NodeState,
        caller: &Caller,
        choice: VersionChoice<'_>,
    ) -> Result<NamedTarget, ApiError> {
        self.look_for(node, caller, Some(choice)).await
    }

    /// Like [`find`](Self::find), among the targets that this node knows.
    pub(crate) fn find_known(&self, node: &NodeState, caller: &Caller) -> Result<NamedTarget, ApiError> {
        self.resolve(node, caller, None)
    }

    async fn look_for(
        &self,
        node: &NodeState,
        caller: &Caller,
        choice: Option<VersionChoice<'_>>,
    ) -> Result<NamedTarget, ApiError> {
        let mut found = self.resolve(node, caller, choice);
        if let Err(error) = &found
            && [ErrorCode::ModelNotFound, ErrorCode::VersionNotFound].contains(&error.code)
            && caller.covers(&self.name)
            && node.look_up(&caller.tenant, &parse_name(&self.name)?, LookupFor::Tenant).await?
        {
            found = self.resolve(node, caller, choice);
        }
        if let Ok(NamedTarget::Workflow(workflow)) = &found {
            node.look_up_targets(workflow).await?;
        }
        found
    }

    fn resolve(
        &self,
        node: &NodeState,
        caller: &Caller,
        choice: Option<VersionChoice<'_>>,
    ) -> Result<NamedTarget, ApiError> {
        let tenant = &caller.tenant;
        let name = parse_name(&self.name)?;
        if !caller.covers(name.as_str()) {
            return Err(missing(&name));
        }
        let named = self.version()?;
        let named = named.as_ref();
        let function = node.registry.get(tenant, name.as_str());
        let deployment = function.as_ref().and_then(|function| function.active());
        if let (Some(function), Some(active)) = (&function, deployment)
            && active.record.kind == FunctionKind::Tensor
        {
            let deployment = select(function, active, named, choice)?;
            if deployment.record.kind != FunctionKind::Tensor {
                return Err(is_http(&name));
            }
            return Ok(NamedTarget::Function(deployment.clone()));
        }
        if caller.is_limited() {
            return Err(if function.is_some() { is_http(&name) } else { missing(&name) });
        }
        if let Some(entry) = node.workflows.get(tenant, name.as_str())
            && let Some(active) = entry.active()
        {
            let workflow = select(&entry, active, named, choice)?;
            return Ok(NamedTarget::Workflow(workflow.clone()));
        }
        let is_numbered = named.is_some_and(|named| named.number().is_some());
        let fixed = (!is_numbered).then(|| choice?.fixed()).flatten();
        if let Some(fixed) = fixed
            && let Ok(entry) = node.models.get(tenant, &name, Some(fixed))
        {
            return Ok(NamedTarget::Model(entry));
        }
        let version = node.models.resolve(tenant, &name, named);
        let found = version.and_then(|version| match choice {
            Some(choice) => node.models.for_run(tenant, &name, version, choice.key()),
            None => node.models.get(tenant, &name, version),
        });
        match found {
            Ok(entry) => Ok(NamedTarget::Model(entry)),
            Err(ModelsError::NoModel(_)) if function.is_some() => Err(is_http(&name)),
            Err(ModelsError::NoModel(_)) => Err(missing(&name)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Selects the version that a path names, or that a call uses, or else the active version.
fn select<'e, K: DeploymentKind>(
    entry: &'e RegistryEntry<K>,
    active: &'e Arc<K::Deployment>,
    named: Option<&VersionRef>,
    choice: Option<VersionChoice<'_>>,
) -> Result<&'e Arc<K::Deployment>, RegistryError> {
    let chosen = choice.and_then(|choice| choice.of_version(named).choose(entry));
    match (chosen, entry.resolve(named)) {
        (Some(chosen), _) => Ok(chosen),
        (None, resolved) => resolved?.map_or(Ok(active), |version| entry.require(version)),
    }
}

fn missing(name: &Name) -> ApiError {
    let text = format!("there is no model, tensor function or workflow {name}");
    ApiError::new(ErrorCode::ModelNotFound, text)
}

fn is_http(name: &Name) -> ApiError {
    let text =
        format!("{name} is an HTTP function, which takes any request at /fn/{name}/ and no tensors here");
    ApiError::new(ErrorCode::ModelNotFound, text)
}

impl NamedTarget {
    /// Lists all targets that the caller may use by name; each is listed with its active version.
    pub(crate) fn list(node: &NodeState, caller: &Caller) -> Vec<Self> {
        let tenant = &caller.tenant;
        let functions =
            node.registry.list(tenant).into_iter().filter_map(|function| function.active().cloned());
        let tensor = functions.filter(|deployment| deployment.record.kind == FunctionKind::Tensor);
        let tensor = tensor.filter(|deployment| caller.covers(deployment.id.name.as_str()));
        let mut all: Vec<_> = tensor.map(Self::Function).collect();
        if caller.is_limited() {
            return all;
        }
        let workflows = node.workflows.list(tenant);
        all.extend(workflows.iter().filter_map(|entry| Some(Self::Workflow(entry.active()?.clone()))));
        let is_hidden =
            |entry: &Arc<ModelEntry>| all.iter().any(|other| other.name() == &entry.source.id().name);
        let models: Vec<_> = node.models.list(tenant).into_iter().filter(|entry| !is_hidden(entry)).collect();
        all.extend(models.into_iter().map(Self::Model));
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    pub(crate) fn name(&self) -> &Name {
        match self {
            Self::Function(deployment) => &deployment.id.name,
            Self::Model(entry) => &entry.source.id().name,
            Self::Workflow(workflow) => &workflow.id.name,
        }
    }

    pub(crate) fn version(&self) -> Version {
        match self {
            Self::Function(deployment) => deployment.id.version,
            Self::Model(entry) => entry.source.id().version,
            Self::Workflow(workflow) => workflow.id.version,
        }
    }

    /// Returns all callable versions; for a function or workflow, only the active version.
    pub(crate) fn versions(&self, node: &NodeState) -> Vec<Version> {
        match self {
            Self::Function(deployment) => vec![deployment.id.version],
            Self::Model(entry) => node.models.versions(&entry.source.id().tenant, self.name()),
            Self::Workflow(workflow) => vec![workflow.id.version],
        }
    }

    /// Returns the inputs and outputs. A function declares none, since it may take and return any
    /// tensors.
    pub(crate) fn ports(&self) -> (&[Port], &[Port]) {
        match self {
            Self::Function(_) => (&[], &[]),
            Self::Model(entry) => {
                let Signature { inputs, outputs } = &entry.source.prepared.signature;
                (inputs, outputs)
            }
            Self::Workflow(workflow) => match workflow.plan() {
                Ok(plan) => (&plan.signature().inputs, &plan.signature().outputs),
                Err(_) => (&[], &[]),
            },
        }
    }

    /// Whether an output has labels.
    pub(crate) fn has_labels(&self, output: &str) -> bool {
        matches!(self, Self::Model(entry) if entry.record.manifest.labels.get(output).is_some())
    }

    /// Returns the reason why the target cannot be called now, if any: a workflow needs its
    /// targets, and a model needs a device, which another node of a cluster may have.
    pub(crate) fn unready(&self, node: &NodeState) -> Option<String> {
        match self {
            Self::Function(_) => None,
            Self::Model(entry) if node.cluster.is_none() => node.models.nowhere(entry),
            Self::Model(_) => None,
            Self::Workflow(workflow) => node.dispatch.catalog.unready(workflow),
        }
    }

    /// Returns the response cache for a request with these headers; none if the target has no cache
    /// or the caller bypasses it.
    pub(super) fn cached(&self, node: &NodeState, headers: &HeaderMap) -> Option<Cached> {
        let (answers, ttl_ms) = match self {
            Self::Function(deployment) => (&deployment.answers, deployment.manifest.cache_ttl_ms),
            Self::Model(entry) => (&entry.answers, entry.record.manifest.cache_ttl_ms),
            Self::Workflow(_) => return None,
        };
        Cached::for_request(node, answers, ttl_ms, headers)
    }

    /// Returns the statistics of the target.
    pub(crate) fn served(&self, node: &NodeState) -> Served {
        match self {
            Self::Function(deployment) => node.dispatch.served(deployment),
            Self::Model(entry) => entry.served.clone(),
            Self::Workflow(workflow) => workflow.served.clone(),
        }
    }
}
