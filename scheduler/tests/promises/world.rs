//! A cluster that checks every promise as it goes.

use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet, VecDeque};
use weir_scheduler::{
    Action, Arrival, DeviceSpec, Event, Evictable, ModelDemand, Part, PartId, PolicyKind, PolicyOptions,
    Rejection, Scheduler, Settings, Slo, Why,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const QUEUE_LEN_MAX: usize = 4;
const CAPACITIES: [&[u64]; 2] = [&[10, 7], &[12]];
/// By model. The last is larger than any device.
const SIZES: [u64; 8] = [4, 5, 3, 5, 1, 2, 0, 13];
/// By model: what it has in common with others, as (id, bytes).
const PARTS: [&[(u64, u64)]; 8] =
    [&[], &[(1, 3)], &[(2, 2)], &[(1, 3), (2, 2)], &[], &[(2, 2)], &[], &[(1, 3)]];

/// Something that happens. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Arrive {
        models: Vec<usize>,
        deadline_ns: u64,
    },
    /// Decisions reach the nodes, and news reach the scheduler: this many of each at most.
    Exchange(usize),
    Open {
        invocation: usize,
        model: usize,
    },
    Finish {
        invocation: usize,
    },
    Cancel {
        invocation: usize,
    },
    Unload {
        device: usize,
        model: usize,
    },
    Down {
        node: u32,
    },
    Up {
        node: u32,
    },
    Time {
        ns: i64,
    },
    Nonsense(Event),
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let models = prop::collection::vec(0..SIZES.len(), 0..4);
    prop_oneof![
        8 => (models, 1_u64..100).prop_map(|(models, deadline_ns)| Step::Arrive { models, deadline_ns }),
        8 => (1_usize..6).prop_map(Step::Exchange),
        8 => (0_usize..8, 0_usize..4).prop_map(|(invocation, model)| Step::Open { invocation, model }),
        5 => (0_usize..8).prop_map(|invocation| Step::Finish { invocation }),
        1 => (0_usize..64).prop_map(|invocation| Step::Cancel { invocation }),
        1 => (0_usize..3, 0_usize..4).prop_map(|(device, model)| Step::Unload { device, model }),
        1 => (0_u32..2).prop_map(|node| Step::Down { node }),
        1 => (0_u32..2).prop_map(|node| Step::Up { node }),
        3 => (-20_i64..50).prop_map(|ns| Step::Time { ns }),
        2 => nonsense().prop_map(Step::Nonsense),
    ]
}

/// Events about what does not exist, and with absurd numbers. None may change what is promised about the rest.
fn nonsense() -> impl Strategy<Value = Event> {
    let nobody = InvocationId(u64::MAX);
    let nowhere = |node, ordinal| DeviceId { node: NodeId(node), ordinal };
    prop_oneof![
        Just(Event::Started { invocation: nobody }),
        Just(Event::Finished { invocation: nobody }),
        Just(Event::Failed { invocation: nobody }),
        Just(Event::Cancelled { invocation: nobody }),
        Just(Event::NodeDown { node: NodeId(9) }),
        Just(Event::Evicted { device: nowhere(0, 0), model: model(99) }),
        Just(Event::Evicted { device: nowhere(9, 0), model: model(0) }),
        Just(Event::Loaded {
            device: nowhere(0, u32::MAX),
            model: model(0),
            bytes: u64::MAX,
            load_time_ns: Some(u64::MAX),
            parts: vec![Part { id: PartId(1), bytes: u64::MAX }],
        }),
        Just(Event::Woken),
    ]
}

pub(crate) struct World {
    scheduler: Scheduler,
    now_ns: u64,
    next_id: u64,
    to_nodes: VecDeque<Action>,
    to_scheduler: VecDeque<Event>,
    nodes: BTreeMap<NodeId, Vec<Device>>,
    /// By invocation: the models it may open and how far it has come.
    invocations: BTreeMap<InvocationId, Told>,
    /// What the scheduler has been told is over.
    over: HashSet<InvocationId>,
}

struct Told {
    models: Vec<ModelId>,
    started_on: Option<DeviceId>,
    starts: u32,
    rejection: Option<Rejection>,
    cancelled: bool,
}

struct Device {
    capacity_bytes: u64,
    resident: HashSet<ModelId>,
    evictable: Evictable,
    running: BTreeMap<InvocationId, Vec<ModelId>>,
}

impl World {
    pub(crate) fn new(policy: PolicyKind) -> Self {
        let settings = Settings { queue_len_max: QUEUE_LEN_MAX, ..Settings::default() };
        let scheduler = Scheduler::with_policy(&settings, policy.build(&PolicyOptions::default()));
        let (to_nodes, to_scheduler, nodes, invocations, over) = Default::default();
        let mut world =
            Self { scheduler, now_ns: 0, next_id: 0, to_nodes, to_scheduler, nodes, invocations, over };
        world.up(0);
        world
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Arrive { models, deadline_ns } => self.arrive(&models, deadline_ns),
            Step::Exchange(count) => self.exchange(count),
            Step::Open { invocation, model } => self.open(invocation, model),
            Step::Finish { invocation } => self.finish(invocation),
            Step::Cancel { invocation } => self.cancel(invocation as u64),
            Step::Unload { device, model } => self.unload(device, model),
            Step::Down { node } => {
                self.leave(node);
                self.tell(Event::NodeDown { node: NodeId(node) });
            }
            Step::Up { node } => self.up(node),
            Step::Time { ns } => self.time(ns),
            Step::Nonsense(event) => self.tell(event),
        }
    }

    /// Let everything come to its end, and see that nobody was forgotten.
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
            let answered = told.starts > 0 || told.rejection.is_some() || told.cancelled;
            assert!(answered, "{id} with {:?} was forgotten", told.models);
        }
        assert_eq!(self.scheduler.view().running(), 0, "an invocation that is over still counts as running");
        assert_eq!(self.scheduler.waiting(), 0);
    }

    fn arrive(&mut self, models: &[usize], deadline_ns: u64) {
        let invocation = InvocationId(self.next_id);
        self.next_id += 1;
        let demand = |index: &usize| ModelDemand {
            model: model(*index),
            bytes: SIZES[*index],
            load_time_ns: None,
            runs_on: Platforms::ALL,
            parts: parts(*index),
        };
        let models: Vec<_> = models.iter().map(demand).collect();
        let told = Told {
            models: models.iter().map(|demand| demand.model.clone()).collect(),
            started_on: None,
            starts: 0,
            rejection: None,
            cancelled: false,
        };
        self.invocations.insert(invocation, told);
        let function = FunctionId { tenant: TenantId::default(), name: name("f"), version: Version(1) };
        let deadline_at_ns = self.now_ns + deadline_ns;
        let priority = u32::from(invocation.0.is_multiple_of(4));
        // Some have little time, and some want it cheap.
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
        };
        self.tell(Event::Arrived(arrival.clone()));
        // The same one again must change nothing.
        if self.scheduler.view().running() > 0
            && invocation.0.is_multiple_of(5)
            && self.is_under_way(invocation)
        {
            self.tell(Event::Arrived(arrival));
        }
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

    /// Tell the scheduler, and check what it says and knows.
    fn tell(&mut self, event: Event) {
        if let Event::Finished { invocation }
        | Event::Failed { invocation }
        | Event::Cancelled { invocation } = &event
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
            let firm_bytes = device.held_bytes() - device.evictable_bytes();
            assert!(firm_bytes <= device.spec().capacity_bytes, "overcommitted: {device:?}");
        }
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
                assert!(*why != Rejection::NoCapacity || bytes > 7, "{bytes} bytes do fit");
            }
            Action::WakeAt(at_ns) => {
                assert!(*at_ns > self.now_ns || self.scheduler.corrections().clock_went_back > 0);
            }
        }
    }

    fn carry_out(&mut self, action: Action) {
        let Action::Start { invocation, node, device, evict, .. } = action else { return };
        let told = &self.invocations[&invocation];
        // Its node went away, and has come back as another.
        if told.rejection.is_some() {
            return;
        }
        let models = told.models.clone();
        let devices = self.nodes.get_mut(&node).expect("something was started on a node that is down");
        let device = &mut devices[device.map_or(0, |device| device.ordinal as usize)];
        device.evictable.start(invocation, models.clone(), evict);
        if told.cancelled {
            // Nobody wants it any more, but others may already count on its victims.
            device.evictable.finish(invocation);
            return;
        }
        device.running.insert(invocation, models);
        self.to_scheduler.push_back(Event::Started { invocation });
    }

    /// A running invocation opens a model: it must fit once what may go has gone.
    fn open(&mut self, invocation: usize, model: usize) {
        let Some((id, invocation)) = self.running(invocation) else { return };
        let device = device(&mut self.nodes, id);
        let models = &device.running[&invocation];
        if models.is_empty() {
            return;
        }
        let model = models[model % models.len()].clone();
        if device.resident.contains(&model) {
            return;
        }
        for victim in device.evictable.victims() {
            if device.used_bytes_with(&model) <= device.capacity_bytes {
                break;
            }
            if device.resident.remove(&victim) {
                device.evictable.evicted(&victim);
                self.to_scheduler.push_back(Event::Evicted { device: id, model: victim });
            }
        }
        assert!(
            device.used_bytes_with(&model) <= device.capacity_bytes,
            "{model} was granted and does not fit: {:?} of {} bytes",
            device.resident,
            device.capacity_bytes
        );
        device.resident.insert(model.clone());
        let (bytes, parts) = (SIZES[index(&model)], parts(index(&model)));
        let load_time_ns = Some(bytes);
        self.to_scheduler.push_back(Event::Loaded { device: id, model, bytes, load_time_ns, parts });
    }

    fn finish(&mut self, invocation: usize) {
        let Some((id, invocation)) = self.running(invocation) else { return };
        self.stop(id, invocation);
        let event = if invocation.0.is_multiple_of(3) {
            Event::Failed { invocation }
        } else {
            Event::Finished { invocation }
        };
        self.to_scheduler.push_back(event);
    }

    fn cancel(&mut self, invocation: u64) {
        let invocation = InvocationId(invocation);
        let Some(told) = self.invocations.get_mut(&invocation) else { return };
        // The driver cancels each once, and only what it has not heard the end of.
        if told.cancelled || told.rejection.is_some() || self.over.contains(&invocation) {
            return;
        }
        told.cancelled = true;
        let running = self.nodes.iter().find_map(|(node, devices)| {
            let ordinal = devices.iter().position(|device| device.running.contains_key(&invocation))?;
            Some(DeviceId { node: *node, ordinal: ordinal as u32 })
        });
        match running {
            Some(id) => {
                self.stop(id, invocation);
                self.to_scheduler.push_back(Event::Cancelled { invocation });
            }
            None if self.to_scheduler.iter().any(|event| is_end_of(event, invocation)) => told_not(told),
            None => self.tell(Event::Cancelled { invocation }),
        }
    }

    fn stop(&mut self, id: DeviceId, invocation: InvocationId) {
        let device = device(&mut self.nodes, id);
        device.running.remove(&invocation);
        device.evictable.finish(invocation);
    }

    /// A model leaves for reasons of its own: it was deleted, say. Granted ones stay.
    fn unload(&mut self, at: usize, model: usize) {
        let mut ids = self.nodes.iter().flat_map(|(node, devices)| {
            (0..devices.len() as u32).map(|ordinal| DeviceId { node: *node, ordinal })
        });
        let Some(id) = ids.nth(at) else { return };
        let device = device(&mut self.nodes, id);
        let mut free: Vec<_> = device.resident.iter().cloned().collect();
        free.retain(|model| !device.running.values().any(|models| models.contains(model)));
        free.sort();
        let Some(model) = free.into_iter().nth(model) else { return };
        device.resident.remove(&model);
        device.evictable.evicted(&model);
        self.to_scheduler.push_back(Event::Evicted { device: id, model });
    }

    fn up(&mut self, node: u32) {
        // One that was up comes back without a word about having been away.
        self.leave(node);
        let capacities = CAPACITIES[node as usize];
        let device = |capacity_bytes: &u64| Device {
            capacity_bytes: *capacity_bytes,
            resident: HashSet::new(),
            evictable: Evictable::new(),
            running: BTreeMap::new(),
        };
        self.nodes.insert(NodeId(node), capacities.iter().map(device).collect());
        let spec = |capacity_bytes: &u64| DeviceSpec {
            kind: "cpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: *capacity_bytes,
            slots: 2,
            invocations_max: 3,
        };
        self.tell(Event::NodeUp { node: NodeId(node), devices: capacities.iter().map(spec).collect() });
    }

    /// A node goes: what it said is heard first, what was said to it is not.
    fn leave(&mut self, node: u32) {
        let node = NodeId(node);
        while let Some(event) = self.to_scheduler.pop_front() {
            self.tell(event);
        }
        self.nodes.remove(&node);
        self.to_nodes.retain(|action| !matches!(action, Action::Start { node: to, .. } if *to == node));
    }

    fn time(&mut self, ns: i64) {
        let now_ns = self.now_ns;
        self.now_ns = now_ns.saturating_add_signed(ns);
        self.tell(Event::Woken);
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn running(&self, index: usize) -> Option<(DeviceId, InvocationId)> {
        let all = self.nodes.iter().flat_map(|(node, devices)| {
            (0..).zip(devices).flat_map(move |(ordinal, device)| {
                device.running.keys().map(move |id| (DeviceId { node: *node, ordinal }, *id))
            })
        });
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| all[index % all.len()])
    }
}

impl Device {
    /// What its memory would hold with one more model.
    fn used_bytes_with(&self, model: &ModelId) -> u64 {
        together_bytes(self.resident.iter().chain([model]))
    }
}

fn device(nodes: &mut BTreeMap<NodeId, Vec<Device>>, id: DeviceId) -> &mut Device {
    &mut nodes.get_mut(&id.node).unwrap()[id.ordinal as usize]
}

fn told_not(told: &mut Told) {
    told.cancelled = false;
}

fn is_end_of(event: &Event, of: InvocationId) -> bool {
    matches!(event, Event::Finished { invocation } | Event::Failed { invocation } if *invocation == of)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn model(index: usize) -> ModelId {
    ModelId { tenant: TenantId::default(), name: name(&format!("m{index}")), version: Version(1) }
}

fn index(of: &ModelId) -> usize {
    of.name.as_str()[1..].parse().unwrap()
}

fn parts(index: usize) -> Vec<Part> {
    PARTS[index].iter().map(|(id, bytes)| Part { id: PartId(*id), bytes: *bytes }).collect()
}

/// What models take together: what they have in common counts once.
fn together_bytes<'a>(models: impl IntoIterator<Item = &'a ModelId>) -> u64 {
    let models: HashSet<usize> = models.into_iter().map(index).collect();
    let shared: HashSet<(u64, u64)> = models.iter().flat_map(|model| PARTS[*model]).copied().collect();
    let sum = |parts: &mut dyn Iterator<Item = &(u64, u64)>| parts.map(|(_, bytes)| bytes).sum::<u64>();
    let own: u64 = models.iter().map(|model| SIZES[*model] - sum(&mut PARTS[*model].iter())).sum();
    own + sum(&mut shared.iter())
}
