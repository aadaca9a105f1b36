//! Workloads of workflows as JSON. docs/guides/simulate.md describes the format.

use super::{SimulatedWorkflow, WorkflowWorkload};
use crate::sim::WorkloadError;
use crate::sim::file::bytes_of;
use crate::sim::workload::ns_of;
use crate::{FrontError, GraphStep, StepTimes, WorkflowDevice, WorkflowGraph};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_types::Cost;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    devices: Vec<DeviceRow>,
    models: Vec<ModelRow>,
    workflows: Vec<WorkflowRow>,
    requests: Vec<(f64, String)>,
    /// Whether devices hold as many models as fit at the start, in the order of the file.
    #[serde(default)]
    warm: bool,
    seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceRow {
    kind: String,
    count: u32,
    mb: f64,
    #[serde(default = "one")]
    price: Cost,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelRow {
    name: String,
    mb: f64,
    #[serde(default)]
    load_ms: BTreeMap<String, f64>,
    run_ms: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkflowRow {
    name: String,
    steps: Vec<StepRow>,
    slo_ms: Option<f64>,
    cost_slo: Option<Cost>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRow {
    name: String,
    model: String,
    #[serde(default)]
    after: Vec<String>,
}

/// Maximum number of devices, of models, of workflows and of steps of a workflow.
const ITEMS_MAX: usize = 1_000;

fn one() -> Cost {
    Cost::from_nanos(1_000_000_000)
}

impl WorkflowWorkload {
    /// Reads a workload.
    ///
    /// # Errors
    /// If the JSON does not parse, a name is unknown or used twice, a number is out of bounds, or a
    /// step can run on no device.
    pub fn from_json(json: &[u8]) -> Result<Self, WorkloadError> {
        let file: File = serde_json::from_slice(json)?;
        if file.workflows.is_empty() {
            return Err(WorkloadError::Missing("at least one workflow"));
        }
        let devices = file.devices()?;
        let models = file.models(&devices)?;
        let prices: Vec<Cost> = file.devices.iter().map(|row| row.price).collect();
        let names: Vec<&str> = file.models.iter().map(|row| row.name.as_str()).collect();
        let read = |(index, row): (usize, &WorkflowRow)| {
            row.read(&names, &models, &prices).map_err(bad("workflow", index))
        };
        let workflows = file.workflows.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let requests = file.requests()?;
        let last_ns = requests.last().map_or(0, |(at_ns, _)| *at_ns);
        let window_ns = file.seconds.map(ns_of).transpose().map_err(bad("seconds", 0))?.unwrap_or(last_ns);
        let residents = devices.iter().map(|device| file.residents(&models, device)).collect();
        let empty = Self { prices, devices, residents, workflows, requests: Vec::new(), window_ns };
        empty.with_requests(requests)
    }
}

impl File {
    fn devices(&self) -> Result<Vec<WorkflowDevice>, WorkloadError> {
        let mut devices = Vec::new();
        for (kind, row) in self.devices.iter().enumerate() {
            let is_again = self.devices[..kind].iter().any(|before| before.kind == row.kind);
            if is_again {
                return Err(bad("kind of device", kind)(format!("{:?} occurs twice", row.kind)));
            }
            if devices.len() + row.count as usize > ITEMS_MAX {
                return Err(bad("kind of device", kind)(format!("there are more than {ITEMS_MAX} devices")));
            }
            let capacity_bytes = bytes_of(row.mb).map_err(bad("kind of device", kind))?;
            devices.extend((0..row.count).map(|_| WorkflowDevice { kind, capacity_bytes }));
        }
        if devices.is_empty() { Err(WorkloadError::Missing("at least one device")) } else { Ok(devices) }
    }

    /// The models as steps without predecessors.
    fn models(&self, devices: &[WorkflowDevice]) -> Result<Vec<GraphStep>, WorkloadError> {
        let kinds: Vec<&str> = self.devices.iter().map(|row| row.kind.as_str()).collect();
        let capacity_bytes = |kind: usize| {
            let same = devices.iter().filter(|device| device.kind == kind);
            same.map(|device| device.capacity_bytes).max()
        };
        if self.models.len() > ITEMS_MAX {
            return Err(bad("model", ITEMS_MAX)(format!("there are more than {ITEMS_MAX}")));
        }
        let read = |(index, row): (usize, &ModelRow)| {
            if self.models[..index].iter().any(|before| before.name == row.name) {
                return Err(bad("model", index)(format!("{:?} occurs twice", row.name)));
            }
            let model = row.read(index, &kinds).map_err(bad("model", index))?;
            let fits = |kind: &usize| {
                model.times[*kind].is_some()
                    && capacity_bytes(*kind).is_some_and(|bytes| model.bytes <= bytes)
            };
            let has_device = (0..kinds.len()).any(|kind| fits(&kind));
            if has_device { Ok(model) } else { Err(bad("model", index)("no device can run it".to_owned())) }
        };
        self.models.iter().enumerate().map(read).collect()
    }

    fn requests(&self) -> Result<Vec<(u64, usize)>, WorkloadError> {
        let read = |(index, (at_s, name)): (usize, &(f64, String))| {
            let at_ns = ns_of(*at_s).map_err(bad("request", index))?;
            let workflow = self.workflows.iter().position(|row| row.name == *name);
            let workflow =
                workflow.ok_or_else(|| bad("request", index)(format!("there is no workflow {name:?}")))?;
            Ok((at_ns, workflow))
        };
        self.requests.iter().enumerate().map(read).collect()
    }

    /// The models in the memory of a device at the start.
    fn residents(&self, models: &[GraphStep], device: &WorkflowDevice) -> Vec<(u32, u64)> {
        let mut free_bytes = device.capacity_bytes;
        let fits = |model: &&GraphStep| {
            let fits = self.warm && model.times[device.kind].is_some() && model.bytes <= free_bytes;
            free_bytes -= if fits { model.bytes } else { 0 };
            fits
        };
        models.iter().filter(fits).map(|model| (model.model, model.bytes)).collect()
    }
}

impl ModelRow {
    fn read(&self, index: usize, kinds: &[&str]) -> Result<GraphStep, String> {
        if let Some(unknown) =
            self.run_ms.keys().chain(self.load_ms.keys()).find(|kind| !kinds.contains(&kind.as_str()))
        {
            return Err(format!("there is no kind of device {unknown:?}"));
        }
        let times = |kind: &&str| {
            let Some(run_ms) = self.run_ms.get(*kind) else { return Ok(None) };
            let run_ns = ns_of(run_ms / 1e3)?;
            if run_ns == 0 {
                return Err("a run takes more than no time".to_owned());
            }
            let load_ns = ns_of(self.load_ms.get(*kind).map_or(0.0, |load_ms| load_ms / 1e3))?;
            Ok(Some(StepTimes { load_ns, run_ns }))
        };
        let times = kinds.iter().map(times).collect::<Result<_, _>>()?;
        let model = u32::try_from(index).unwrap_or(u32::MAX);
        Ok(GraphStep { after: Vec::new(), model, bytes: bytes_of(self.mb)?, times })
    }
}

impl WorkflowRow {
    fn read(
        &self,
        names: &[&str],
        models: &[GraphStep],
        prices: &[Cost],
    ) -> Result<SimulatedWorkflow, String> {
        if self.steps.is_empty() || self.steps.len() > ITEMS_MAX {
            return Err(format!("a workflow has from 1 to {ITEMS_MAX} steps, not {}", self.steps.len()));
        }
        let position = |index: usize, name: &str| {
            let at = self.steps[..index].iter().position(|step| step.name == *name);
            at.ok_or_else(|| format!("step {:?}: no earlier step is called {name:?}", self.steps[index].name))
        };
        let mut steps = Vec::with_capacity(self.steps.len());
        for (index, row) in self.steps.iter().enumerate() {
            let model = names.iter().position(|name| *name == row.model);
            let model =
                model.ok_or_else(|| format!("step {:?}: there is no model {:?}", row.name, row.model))?;
            if self.steps[..index].iter().any(|before| before.name == row.name) {
                return Err(format!("step {:?} occurs twice", row.name));
            }
            let after = row.after.iter().map(|name| position(index, name)).collect::<Result<_, _>>()?;
            steps.push(GraphStep { after, ..models[model].clone() });
        }
        let graph = WorkflowGraph::new(steps, prices).map_err(|error: FrontError| error.to_string())?;
        let latency_ns = self.slo_ms.map(|slo_ms| ns_of(slo_ms / 1e3)).transpose()?.unwrap_or(u64::MAX);
        Ok(SimulatedWorkflow {
            graph: Arc::new(graph),
            latency_ns,
            cost_max: self.cost_slo.unwrap_or(Cost::MAX),
        })
    }
}

fn bad(what: &'static str, index: usize) -> impl Fn(String) -> WorkloadError {
    move |why| WorkloadError::Bad { what, index, why }
}
