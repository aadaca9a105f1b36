//! What a run of a workflow is expected to take before any was measured: from what is known of what its steps run.

use super::{Catalog, Found, Workflow};
use crate::devices::NodeDevice;
use crate::models::{Expected, ModelEntry};
use crate::registry::Deployment;
use crate::telemetry::Served;
use std::collections::{HashMap, HashSet};
use weir_scheduler::{DeviceKind, ModelDemand};
use weir_types::{ModelId, Platform, TenantId};
use weir_workflow::{Action, PlannedStep};

/// What the scheduler is told of a run.
pub(crate) struct ExpectedRun {
    /// The models that it may need, with what loading them takes as far as that was measured.
    pub(crate) models: Vec<ModelDemand>,
    /// How long it takes with them in memory, by kind of device; none for a kind that no step was measured on.
    pub(crate) run_times_ns: Vec<(DeviceKind, u64)>,
}

/// Where a run is thought to take place.
struct On<'a> {
    tenant: &'a TenantId,
    device: &'a NodeDevice,
    /// What the models that it may need take.
    models: &'a HashMap<ModelId, Expected>,
}

impl Catalog {
    /// What a run with `batch` rows takes. Every step is taken to work on as many.
    pub(crate) fn expected(&self, workflow: &Workflow, batch: u32) -> ExpectedRun {
        let mut demands = self.demands(workflow);
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
        let devices = self.models.devices().iter().filter(|device| kinds.insert(device.kind.clone()));
        let run_time = |device: &NodeDevice| {
            let on = On { tenant: &workflow.id.tenant, device, models: &known };
            let time_ns = self.run_time_ns(workflow, &on);
            (time_ns > 0).then(|| ((&*device.kind).into(), time_ns))
        };
        ExpectedRun { run_times_ns: devices.filter_map(run_time).collect(), models: demands }
    }

    /// The longest chain of steps; or all of them one after the other, as far as there are too few slots to run them beside each other. What
    /// was never run counts as nothing.
    fn run_time_ns(&self, workflow: &Workflow, on: &On<'_>) -> u64 {
        let Ok(plan) = workflow.plan() else { return 0 };
        plan.estimate(|step| self.step_time_ns(step, on)).with_slots_ns(on.device.slots())
    }

    fn step_time_ns(&self, step: &PlannedStep, on: &On<'_>) -> u64 {
        let Action::Run(Some(pinned)) = &step.action else { return 0 };
        match self.find(on.tenant, pinned) {
            Ok(Found::Model(entry)) => on.model_time_ns(&entry),
            Ok(Found::Function(deployment)) => function_time_ns(&deployment),
            Ok(Found::Workflow(inner)) => self.run_time_ns(&inner, on),
            Err(_) => 0,
        }
    }
}

impl On<'_> {
    /// As it was measured there; or on the processor, for what does not run there.
    fn model_time_ns(&self, entry: &ModelEntry) -> u64 {
        let is_here = entry.runs_on().contains(self.device.platform);
        let kind = if is_here { &*self.device.kind } else { Platform::Cpu.as_str() };
        let known = self.models.get(entry.source.id()).map(|expected| &expected.run_times_ns[..]);
        let there = known.unwrap_or_default().iter().find(|(known, _)| &*known.0 == kind);
        there.map_or(0, |(_, time_ns)| *time_ns)
    }
}

/// The mean of all its calls as a tensor function.
fn function_time_ns(deployment: &Deployment) -> u64 {
    let [_, _, _, _, infer, _] = deployment.served.get().map(Served::tallies).unwrap_or_default();
    infer.time_ns.checked_div(infer.count).unwrap_or(0)
}
