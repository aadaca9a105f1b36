//! The scheduler of a node, as a policy for workflows.

use super::graph::{GraphStep, WorkflowGraph};
use super::progress::{Progress, StepKey, StepState};
use super::{WorkflowAction, WorkflowDevice, WorkflowEvent, WorkflowPolicy};
use crate::{
    Action, Arrival, DeviceKind, DeviceRule, DeviceSpec, DeviceUse, Estimate, Event, Evictable, ModelDemand,
    PlannedStep, Rejection, Scheduler, Settings, Slo, SloSettings,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, TenantId, Version,
};

/// Runs a workflow as a whole on one device if the workflow meets its objectives there. Otherwise its
/// steps get separate reservations, or it is rejected.
///
/// Each device belongs to another node and runs one invocation at a time. The steps of a whole run
/// one after the other. A platform stands for each kind of device, so there are at most
/// [`WorkflowPolicyKind::NODE_KINDS_MAX`](super::WorkflowPolicyKind::NODE_KINDS_MAX) kinds.
pub(super) struct NodeWorkflows {
    scheduler: Scheduler,
    devices: Vec<NodeDevice>,
    active: HashMap<InvocationId, ActiveWorkflow>,
    /// The workflow and the index of each separate step.
    steps: HashMap<InvocationId, StepKey>,
    /// The distinct steps, for each of which the scheduler learns times.
    functions: Vec<GraphStep>,
    graphs: Vec<Arc<WorkflowGraph>>,
    next_id: u64,
    wake_at_ns: Option<u64>,
}

/// A device of the node.
struct NodeDevice {
    spec: WorkflowDevice,
    residents: BTreeMap<u32, u64>,
    evictable: Evictable,
}

/// A workflow that has not ended.
struct ActiveWorkflow {
    progress: Progress,
    is_separate: bool,
    /// The invocations of its steps.
    planned: Vec<PlannedStep>,
    /// By step: whether it has arrived at the scheduler.
    has_arrived: Vec<bool>,
    /// By step: when it started, and its load time.
    starts: Vec<(u64, u64)>,
}

/// The least id of a step's invocation; calls of workflows have lower ids.
const STEP_IDS: u64 = 1 << 48;

impl NodeWorkflows {
    /// Creates a scheduler for devices with these models in memory. `prices` are the prices of a
    /// second by kind of device.
    pub(super) fn new(
        settings: &SloSettings,
        devices: &[WorkflowDevice],
        prices: &[Cost],
        residents: &[Vec<(u32, u64)>],
    ) -> Self {
        let prices = prices.iter().enumerate().map(|(kind, price)| (kind_named(kind), *price)).collect();
        let slo = SloSettings { prices, ..settings.clone() };
        let spec = |device: &WorkflowDevice| DeviceSpec {
            kind: kind_named(device.kind),
            platform: platform(device.kind),
            capacity_bytes: device.capacity_bytes,
            slots: 1,
            invocations_max: 1,
            rule: DeviceRule::default(),
        };
        let mut node = Self {
            scheduler: Scheduler::new(&Settings { slo, queue_len_max: usize::MAX, ..Settings::default() }),
            devices: Vec::with_capacity(devices.len()),
            active: HashMap::new(),
            steps: HashMap::new(),
            functions: Vec::new(),
            graphs: Vec::new(),
            next_id: STEP_IDS,
            wake_at_ns: None,
        };
        for (ordinal, device) in devices.iter().enumerate() {
            let up = Event::NodeUp { node: device_id(ordinal).node, devices: vec![spec(device)] };
            node.tell(0, up, &mut Vec::new());
            let held = residents.get(ordinal).map_or(&[][..], Vec::as_slice);
            for (model, bytes) in held {
                let event = loaded(ordinal, (*model, *bytes), None);
                node.tell(0, event, &mut Vec::new());
            }
            let residents = held.iter().copied().collect();
            node.devices.push(NodeDevice { spec: *device, residents, evictable: Evictable::new() });
        }
        node
    }

    /// Passes an event to the scheduler, and carries out its actions.
    fn tell(&mut self, now_ns: u64, event: Event, actions: &mut Vec<WorkflowAction>) {
        let mut decided = Vec::new();
        self.scheduler.handle(now_ns, event, &mut decided);
        for action in decided {
            match action {
                Action::Start { invocation, device, evict, why, .. } => {
                    let device = device.map_or(0, |device| device.node.0 as usize);
                    self.note_admission(now_ns, invocation, &why.estimate, why.queued_ns > 0, actions);
                    self.start(now_ns, invocation, (device, evict), actions);
                }
                Action::Reserved { invocation, estimate } => {
                    self.note_admission(now_ns, invocation, &estimate, false, actions);
                    self.separate(now_ns, invocation, actions);
                }
                // Without objectives: too large for a device.
                Action::Reject { invocation, why: Rejection::NoCapacity, .. } => {
                    self.separate(now_ns, invocation, actions);
                }
                Action::Reject { invocation, .. } => {
                    self.active.remove(&invocation);
                    actions.push(WorkflowAction::Reject(invocation));
                }
                Action::WakeAt(at_ns) => self.wake_at_ns = Some(at_ns),
                Action::Load { .. } | Action::Release { .. } => {}
            }
        }
    }

    /// Reports an admission, unless the workflow is only tried: a trial has not waited, and misses
    /// its objectives by its estimate.
    fn note_admission(
        &self,
        now_ns: u64,
        invocation: InvocationId,
        estimate: &Estimate,
        has_waited: bool,
        actions: &mut Vec<WorkflowAction>,
    ) {
        let Some(active) = self.active.get(&invocation) else { return };
        let Slo { due_at_ns, cost_max } = active.progress.slo;
        let end_ns = now_ns.saturating_add(estimate.finish_after_ns());
        let is_in_time = end_ns <= due_at_ns && estimate.cost <= cost_max;
        if active.progress.slo != Slo::NONE && (has_waited || is_in_time) {
            actions.push(WorkflowAction::Admit(invocation));
        }
    }

    /// Places the steps of a workflow separately.
    fn separate(&mut self, now_ns: u64, invocation: InvocationId, actions: &mut Vec<WorkflowAction>) {
        let Some(active) = self.active.get_mut(&invocation) else { return };
        active.is_separate = true;
        let keys = (0..active.planned.len()).map(|step| active.progress.key(step));
        self.steps.extend(active.planned.iter().map(|step| step.invocation).zip(keys));
        self.steps_arrive(now_ns, invocation, actions);
    }

    /// Announces the steps whose inputs exist.
    fn steps_arrive(&mut self, now_ns: u64, workflow: InvocationId, actions: &mut Vec<WorkflowAction>) {
        let Some(active) = self.active.get_mut(&workflow) else { return };
        let ready: Vec<usize> = active.progress.ready().filter(|step| !active.has_arrived[*step]).collect();
        let mut arrivals = Vec::with_capacity(ready.len());
        for step in ready {
            active.has_arrived[step] = true;
            arrivals.push(active.planned[step].arrival(u64::MAX, 0));
        }
        for arrival in arrivals {
            self.tell(now_ns, Event::Arrived(arrival), actions);
        }
    }

    /// Starts a whole workflow or a separate step.
    fn start(
        &mut self,
        now_ns: u64,
        invocation: InvocationId,
        (device, evict): (usize, Vec<ModelId>),
        actions: &mut Vec<WorkflowAction>,
    ) {
        let key = self.steps.get(&invocation).copied();
        let Some(active) = self.active.get(&key.map_or(invocation, |key| key.invocation)) else { return };
        let steps = active.progress.graph.steps();
        let models: Vec<ModelId> = match key {
            Some(key) => vec![model_id(steps[key.step].model)],
            None => steps.iter().map(|step| model_id(step.model)).collect(),
        };
        self.devices[device].evictable.start(invocation, models, evict);
        let key = key.unwrap_or(StepKey { invocation, step: 0 });
        self.start_step(now_ns, key, device, actions);
    }

    /// Starts a step, and reports the models that make room for it.
    fn start_step(&mut self, now_ns: u64, key: StepKey, at: usize, actions: &mut Vec<WorkflowAction>) {
        let Some(active) = self.active.get_mut(&key.invocation) else { return };
        let GraphStep { model, bytes, .. } = active.progress.graph.steps()[key.step];
        let device = &mut self.devices[at];
        let loads = !device.residents.contains_key(&model);
        let mut evict = Vec::new();
        if loads {
            let is_full = |residents: &BTreeMap<u32, u64>| {
                residents.values().sum::<u64>().saturating_add(bytes) > device.spec.capacity_bytes
            };
            let victims: Vec<u32> = device.evictable.victims().iter().filter_map(model_number).collect();
            for victim in victims {
                if is_full(&device.residents) && device.residents.remove(&victim).is_some() {
                    evict.push(victim);
                }
            }
            device.residents.insert(model, bytes);
        }
        let load_ns = match active.progress.graph.steps()[key.step].on(device.spec.kind) {
            Some(times) if loads => times.load_ns,
            _ => 0,
        };
        active.progress.steps[key.step] = StepState::Runs(at);
        active.starts[key.step] = (now_ns, load_ns);
        let StepKey { invocation, step } = key;
        for victim in &evict {
            self.devices[at].evictable.evicted(&model_id(*victim));
            let event = Event::Evicted { device: device_id(at), model: model_id(*victim) };
            self.tell(now_ns, event, actions);
        }
        actions.push(WorkflowAction::Start { invocation, step, device: at, loads, evict });
    }

    fn arrive(
        &mut self,
        now_ns: u64,
        (invocation, graph, slo): (InvocationId, Arc<WorkflowGraph>, Slo),
        actions: &mut Vec<WorkflowAction>,
    ) {
        let planned: Vec<PlannedStep> = graph.steps().iter().map(|step| self.planned(step)).collect();
        let mut models: Vec<ModelDemand> = Vec::new();
        for demand in planned.iter().flat_map(|step| &step.models) {
            if models.iter().all(|other| other.model != demand.model) {
                models.push(demand.clone());
            }
        }
        let time_ns = |kind: usize| (kind_named(kind), graph.total_run_ns(kind).unwrap_or(NEVER_NS));
        let arrival = Arrival {
            invocation,
            function: function_id("workflow", self.graph_number(&graph)),
            is_splittable: models.len() > 1,
            models,
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch: 1,
            run_time_ns: None,
            run_times_ns: (0..self.kinds_len()).map(time_ns).collect(),
            slo: (slo != Slo::NONE).then_some(slo),
            inputs: Vec::new(),
            batch_items_max: 1,
            steps: planned.clone(),
        };
        let active = ActiveWorkflow {
            is_separate: false,
            has_arrived: vec![false; planned.len()],
            starts: vec![(0, 0); planned.len()],
            planned,
            progress: Progress::new(now_ns, invocation, graph, slo),
        };
        self.active.insert(invocation, active);
        self.tell(now_ns, Event::Arrived(arrival), actions);
    }

    fn planned(&mut self, step: &GraphStep) -> PlannedStep {
        let invocation = InvocationId(self.next_id);
        self.next_id += 1;
        let known =
            self.functions.iter().position(|known| known.model == step.model && known.times == step.times);
        let number = known.unwrap_or_else(|| {
            self.functions.push(step.clone());
            self.functions.len() - 1
        });
        let runs_on = (0..self.kinds_len()).filter(|kind| step.on(*kind).is_some()).map(platform);
        let time_ns = |kind: usize| (kind_named(kind), step.on(kind).map_or(NEVER_NS, |times| times.run_ns));
        PlannedStep {
            invocation,
            function: function_id("step", number),
            models: vec![ModelDemand {
                model: model_id(step.model),
                bytes: step.bytes,
                load_time_ns: step.times.iter().flatten().map(|times| times.load_ns).max(),
                runs_on: runs_on.collect(),
                parts: Vec::new(),
            }],
            after: step.after.iter().filter_map(|after| u32::try_from(*after).ok()).collect(),
            batch: 1,
            run_times_ns: (0..self.kinds_len()).map(time_ns).collect(),
        }
    }

    fn end_step(&mut self, now_ns: u64, key: StepKey, actions: &mut Vec<WorkflowAction>) {
        let Some(active) = self.active.get_mut(&key.invocation) else { return };
        let Some(at) = active.progress.device_of(key.step) else { return };
        active.progress.steps[key.step] = StepState::Ended;
        let GraphStep { model, bytes, .. } = active.progress.graph.steps()[key.step];
        let (started_at_ns, load_ns) = active.starts[key.step];
        let first_ns = active.starts.first().map_or(now_ns, |(first_ns, _)| *first_ns);
        let is_separate = active.is_separate;
        let is_over = active.progress.is_over();
        let step_id = active.planned[key.step].invocation;
        let loads_ns: u64 = active.starts.iter().map(|(_, load_ns)| load_ns).sum();
        if load_ns > 0 {
            self.tell(now_ns, loaded(at, (model, bytes), Some(load_ns)), actions);
        }
        let next = StepKey { step: key.step + 1, ..key };
        if is_separate {
            self.steps.remove(&step_id);
            self.end_run(now_ns, (step_id, at), now_ns - started_at_ns - load_ns, actions);
            self.steps_arrive(now_ns, key.invocation, actions);
        } else if is_over {
            self.end_run(now_ns, (key.invocation, at), now_ns - first_ns - loads_ns, actions);
        } else {
            self.start_step(now_ns, next, at, actions);
        }
        if is_over {
            self.active.remove(&key.invocation);
            if is_separate {
                self.tell(now_ns, Event::Cancelled { invocation: key.invocation, used: None }, actions);
            }
        }
    }

    /// Reports the end of a run.
    fn end_run(
        &mut self,
        now_ns: u64,
        (invocation, at): (InvocationId, usize),
        run_time_ns: u64,
        actions: &mut Vec<WorkflowAction>,
    ) {
        self.devices[at].evictable.finish(invocation);
        let used = DeviceUse { device_time_ns: run_time_ns, run_time_ns, batch_items: 1, wait_ns: 0 };
        self.tell(now_ns, Event::Finished { invocation, used: Some(used) }, actions);
    }

    fn kinds_len(&self) -> usize {
        self.devices.iter().map(|device| device.spec.kind + 1).max().unwrap_or(0)
    }

    fn graph_number(&mut self, graph: &Arc<WorkflowGraph>) -> usize {
        self.graphs.iter().position(|known| Arc::ptr_eq(known, graph)).unwrap_or_else(|| {
            self.graphs.push(graph.clone());
            self.graphs.len() - 1
        })
    }
}

impl WorkflowPolicy for NodeWorkflows {
    fn handle(&mut self, now_ns: u64, event: WorkflowEvent, actions: &mut Vec<WorkflowAction>) {
        match event {
            WorkflowEvent::Arrived { invocation, graph, slo } => {
                self.arrive(now_ns, (invocation, graph, slo), actions);
            }
            WorkflowEvent::StepEnded { invocation, step } => {
                self.end_step(now_ns, StepKey { invocation, step }, actions);
            }
            WorkflowEvent::Woken => {
                self.wake_at_ns = None;
                self.tell(now_ns, Event::Woken, actions);
            }
        }
    }

    fn wake_at_ns(&self) -> Option<u64> {
        self.wake_at_ns
    }

    fn unfinished(&self) -> usize {
        self.active.len()
    }
}

/// The expected time of a step on a kind of device that cannot run it.
const NEVER_NS: u64 = 1 << 56;

fn kind_named(kind: usize) -> DeviceKind {
    DeviceKind(format!("kind {kind}").into())
}

fn platform(kind: usize) -> Platform {
    Platform::ALL[kind.min(Platform::ALL.len() - 1)]
}

fn device_id(at: usize) -> DeviceId {
    DeviceId { node: NodeId(u32::try_from(at).unwrap_or(u32::MAX)), ordinal: 0 }
}

fn loaded(at: usize, (model, bytes): (u32, u64), load_time_ns: Option<u64>) -> Event {
    Event::Loaded { device: device_id(at), model: model_id(model), bytes, load_time_ns, parts: Vec::new() }
}

/// The model's number is its version.
fn model_id(model: u32) -> ModelId {
    let FunctionId { tenant, name, .. } = function_id("model", 0);
    ModelId { tenant, name, version: Version(model) }
}

fn model_number(model: &ModelId) -> Option<u32> {
    (model.name.as_str() == "model").then_some(model.version.0)
}

fn function_id(name: &str, number: usize) -> FunctionId {
    let name = Name::new(name).unwrap_or_else(|_| unreachable!("a constant name is valid"));
    FunctionId {
        tenant: TenantId::default(),
        name,
        version: Version(u32::try_from(number).unwrap_or(u32::MAX)),
    }
}
