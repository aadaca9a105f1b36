//! Places calls: describes each call to the scheduler, and waits for the placement.

use super::{CallCtx, Dispatch, ModelTarget, Target};
use std::sync::Arc;
use weir_call::{Fault, next_invocation_id};
use weir_cluster::{Placement, PlacementGuard};
use weir_control::models::Expected;
use weir_control::workflows::{DeployedWorkflow, ExpectedRun, StepTarget};
use weir_scheduler::{Arrival, DeviceKind, ModelDemand, PlannedStep};
use weir_types::{ErrorCode, FunctionId, InvocationId, ModelId, Version, WorkflowId};
use weir_workflow::{Pinned, StepAction};

/// A placed call.
pub(super) struct PlacedCall {
    pub(super) placement: Placement,
    pub(super) guard: PlacementGuard,
    /// The ids with which the steps of a workflow have to arrive, by the index of the step.
    pub(super) steps: Arc<[InvocationId]>,
}

/// The part of an arrival that depends on the target.
struct Demand {
    /// The key under which the scheduler learns run times.
    function: FunctionId,
    /// The models that the call may use.
    models: Vec<ModelDemand>,
    batch: u32,
    /// The items that one run may take; 1 if requests are not batched.
    batch_items_max: u32,
    /// The expected run times, where measured.
    run_times_ns: Vec<(DeviceKind, u64)>,
    /// The steps of a workflow that an objective may reject.
    steps: Vec<PlannedStep>,
}

impl Demand {
    /// The demand of a call that runs alone, without known times.
    fn alone(function: FunctionId, models: Vec<ModelDemand>) -> Self {
        let (run_times_ns, steps) = Default::default();
        Self { function, models, batch: 1, batch_items_max: 1, run_times_ns, steps }
    }
}

impl Dispatch {
    /// Waits for the placement of a call with `batch` items. Dropping the future, or the guard,
    /// reports the end of the call to the scheduler.
    pub(super) async fn place(
        &self,
        call: &CallCtx,
        target: &Target,
        batch: u32,
    ) -> Result<PlacedCall, Fault> {
        let Demand { function, models, batch, batch_items_max, run_times_ns, steps } =
            self.demand(call, target, batch);
        // An empty slice needs no allocation.
        let ids = match steps.is_empty() {
            true => Arc::default(),
            false => steps.iter().map(|step| step.invocation).collect::<Arc<[_]>>(),
        };
        let placed = |(placement, guard)| PlacedCall { placement, guard, steps: ids };
        if call.granted.is_none()
            && models.is_empty()
            && matches!(target, Target::Function(_))
            && let Some(unasked) = self.placements.place_unasked(call.id, &function.tenant)
        {
            return Ok(placed(unasked));
        }
        let is_splittable = models.len() > 1 && matches!(target, Target::Workflow(_));
        let arrival = Arrival {
            invocation: call.id,
            function,
            models,
            deadline_at_ns: self.placements.time_ns(call.deadline),
            priority: call.priority,
            batch,
            batch_items_max,
            run_time_ns: None,
            run_times_ns,
            slo: self.placements.slo(&call.objective, call.arrived),
            inputs: call.inputs.clone(),
            is_splittable,
            steps,
        };
        if let Some(granted) = &call.granted {
            return Ok(placed(self.placements.granted(granted, arrival)));
        }
        let answer = self.placements.place(arrival, &call.objective, call.arrived).await;
        answer.map(placed).map_err(|fault| self.explained(fault, target))
    }

    fn demand(&self, call: &CallCtx, target: &Target, batch: u32) -> Demand {
        match target {
            Target::Function(function) => {
                let deployment = function.deployment();
                let models = self.catalog.granted(deployment, call.models.as_deref());
                Demand::alone(deployment.id.clone(), models)
            }
            Target::Model(model) => self.demand_of_model(call, model, batch),
            Target::Workflow(workflow) => self.demand_of_workflow(call, workflow, batch),
        }
    }

    fn demand_of_model(&self, call: &CallCtx, model: &ModelTarget, batch: u32) -> Demand {
        let ModelTarget { entry, is_measured, .. } = model;
        let ModelId { tenant, name, .. } = entry.source.id().clone();
        // Measuring takes many runs, so its duration is not a run time of the model.
        if *is_measured {
            let function = FunctionId { tenant, name, version: Version(u32::MAX) };
            return Demand::alone(function, vec![entry.demand()]);
        }
        // The profiles of earlier runs of this node: looked up only if the objective can reject the
        // call.
        let known =
            if call.objective.is_none() { Expected::default() } else { self.models.expected(entry, batch) };
        Demand {
            // The scheduler learns run times per function. A stand-alone model uses version 0,
            // which functions do not use.
            function: FunctionId { tenant, name, version: Version(0) },
            models: vec![ModelDemand { load_time_ns: known.load_time_ns, ..entry.demand() }],
            batch,
            batch_items_max: entry.batch_items_max,
            run_times_ns: known.run_times_ns,
            steps: Vec::new(),
        }
    }

    fn demand_of_workflow(&self, call: &CallCtx, workflow: &DeployedWorkflow, batch: u32) -> Demand {
        // As for a model: looked up only if the objective can reject the call.
        let choices = call.models.as_deref();
        let ExpectedRun { models, run_times_ns } = if call.objective.is_none() {
            ExpectedRun { models: self.catalog.demands(workflow, choices), run_times_ns: Vec::new() }
        } else {
            self.catalog.expected(workflow, batch, choices)
        };
        Demand {
            function: function_of_workflow(workflow),
            models,
            batch,
            batch_items_max: 1,
            run_times_ns,
            steps: self.planned_steps(call, workflow, batch),
        }
    }

    /// The steps of a workflow with an objective and several models, which the scheduler may place
    /// separately.
    fn planned_steps(&self, call: &CallCtx, workflow: &DeployedWorkflow, batch: u32) -> Vec<PlannedStep> {
        let is_planned = !call.objective.is_none() && call.granted.is_none();
        let Some(plan) = workflow.plan().ok().filter(|plan| is_planned && plan.steps().len() > 1) else {
            return Vec::new();
        };
        let step = |(action, after): (&StepAction, Vec<usize>)| {
            let Demand { function, models, batch, run_times_ns, .. } = match action {
                StepAction::Run(Some(pinned)) => self.demand_of_step(call, workflow, pinned, batch),
                StepAction::Run(None) | StepAction::Combine(_) | StepAction::Split { .. } => None,
            }
            .unwrap_or_else(|| Demand::alone(function_of_workflow(workflow), Vec::new()));
            let after = after.into_iter().filter_map(|before| u32::try_from(before).ok()).collect();
            PlannedStep { invocation: next_invocation_id(), function, models, after, batch, run_times_ns }
        };
        let actions = plan.steps().iter().map(|step| &step.action);
        actions.zip(plan.dependencies()).map(step).collect()
    }

    /// The demand of a step with a target; `None` if the target is missing.
    fn demand_of_step(
        &self,
        call: &CallCtx,
        workflow: &DeployedWorkflow,
        pinned: &Pinned,
        batch: u32,
    ) -> Option<Demand> {
        Some(match self.catalog.find(&workflow.id.tenant, pinned).ok()? {
            StepTarget::Model(entry) => self.demand_of_model(call, &ModelTarget::new(entry, None), batch),
            StepTarget::Function(deployment) => {
                let models = self.catalog.granted(&deployment, call.models.as_deref());
                Demand::alone(deployment.id.clone(), models)
            }
            StepTarget::Workflow(inner) => {
                let ExpectedRun { models, run_times_ns } =
                    self.catalog.expected(&inner, batch, call.models.as_deref());
                Demand { run_times_ns, batch, ..Demand::alone(function_of_workflow(&inner), models) }
            }
        })
    }

    /// Adds the reason why no device can run a model, where it is known.
    fn explained(&self, fault: Fault, target: &Target) -> Fault {
        let Target::Model(ModelTarget { entry, is_measured: false, .. }) = target else { return fault };
        match self.models.nowhere(entry) {
            Some(why) if fault.code == ErrorCode::NoCapacity => Fault::new(ErrorCode::NoCapacity, why),
            _ => fault,
        }
    }
}

/// The key under which the scheduler learns the run times of a workflow. Workflows and functions
/// share no names.
fn function_of_workflow(workflow: &DeployedWorkflow) -> FunctionId {
    let WorkflowId { tenant, name, version } = workflow.id.clone();
    FunctionId { tenant, name, version }
}
