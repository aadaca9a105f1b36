//! A simulated cluster that checks every guarantee on every step.

use super::models::{SIZES, model, name, parts, together_bytes};
use super::nodes::PromisedDevice;
use super::steps::PromiseStep;
use std::collections::{BTreeMap, HashSet, VecDeque};
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceView, Event, ModelDemand, PlannedStep, PolicyKind, PolicyOptions,
    Rejection, RequiredModel, Scheduler, Settings, Slo, Why,
};
use weir_types::{Cost, DeviceId, FunctionId, InvocationId, ModelId, NodeId, Platforms, TenantId, Version};

const QUEUE_LEN_MAX: usize = 4;

pub(crate) struct PromiseWorld {
    pub(super) scheduler: Scheduler,
    /// When the devices accept one more invocation.
    pub(super) rule: DeviceRule,
    pub(super) now_ns: u64,
    pub(super) next_id: u64,
    pub(super) to_nodes: VecDeque<Action>,
    pub(super) to_scheduler: VecDeque<Event>,
    pub(super) nodes: BTreeMap<NodeId, Vec<PromisedDevice>>,
    /// Invocations by id: the models that each may open, and its progress.
    pub(super) invocations: BTreeMap<InvocationId, Told>,
    /// Invocations whose end was reported to the scheduler.
    pub(super) over: HashSet<InvocationId>,
    /// The steps of workflows that have got no answer.
    planned: BTreeMap<InvocationId, Vec<Arrival>>,
    /// Whether any model was required so far.
    has_required: bool,
}

/// The decisions about an invocation, and its request.
pub(super) struct Told {
    pub(super) models: Vec<ModelId>,
    pub(super) started_on: Option<DeviceId>,
    pub(super) starts: u32,
    pub(super) rejection: Option<Rejection>,
    pub(super) cancelled: bool,
    /// Whether the invocation is a workflow whose steps have reservations.
    pub(super) is_reserved: bool,
}

impl PromiseWorld {
    pub(crate) fn new(policy: PolicyKind, rule: DeviceRule) -> Self {
        let settings = Settings { queue_len_max: QUEUE_LEN_MAX, ..Settings::default() };
        let scheduler = Scheduler::with_policy(&settings, policy.build(&PolicyOptions::default()));
        let (to_nodes, to_scheduler, nodes, invocations, over) = Default::default();
        let planned = BTreeMap::new();
        let mut world = Self {
            scheduler,
            rule,
            now_ns: 0,
            next_id: 0,
            to_nodes,
            to_scheduler,
            nodes,
            invocations,
            over,
            planned,
            has_required: false,
        };
        world.up(0);
        world
    }

    pub(crate) fn take(&mut self, step: PromiseStep) {
        match step {
            PromiseStep::Arrive { models, deadline_ns } => self.arrive(&models, deadline_ns),
            PromiseStep::Exchange(count) => self.exchange(count),
            PromiseStep::Open { invocation, model } => self.open(invocation, model),
            PromiseStep::Finish { invocation } => self.finish(invocation),
            PromiseStep::Cancel { invocation } => self.cancel(invocation as u64),
            PromiseStep::Unload { device, model } => self.unload(device, model),
            PromiseStep::Down { node } => {
                self.leave(node);
                self.tell(Event::NodeDown { node: NodeId(node) });
            }
            PromiseStep::Up { node } => self.up(node),
            PromiseStep::Time { ns } => self.time(ns),
            PromiseStep::Require { models, copies_min } => self.require(&models, copies_min),
            PromiseStep::LoadRequired { device, fails } => self.load_required(device, fails),
            PromiseStep::Nonsense(event) => self.tell(event),
        }
    }

    /// Lets everything end, and checks that no invocation was forgotten.
    pub(crate) fn end(&mut self) {
        for node in 0..2 {
            self.up(node);
        }
        while self.running(0).is_some() || !self.to_nodes.is_empty() || !self.to_scheduler.is_empty() {
            self.exchange(1_000);
            self.finish(0);
        }
        self.now_ns += 1_000_000;
        self.tell(Event::Woken);
        self.exchange(1_000);
        for (id, told) in &self.invocations {
            let answered = told.starts > 0 || told.rejection.is_some() || told.cancelled || told.is_reserved;
            assert!(answered, "{id} with {:?} was forgotten", told.models);
        }
        assert_eq!(self.scheduler.view().running(), 0, "an invocation that is over still counts as running");
        assert_eq!(self.scheduler.waiting(), 0);
    }

    fn require(&mut self, models: &[usize], copies_min: u32) {
        self.has_required = true;
        let required = |index: &usize| RequiredModel { demand: demand(*index), copies_min };
        self.tell(Event::Required { models: models.iter().map(required).collect() });
    }

    fn arrive(&mut self, models: &[usize], deadline_ns: u64) {
        let invocation = InvocationId(self.next_id);
        self.next_id += 1;
        let models: Vec<_> = models.iter().map(|index| demand(*index)).collect();
        self.invocations.insert(invocation, Told::new(&models));
        let function = FunctionId { tenant: TenantId::default(), name: name("f"), version: Version(1) };
        let deadline_at_ns = self.now_ns + deadline_ns;
        let priority = u32::from(invocation.0.is_multiple_of(4));
        // Some invocations have little time, and some have a low maximum cost.
        let due_at_ns = self.now_ns + deadline_ns / 2;
        let cost_max = Cost::from_nanos(if invocation.0.is_multiple_of(6) { 200_000_000 } else { u64::MAX });
        let slo = invocation.0.is_multiple_of(3).then_some(Slo { due_at_ns, cost_max });
        let run_time_ns = slo.map(|_| deadline_ns / 8);
        let run_times_ns = Vec::new();
        let arrival = Arrival {
            invocation,
            function,
            models,
            deadline_at_ns,
            priority,
            batch: 1,
            run_time_ns,
            run_times_ns,
            slo,
            inputs: Vec::new(),
            batch_items_max: 0,
            is_splittable: false,
            steps: Vec::new(),
        };
        let arrival = self.with_steps(arrival);
        self.tell(Event::Arrived(arrival.clone()));
        // A repeated arrival must change nothing.
        if self.scheduler.view().running() > 0
            && invocation.0.is_multiple_of(5)
            && self.is_under_way(invocation)
        {
            self.tell(Event::Arrived(arrival));
        }
    }

    /// Makes an invocation with an SLO and several models a workflow: each model is a step.
    fn with_steps(&mut self, mut arrival: Arrival) -> Arrival {
        if arrival.slo.is_none() || arrival.models.len() < 2 {
            return arrival;
        }
        let mut arrivals = Vec::new();
        for (at, demand) in (0_u32..).zip(arrival.models.clone()) {
            let invocation = InvocationId(self.next_id);
            self.next_id += 1;
            let time_ns = arrival.run_time_ns.unwrap_or(0) / 2;
            arrival.steps.push(PlannedStep {
                invocation,
                function: arrival.function.clone(),
                models: vec![demand.clone()],
                after: at.checked_sub(1).into_iter().collect(),
                batch: 1,
                run_times_ns: vec![("cpu".into(), time_ns)],
            });
            let (slo, steps) = Default::default();
            arrivals.push(Arrival { invocation, models: vec![demand], slo, steps, ..arrival.clone() });
        }
        self.planned.insert(arrival.invocation, arrivals);
        arrival
    }

    /// The steps of a workflow arrive, and the workflow ends.
    pub(super) fn steps_arrive(&mut self, workflow: InvocationId) {
        for arrival in self.planned.remove(&workflow).unwrap_or_default() {
            self.invocations.insert(arrival.invocation, Told::new(&arrival.models));
            self.to_scheduler.push_back(Event::Arrived(arrival));
        }
        self.to_scheduler.push_back(Event::Cancelled { invocation: workflow, used: None });
    }

    fn is_under_way(&self, invocation: InvocationId) -> bool {
        self.invocations[&invocation].rejection.is_none() && !self.over.contains(&invocation)
    }

    fn exchange(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(action) = self.to_nodes.pop_front() {
                self.carry_out(action);
            }
            if let Some(event) = self.to_scheduler.pop_front() {
                self.tell(event);
            }
        }
    }

    /// Passes an event to the scheduler, and checks its actions and its view.
    pub(super) fn tell(&mut self, event: Event) {
        if let Event::Finished { invocation, .. }
        | Event::Failed { invocation, .. }
        | Event::Cancelled { invocation, .. } = &event
        {
            self.over.insert(*invocation);
        }
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        for action in actions {
            self.check(&action);
            self.to_nodes.push_back(action);
        }
        assert!(self.scheduler.waiting() <= QUEUE_LEN_MAX, "the queue is not bounded");
        for (_, device) in self.scheduler.view().devices() {
            let committed_ns = (device.committed_ns(), device.committed_load_ns());
            assert!(device.running() > 0 || committed_ns == (0, 0), "{committed_ns:?} of nothing");
            let firm_bytes = device.held_bytes() - device.evictable_bytes();
            assert!(firm_bytes <= device.spec().capacity_bytes, "overcommitted: {device:?}");
        }
        let view = self.scheduler.view();
        let held_bytes =
            |device: &DeviceView| together_bytes(device.held().map(|model| view.model_id(model)));
        let charged_bytes = view.tenants().resident_bytes(&TenantId::default());
        assert_eq!(charged_bytes, view.devices().map(|(_, device)| held_bytes(device)).sum::<u64>());
    }

    fn check(&mut self, action: &Action) {
        match action {
            Action::Start { invocation, device, evict, why, node } => {
                let granted: HashSet<_> = self
                    .invocations
                    .iter()
                    .filter(|(id, told)| {
                        told.started_on.is_some() && told.started_on == *device && !self.over.contains(id)
                    })
                    .filter(|(_, told)| told.rejection.is_none())
                    .flat_map(|(_, told)| &told.models)
                    .collect();
                for victim in evict {
                    assert!(!granted.contains(victim), "{victim} was given up while it was granted");
                }
                let told = self.invocations.get_mut(invocation).expect("an unknown invocation was started");
                assert!(
                    evict.iter().all(|victim| !told.models.contains(victim)),
                    "its own model was given up"
                );
                assert_eq!(device.is_some(), !told.models.is_empty());
                assert!(device.is_none_or(|device| device.node == *node));
                assert!(why.alternatives.len() <= Why::ALTERNATIVES_MAX);
                told.starts += 1;
                told.started_on = *device;
                assert_eq!(
                    (told.starts, told.rejection),
                    (1, None),
                    "{invocation} started twice, or after it was rejected"
                );
            }
            Action::Reject { invocation, why, .. } => {
                let told = self.invocations.get_mut(invocation).expect("an unknown invocation was rejected");
                assert_eq!(told.rejection.replace(*why), None, "{invocation} was rejected twice");
                assert_eq!(
                    told.starts == 1,
                    *why == Rejection::NodeLost,
                    "{invocation} was rejected as {why:?}"
                );
                let bytes = together_bytes(&told.models);
                // Required copies take at most half of a device.
                let fitting_bytes = if self.has_required { 3 } else { 7 };
                assert!(*why != Rejection::NoCapacity || bytes > fitting_bytes, "{bytes} bytes do fit");
            }
            Action::Reserved { invocation, .. } => {
                let told = self.invocations.get_mut(invocation).expect("an unknown workflow was admitted");
                assert!(!std::mem::replace(&mut told.is_reserved, true), "{invocation} was admitted twice");
                assert!(told.starts == 0 && told.rejection.is_none());
            }
            Action::Load { model, evict, .. } => assert!(!evict.contains(model), "{action:?}"),
            Action::Release { .. } => {}
            Action::WakeAt(at_ns) => {
                assert!(*at_ns > self.now_ns || self.scheduler.corrections().clock_went_back > 0);
            }
        }
    }

    fn time(&mut self, ns: i64) {
        let now_ns = self.now_ns;
        self.now_ns = now_ns.saturating_add_signed(ns);
        self.tell(Event::Woken);
        self.now_ns = self.now_ns.max(now_ns);
    }
}

impl Told {
    fn new(models: &[ModelDemand]) -> Self {
        Self {
            models: models.iter().map(|demand| demand.model.clone()).collect(),
            started_on: None,
            starts: 0,
            rejection: None,
            cancelled: false,
            is_reserved: false,
        }
    }
}

fn demand(index: usize) -> ModelDemand {
    ModelDemand {
        model: model(index),
        bytes: SIZES[index],
        load_time_ns: None,
        runs_on: Platforms::ALL,
        parts: parts(index),
    }
}
