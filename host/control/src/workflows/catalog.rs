//! The targets that a tenant's workflow steps can run, and the workflows that use each target.

use super::{DeployedWorkflow, WorkflowRegistry};
use crate::models::{ModelChoices, ModelEntry, Models};
use crate::registry::{DeployedFunction, Registry};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_scheduler::ModelDemand;
use weir_types::{FunctionId, FunctionKind, ModelId, ModelRef, Name, TenantId, Version, VersionRef};
use weir_workflow::{Pinned, TargetKind};

/// The number of a model's users that a message lists.
const USERS_LISTED_MAX: usize = 16;

/// Everything that can be run by name. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    /// The deployed functions.
    pub functions: Arc<Registry>,
    /// The pushed models.
    pub models: Arc<Models>,
    /// The deployed workflows.
    pub workflows: Arc<WorkflowRegistry>,
}

/// The target of a step, as found.
pub enum StepTarget {
    /// A version of a model.
    Model(Arc<ModelEntry>),
    /// A version of a tensor function.
    Function(Arc<DeployedFunction>),
    /// A version of a workflow.
    Workflow(Arc<DeployedWorkflow>),
}

impl Catalog {
    /// Pins the target that `wanted` names now, also if it names the target by an alias. Without a version, this is the active version of a
    /// tensor function, workflow or model. A function takes precedence
    /// over a model of the same name, as everywhere.
    pub fn pin(&self, tenant: &TenantId, wanted: &ModelRef) -> Result<Pinned, String> {
        let ModelRef { name, version } = wanted;
        if let Some(entry) = self.functions.get(tenant, name.as_str())
            && let Some(active) = entry.active()
            && active.record.kind == FunctionKind::Tensor
        {
            let version = entry.resolve(version.as_ref()).map_err(|error| error.to_string())?;
            let deployment = match version {
                None => active,
                Some(version) => entry.require(version).map_err(|error| error.to_string())?,
            };
            if deployment.record.kind != FunctionKind::Tensor {
                return Err(format!("{wanted} is an HTTP function, which takes no tensors"));
            }
            return Ok(pinned(TargetKind::Function, &StepTarget::Function(deployment.clone())));
        }
        if let Some(entry) = self.workflows.get(tenant, name.as_str()) {
            let version = entry.resolve(version.as_ref()).map_err(|error| error.to_string())?;
            let workflow = match version {
                None => entry.active().ok_or_else(|| format!("workflow {name} has no active version"))?,
                Some(version) => entry.require(version).map_err(|error| error.to_string())?,
            };
            if let Some(why) = self.unready(workflow) {
                return Err(format!("workflow {wanted} cannot be run: {why}"));
            }
            return Ok(pinned(TargetKind::Workflow, &StepTarget::Workflow(workflow.clone())));
        }
        let is_http = self.functions.get(tenant, name.as_str()).is_some();
        let version = self.models.resolve(tenant, name, version.as_ref());
        match version.and_then(|version| self.models.get(tenant, name, version)) {
            Ok(entry) => Ok(pinned(TargetKind::Model, &StepTarget::Model(entry))),
            Err(_) if self.models.versions(tenant, name).is_empty() && is_http => {
                Err(format!("{wanted} is an HTTP function, which takes no tensors"))
            }
            Err(_) if self.models.versions(tenant, name).is_empty() => {
                Err(format!("there is no model, tensor function or workflow {name}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Finds a pinned target. Fails if it is missing or has changed.
    pub fn find(&self, tenant: &TenantId, wanted: &Pinned) -> Result<StepTarget, String> {
        let Pinned { kind, name, version, .. } = wanted;
        let found = match kind {
            TargetKind::Model => self.models.get(tenant, name, Some(*version)).ok().map(StepTarget::Model),
            TargetKind::Function => {
                let entry = self.functions.get(tenant, name.as_str());
                entry.and_then(|entry| entry.versions.get(version).cloned()).map(StepTarget::Function)
            }
            TargetKind::Workflow => {
                let entry = self.workflows.get(tenant, name.as_str());
                entry.and_then(|entry| entry.versions.get(version).cloned()).map(StepTarget::Workflow)
            }
        };
        let noun = noun(*kind);
        let found = found.ok_or_else(|| format!("{noun} {name}:{version} no longer exists"))?;
        if found.digest() != wanted.digest {
            return Err(format!("{noun} {name}:{version} has changed since the workflow was deployed"));
        }
        Ok(found)
    }

    /// The reason why a workflow cannot be run now, if any.
    pub fn unready(&self, workflow: &DeployedWorkflow) -> Option<String> {
        let plan = match workflow.plan() {
            Ok(plan) => plan,
            Err(why) => return Some(why.to_owned()),
        };
        plan.pinned().find_map(|(step, pinned)| {
            let why = match self.find(&workflow.id.tenant, pinned) {
                Ok(StepTarget::Workflow(inner)) => self.unready(&inner)?,
                Ok(_) => return None,
                Err(why) => why,
            };
            Some(format!("step {step}: {why}"))
        })
    }

    /// The name of a target that this node does not know and that the workflow runs, if any.
    pub fn unknown_target(&self, workflow: &DeployedWorkflow) -> Option<Name> {
        let tenant = &workflow.id.tenant;
        workflow.plan().ok()?.pinned().find_map(|(_, pinned)| match self.find(tenant, pinned) {
            Ok(StepTarget::Workflow(inner)) => self.unknown_target(&inner),
            Ok(_) => None,
            Err(_) => Some(pinned.name.clone()),
        })
    }

    /// Whether a second run does no harm: all of its functions are declared idempotent.
    pub fn may_run_twice(&self, workflow: &DeployedWorkflow) -> bool {
        let mut pinned = workflow.plan().into_iter().flat_map(|plan| plan.pinned());
        pinned.all(|(_, pinned)| self.harmful_twice(&workflow.id.tenant, pinned).is_none())
    }

    /// A function among the targets of `pinned` that is not declared idempotent.
    pub fn harmful_twice(&self, tenant: &TenantId, pinned: &Pinned) -> Option<FunctionId> {
        match self.find(tenant, pinned) {
            Ok(StepTarget::Function(deployment)) => {
                (!deployment.manifest.idempotent).then(|| deployment.id.clone())
            }
            Ok(StepTarget::Workflow(inner)) => {
                let mut pinned = inner.plan().into_iter().flat_map(|plan| plan.pinned());
                pinned.find_map(|(_, pinned)| self.harmful_twice(tenant, pinned))
            }
            Ok(StepTarget::Model(_)) | Err(_) => None,
        }
    }

    /// The models that a run of the workflow may need, including those of its functions and inner
    /// workflows, without duplicates. `choices` are those of the call.
    pub fn demands(&self, workflow: &DeployedWorkflow, choices: Option<&ModelChoices>) -> Vec<ModelDemand> {
        let mut demands = BTreeMap::new();
        self.collect(workflow, choices, &mut demands);
        demands.into_values().collect()
    }

    fn collect(
        &self,
        workflow: &DeployedWorkflow,
        choices: Option<&ModelChoices>,
        demands: &mut BTreeMap<ModelId, ModelDemand>,
    ) {
        let pinned = workflow.plan().into_iter().flat_map(|plan| plan.pinned());
        for found in pinned.filter_map(|(_, pinned)| self.find(&workflow.id.tenant, pinned).ok()) {
            let own = match found {
                StepTarget::Model(entry) => vec![entry.demand()],
                StepTarget::Function(deployment) => self.granted(&deployment, choices),
                StepTarget::Workflow(inner) => {
                    self.collect(&inner, choices, demands);
                    continue;
                }
            };
            demands.extend(own.into_iter().map(|demand| (demand.model.clone(), demand)));
        }
    }

    /// The models that a call of `deployment` may open, as the scheduler counts them, including
    /// those of workflows. A missing model demands nothing: opening it fails. `choices` are those of
    /// the call.
    pub fn granted(&self, deployment: &DeployedFunction, choices: Option<&ModelChoices>) -> Vec<ModelDemand> {
        let tenant = &deployment.id.tenant;
        let mut demands = BTreeMap::new();
        for grant in &deployment.manifest.models {
            if let Some(workflow) = self.workflow(tenant, grant) {
                self.collect(&workflow, choices, &mut demands);
            } else if let Ok(entry) = self.models.for_call(tenant, grant, choices) {
                let demand = entry.demand();
                demands.insert(demand.model.clone(), demand);
            }
        }
        demands.into_values().collect()
    }

    /// The workflow that `wanted` names, if it names one.
    pub fn workflow(&self, tenant: &TenantId, wanted: &ModelRef) -> Option<Arc<DeployedWorkflow>> {
        let entry = self.workflows.get(tenant, wanted.name.as_str())?;
        match entry.resolve(wanted.version.as_ref()).ok()? {
            None => entry.active().cloned(),
            Some(version) => entry.versions.get(&version).cloned(),
        }
    }

    /// The active functions and workflows of `tenant` that use the model `name` in its active
    /// version, as text. Workflows keep their versions until their next deploy.
    pub fn users_of_active(&self, tenant: &TenantId, name: &Name) -> Vec<String> {
        let active = self.models.roles(tenant, name).active;
        // An alias that is not set may follow the active version.
        let follows = |version: Option<&VersionRef>| match version {
            Some(VersionRef::Alias(_)) => {
                self.models.resolve(tenant, name, version).is_ok_and(|it| it == active)
            }
            version => version.is_none(),
        };
        let grants = |deployment: &Arc<DeployedFunction>| {
            let mut grants = deployment.manifest.models.iter();
            grants.any(|grant| grant.name == *name && follows(grant.version.as_ref()))
        };
        let functions = self.functions.list(tenant);
        let functions = functions.iter().filter_map(|entry| entry.active());
        let functions = functions.filter(|deployment| grants(deployment));
        let runs_it = |pinned: &Pinned| {
            pinned.kind == TargetKind::Model && pinned.name == *name && Some(pinned.version) == active
        };
        let workflows = self.workflows.list(tenant);
        let workflows = workflows.iter().filter_map(|entry| entry.active());
        let workflows = workflows.filter(|workflow| workflow.record.pinned.values().any(runs_it));
        let functions = functions.map(|deployment| format!("function {}", deployment.id.name));
        let mut users: Vec<String> =
            functions.chain(workflows.map(|workflow| format!("workflow {}", workflow.id.name))).collect();
        let others = users.len().saturating_sub(USERS_LISTED_MAX);
        users.truncate(USERS_LISTED_MAX);
        if others > 0 {
            users.push(format!("{others} others"));
        }
        users
    }

    /// Whether a version of a workflow runs this version of the target `name`, or the manifest of a
    /// version of a function names it.
    pub fn is_used(&self, kind: TargetKind, tenant: &TenantId, name: &Name, version: Version) -> bool {
        let grants = |deployment: &Arc<DeployedFunction>| {
            let mut grants = deployment.manifest.models.iter();
            grants.any(|grant| grant.name == *name && grant.version == Some(version.into()))
        };
        let functions = self.functions.list(tenant);
        functions.iter().flat_map(|entry| entry.versions.values()).any(grants)
            || self.user_of(kind, tenant, name, Some(version)).is_some()
    }

    /// A version of a workflow that uses the target `name`, in this version or in any version.
    pub fn user_of(
        &self,
        kind: TargetKind,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Option<String> {
        let runs_it = |pinned: &Pinned| {
            pinned.kind == kind
                && pinned.name == *name
                && version.is_none_or(|version| pinned.version == version)
        };
        let entries = self.workflows.list(tenant);
        let mut versions = entries.iter().flat_map(|entry| entry.versions.values());
        let user = versions.find(|workflow| workflow.record.pinned.values().any(runs_it))?;
        Some(format!("{}:{}", user.id.name, user.id.version))
    }
}

impl StepTarget {
    fn digest(&self) -> weir_types::ContentHash {
        match self {
            Self::Model(entry) => entry.record.digest,
            Self::Function(deployment) => deployment.record.digest,
            Self::Workflow(workflow) => workflow.digest,
        }
    }
}

fn pinned(kind: TargetKind, found: &StepTarget) -> Pinned {
    let (name, version, signature, depth, runs) = match found {
        StepTarget::Model(entry) => {
            let id = entry.source.id();
            (id.name.clone(), id.version, Some(entry.source.prepared.signature.clone()), 0, 0)
        }
        StepTarget::Function(deployment) => (deployment.id.name.clone(), deployment.id.version, None, 0, 0),
        StepTarget::Workflow(workflow) => {
            let plan = workflow.plan().ok();
            let signature = plan.map(|plan| plan.signature().clone());
            let (depth, runs) = plan.map_or((0, 0), |plan| (plan.depth(), plan.runs()));
            (workflow.id.name.clone(), workflow.id.version, signature, depth, runs)
        }
    };
    Pinned { kind, name, version, digest: found.digest(), signature, depth, runs }
}

fn noun(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Model => "model",
        TargetKind::Function => "function",
        TargetKind::Workflow => "workflow",
    }
}
