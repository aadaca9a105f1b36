//! Deployed workflows, and their dependencies on models and functions.
//!
//! A version consists of a document and the targets of its steps, pinned to their versions at
//! deployment: it always runs those versions. The record describes the pinned targets, so that a
//! node can read it before it knows the models and functions. A model or function that some version
//! of a workflow runs cannot be deleted ([`Catalog::user_of`]). If one is missing nevertheless, for
//! example after a race between two nodes, the workflow is not ready and says why.

mod catalog;
mod expected;
mod hedging;
mod record;

pub use catalog::{Catalog, StepTarget};
pub use expected::ExpectedRun;
pub use hedging::Hedge;
pub use record::WorkflowRecord;

use crate::registry::{DeploymentKind, Noun, Registry, RegistryEntry};
use std::sync::{Arc, OnceLock};
use weir_telemetry::{Metrics, Served};
use weir_types::api::{StepHedge, WorkflowStep, WorkflowVersion};
use weir_types::{ContentHash, Name, TenantId, WorkflowId};
use weir_workflow::{Plan, PlannedStep, StepAction};

/// The workflows of all tenants.
pub type WorkflowRegistry = Registry<Workflows>;

/// All versions of a workflow.
pub type WorkflowEntry = RegistryEntry<Workflows>;

/// The registry kind of workflows.
pub struct Workflows {
    metrics: Arc<Metrics>,
}

/// One version of a workflow. Can be run if all of its targets exist.
pub struct DeployedWorkflow {
    /// The tenant, name and version.
    pub id: WorkflowId,
    /// The datastore's record of the version.
    pub record: WorkflowRecord,
    /// The digest of the record.
    pub digest: ContentHash,
    plan: OnceLock<Result<Arc<Plan>, String>>,
    /// The hedging state of each step, by position; unset until the first run.
    hedges: OnceLock<Vec<Option<Arc<Hedge>>>>,
    /// The statistics of its calls.
    pub served: Served,
    metrics: Arc<Metrics>,
}

impl DeployedWorkflow {
    /// The plan, made on first use. Fails if the record cannot be planned, for example because a
    /// later version of Weir has deployed it.
    pub fn plan(&self) -> Result<&Arc<Plan>, &str> {
        let planned = self.plan.get_or_init(|| {
            let plan = self.record.plan();
            if let Err(why) = &plan {
                tracing::error!(workflow = %self.id, why, "workflow not ready");
            }
            plan.map(Arc::new)
        });
        planned.as_ref().map_err(String::as_str)
    }

    /// The hedging state of a step of `plan`, which is this workflow's plan; `None` if the step is
    /// not hedged.
    pub fn hedge(&self, plan: &Plan, step: usize) -> Option<&Arc<Hedge>> {
        let hedge = |step: &PlannedStep| {
            step.is_hedged.then(|| Arc::new(Hedge::new(self.metrics.hedges(&self.id, &step.name))))
        };
        let hedges = self.hedges.get_or_init(|| plan.steps().iter().map(hedge).collect());
        hedges.get(step)?.as_ref()
    }

    /// Describes the hedging of a step for the API, even before the first run.
    fn describe_hedge(&self, step: &PlannedStep, place: usize) -> Option<StepHedge> {
        let known = self.hedges.get().and_then(|hedges| hedges.get(place)?.as_ref());
        step.is_hedged.then(|| known.map(|hedge| hedge.describe()).unwrap_or_default())
    }
}

impl Workflows {
    /// Creates the kind; its workflows report to `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl DeploymentKind for Workflows {
    const NOUN: Noun = Noun::Workflow;
    const ROOT: &'static str = "workflows";

    type Record = WorkflowRecord;
    type Deployment = DeployedWorkflow;
    type Shared = ();

    fn share(&self, _: &TenantId, _: &Name) {}

    fn deployment(
        &self,
        tenant: &TenantId,
        name: &Name,
        record: WorkflowRecord,
        (): &(),
    ) -> DeployedWorkflow {
        DeployedWorkflow {
            id: WorkflowId { tenant: tenant.clone(), name: name.clone(), version: record.version },
            served: self.metrics.served(tenant, name, record.version),
            plan: OnceLock::new(),
            hedges: OnceLock::new(),
            metrics: self.metrics.clone(),
            digest: record.digest(),
            record,
        }
    }

    fn record(deployment: &DeployedWorkflow) -> &WorkflowRecord {
        &deployment.record
    }

    fn count(&self, names: usize) {
        self.metrics.deployed.workflows.set(i64::try_from(names).unwrap_or(i64::MAX));
    }
}

impl WorkflowEntry {
    /// Describes `workflow` as the API returns it. `unready` is the reason why it cannot be run
    /// now, if any.
    pub fn describe(&self, workflow: &DeployedWorkflow, unready: Option<String>) -> WorkflowVersion {
        let DeployedWorkflow { id, record, .. } = workflow;
        let plan = workflow.plan().ok();
        let steps = plan.into_iter().flat_map(|plan| {
            let steps = plan.steps().iter().enumerate();
            steps.map(|(place, step)| WorkflowStep {
                hedge: workflow.describe_hedge(step, place),
                ..describe(plan, step)
            })
        });
        WorkflowVersion {
            tenant: id.tenant.clone(),
            name: id.name.clone(),
            version: id.version,
            active: self.head.active == id.version,
            deployed_at_ms: record.deployed_at_ms,
            description: record.description(),
            slo_ms: record.slo_ms,
            cost_slo: record.cost_slo,
            signature: plan.map(|plan| plan.signature().clone()).unwrap_or_default(),
            steps: steps.collect(),
            ready: unready.is_none(),
            reason: unready,
            document: record.document.clone(),
        }
    }
}

fn describe(plan: &Plan, step: &PlannedStep) -> WorkflowStep {
    let action = match &step.action {
        StepAction::Run(Some(pinned)) => format!("run {}:{}", pinned.name, pinned.version),
        StepAction::Run(None) => "run".to_owned(),
        StepAction::Combine(combiner) => format!("combine {combiner}"),
        StepAction::Split { parts } => format!("split {parts}"),
    };
    WorkflowStep {
        name: step.name.clone(),
        action,
        reads: plan.reads(step).into_iter().map(str::to_owned).collect(),
        when: plan.condition_of(step),
        hedge: None,
    }
}
