//! The expected run time of a workflow before its first run, computed from the measurements of its
//! steps' targets.

use super::{Catalog, DeployedWorkflow, StepTarget};
use crate::devices::NodeDevice;
use crate::models::{Expected, ModelChoices, ModelEntry};
use crate::registry::DeployedFunction;
use std::collections::{HashMap, HashSet};
use weir_scheduler::{DeviceKind, ModelDemand};
use weir_telemetry::Served;
use weir_types::{ModelId, Platform, TenantId};
use weir_workflow::{PlannedStep, StepAction};

/// The expectations of a run, for the scheduler.
pub struct ExpectedRun {
    /// The models that the run may need, with their measured load times where known.
    pub models: Vec<ModelDemand>,
    /// The run time with all models in memory, by kind of device; empty for kinds on which no step
    /// was measured.
    pub run_times_ns: Vec<(DeviceKind, u64)>,
}

/// The assumed location of a run.
struct On<'a> {
    tenant: &'a TenantId,
    device: &'a NodeDevice,
    /// The expected times of the models that the run may need.
    models: &'a HashMap<ModelId, Expected>,
}

impl Catalog {
    /// The expectations of a run with `batch` rows. Every step is assumed to process as many rows.
    pub fn expected(
        &self,
        workflow: &DeployedWorkflow,
        batch: u32,
        choices: Option<&ModelChoices>,
    ) -> ExpectedRun {
        let mut demands = self.demands(workflow, choices);
        let mut known = HashMap::new();
        for demand in &mut demands {
            let ModelId { tenant, name, version } = &demand.model;
            if let Ok(entry) = self.models.get(tenant, name, Some(*version)) {
                let expected = self.models.expected(&entry, batch);
                demand.load_time_ns = expected.load_time_ns;
                known.insert(demand.model.clone(), expected);
            }
        }
        let mut kinds = HashSet::new();
        let devices = self
            .models
            .devices()
            .iter()
            .filter(|device| kinds.insert(device.kind.clone()))
            .map(|device| &**device);
        let run_time = |device: &NodeDevice| {
            let on = On { tenant: &workflow.id.tenant, device, models: &known };
            let time_ns = self.run_time_ns(workflow, &on);
            (time_ns > 0).then(|| ((&*device.kind).into(), time_ns))
        };
        ExpectedRun { run_times_ns: devices.filter_map(run_time).collect(), models: demands }
    }

    /// The longest chain of steps, or more if there are too few slots to run all independent steps
    /// concurrently. Steps that were never measured count as zero.
    fn run_time_ns(&self, workflow: &DeployedWorkflow, on: &On<'_>) -> u64 {
        let Ok(plan) = workflow.plan() else { return 0 };
        plan.estimate(|step| self.step_time_ns(step, on)).with_slots_ns(on.device.slots())
    }

    fn step_time_ns(&self, step: &PlannedStep, on: &On<'_>) -> u64 {
        let StepAction::Run(Some(pinned)) = &step.action else { return 0 };
        match self.find(on.tenant, pinned) {
            Ok(StepTarget::Model(entry)) => on.model_time_ns(&entry),
            Ok(StepTarget::Function(deployment)) => function_time_ns(&deployment),
            Ok(StepTarget::Workflow(inner)) => self.run_time_ns(&inner, on),
            Err(_) => 0,
        }
    }
}

impl On<'_> {
    /// The time as measured on this kind of device, or on the CPU for a model that does not run on
    /// the device.
    fn model_time_ns(&self, entry: &ModelEntry) -> u64 {
        let is_here = entry.runs_on().contains(self.device.platform);
        let kind = if is_here { &*self.device.kind } else { Platform::Cpu.as_str() };
        let known = self.models.get(entry.source.id()).map(|expected| &expected.run_times_ns[..]);
        let there = known.unwrap_or_default().iter().find(|(known, _)| &*known.0 == kind);
        there.map_or(0, |(_, time_ns)| *time_ns)
    }
}

/// The mean over all calls as a tensor function.
fn function_time_ns(deployment: &DeployedFunction) -> u64 {
    let [_, _, _, _, infer, _] = deployment.served.get().map(Served::tallies).unwrap_or_default();
    infer.time_ns.checked_div(infer.count).unwrap_or(0)
}
