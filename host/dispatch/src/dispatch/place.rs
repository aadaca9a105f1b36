//! Places calls: describes each call to the scheduler, and waits for the placement.

use super::{CallCtx, Dispatch, ModelTarget, Target};
use weir_call::Fault;
use weir_cluster::{Placement, PlacementGuard};
use weir_control::models::Expected;
use weir_control::workflows::{DeployedWorkflow, ExpectedRun};
use weir_scheduler::{Arrival, DeviceKind, ModelDemand};
use weir_types::{ErrorCode, FunctionId, ModelId, Version, WorkflowId};

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
}

impl Dispatch {
    /// Waits for the placement of a call with `batch` items. Dropping the future, or the guard,
    /// reports the end of the call to the scheduler.
    pub(super) async fn place(
        &self,
        call: &CallCtx,
        target: &Target,
        batch: u32,
    ) -> Result<(Placement, PlacementGuard), Fault> {
        let Demand { function, models, batch, batch_items_max, run_times_ns } =
            self.demand(call, target, batch);
        if call.granted.is_none()
            && models.is_empty()
            && matches!(target, Target::Function(_))
            && let Some(placed) = self.placements.place_unasked(call.id, &function.tenant)
        {
            return Ok(placed);
        }
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
        };
        if let Some(granted) = &call.granted {
            return Ok(self.placements.granted(granted, arrival));
        }
        let placed = self.placements.place(arrival, &call.objective, call.arrived).await;
        placed.map_err(|fault| self.explained(fault, target))
    }

    fn demand(&self, call: &CallCtx, target: &Target, batch: u32) -> Demand {
        match target {
            Target::Function(function) => Demand {
                function: function.deployment().id.clone(),
                models: self.catalog.granted(function.deployment(), call.models.as_deref()),
                batch: 1,
                batch_items_max: 1,
                run_times_ns: Vec::new(),
            },
            Target::Model(model) => self.demand_of_model(call, model, batch),
            Target::Workflow(workflow) => self.demand_of_workflow(call, workflow, batch),
        }
    }

    fn demand_of_model(&self, call: &CallCtx, model: &ModelTarget, batch: u32) -> Demand {
        let ModelTarget { entry, is_measured, .. } = model;
        let ModelId { tenant, name, .. } = entry.source.id().clone();
        // Measuring takes many runs, so its duration is not a run time of the model.
        if *is_measured {
            return Demand {
                function: FunctionId { tenant, name, version: Version(u32::MAX) },
                models: vec![entry.demand()],
                batch: 1,
                batch_items_max: 1,
                run_times_ns: Vec::new(),
            };
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
        let WorkflowId { tenant, name, version } = workflow.id.clone();
        // Workflows and functions share no names.
        Demand {
            function: FunctionId { tenant, name, version },
            models,
            batch,
            batch_items_max: 1,
            run_times_ns,
        }
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
