//! What the scheduler knows: nodes, their devices, what is in their memory, and what runs on them.

mod costs;
mod device;
mod models;
pub use device::{Candidate, DeviceView, Need};
pub use models::ModelView;

use crate::estimate::RunTimes;
use crate::keys::Table;
use crate::policy::Demand;
use crate::{
    Arrival, DeviceKey, DeviceKind, DeviceSpec, Estimate, FunctionKey, KindKey, LoadTimes, ModelKey,
    Placement, Request, Settings, Tenants, Tier,
};
use models::{Has, Models};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_types::{DeviceId, FunctionId, InvocationId, ModelId, NodeId};

/// Functions whose run times are remembered; see [`Table`].
const FUNCTIONS_MAX: usize = 16_384;

/// Kinds of devices that are told apart; more count as the last one.
const KINDS_MAX: usize = 256;

/// The cluster as the scheduler sees it. Policies read it; only [`Scheduler`](crate::Scheduler) changes it.
#[derive(Debug)]
pub struct View {
    nodes: BTreeMap<NodeId, NodeView>,
    /// By key. Places of nodes that went are used again.
    devices: Vec<Option<DeviceView>>,
    /// Devices that may take one more invocation, those with the most dispatches first.
    open: BTreeSet<(Reverse<u64>, DeviceKey)>,
    /// The others, by when the first invocation there is expected to end.
    closed: BTreeSet<(u64, DeviceKey)>,
    kinds: Vec<DeviceKind>,
    models: Models,
    /// Counts events.
    events: u64,
    /// Devices on which something was freed since the last event.
    eased: SmallVec<[DeviceKey; 8]>,
    /// When the first invocation arrived.
    watched_from_ns: Option<u64>,
    functions: Table<FunctionId, RunTimes>,
    tenants: Tenants,
    running: HashMap<InvocationId, Running>,
    load_times: LoadTimes,
    run_times: RunTimes,
    /// Counts grants, to tell which model was used last.
    clock: u64,
    freed: u64,
    capacity_bytes_max: Option<u64>,
}

/// One node.
#[derive(Debug)]
pub struct NodeView {
    devices: Vec<DeviceKey>,
    running: u32,
}

/// An invocation that was told to start.
#[derive(Debug)]
struct Running {
    node: NodeId,
    device: Option<DeviceKey>,
    models: SmallVec<[ModelKey; 1]>,
    /// Those of them that were not there.
    missing: SmallVec<[ModelKey; 1]>,
    function: FunctionKey,
    tenant: crate::TenantKey,
    batch: u32,
    started_at_ns: u64,
    /// Loads that it waited for, as measured.
    load_time_ns: u64,
    end_ns: u64,
    charged_ns: u64,
}

impl View {
    pub(crate) fn new(settings: &Settings) -> Self {
        let (nodes, devices, open, closed, kinds, running) = Default::default();
        Self {
            nodes,
            devices,
            open,
            closed,
            kinds,
            models: Models::new(),
            events: 0,
            eased: SmallVec::new(),
            watched_from_ns: None,
            functions: Table::new(FUNCTIONS_MAX),
            tenants: Tenants::new(settings.tenants.clone(), settings.tenant_default.clone()),
            running,
            load_times: LoadTimes::default(),
            run_times: RunTimes::default(),
            clock: 0,
            freed: 0,
            capacity_bytes_max: None,
        }
    }

    /// The nodes that are up.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeView)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// A node, if it is up.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&NodeView> {
        self.nodes.get(&node)
    }

    /// The devices of all nodes that are up.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceKey, &DeviceView)> {
        (0..).zip(&self.devices).filter_map(|(key, device)| Some((DeviceKey(key), device.as_ref()?)))
    }

    /// A device, if its node is up.
    #[must_use]
    pub fn device(&self, device: DeviceKey) -> Option<&DeviceView> {
        self.devices.get(device.index())?.as_ref()
    }

    /// The number of a device, if its node is up.
    #[must_use]
    pub fn device_key(&self, device: DeviceId) -> Option<DeviceKey> {
        self.nodes.get(&device.node)?.devices.get(usize::try_from(device.ordinal).ok()?).copied()
    }

    /// Devices that may take one more invocation: those that took the most so far first, equals in the order of their keys.
    pub fn open(&self) -> impl Iterator<Item = DeviceKey> {
        self.open.iter().map(|(_, device)| *device)
    }

    /// The same from the other end: those that took the fewest so far first.
    pub fn open_last(&self) -> impl Iterator<Item = DeviceKey> {
        self.open.iter().rev().map(|(_, device)| *device)
    }

    /// Devices that may take no more: those first whose next invocation is expected to end first.
    pub fn closed(&self) -> impl Iterator<Item = DeviceKey> {
        self.closed.iter().map(|(_, device)| *device)
    }

    /// The number of the event that is being handled.
    #[must_use]
    pub fn event(&self) -> u64 {
        self.events
    }

    /// Devices that have more to offer than before the last event: an end, an eviction, or they are new.
    #[must_use]
    pub fn eased(&self) -> &[DeviceKey] {
        &self.eased
    }

    /// The device that comes after `last`, in the order of their keys and then from the first again.
    #[must_use]
    pub fn device_after(&self, last: Option<DeviceKey>) -> Option<DeviceKey> {
        let from = last.map_or(0, |last| last.index() + 1).min(self.devices.len());
        let (before, behind) = self.devices.split_at(from);
        let at = behind.iter().position(Option::is_some).map(|at| from + at);
        let at = at.or_else(|| before.iter().position(Option::is_some))?;
        u32::try_from(at).ok().map(DeviceKey)
    }

    /// Arrivals per second that asked for a model, as of late.
    #[must_use]
    pub fn demand_per_s(&self, model: ModelKey, now_ns: u64) -> f64 {
        let watched_ns = now_ns.saturating_sub(self.watched_from_ns.unwrap_or(now_ns));
        self.models.get(model).demand_per_s(now_ns, watched_ns)
    }

    /// A model that waits, runs or is held.
    #[must_use]
    pub fn model(&self, model: ModelKey) -> &ModelView {
        self.models.get(model)
    }

    /// The name of a model that waits, runs or is held.
    #[must_use]
    pub fn model_id(&self, model: ModelKey) -> &ModelId {
        self.models.id(model)
    }

    /// The number of a model, if it has one.
    #[must_use]
    pub fn model_key(&self, model: &ModelId) -> Option<ModelKey> {
        self.models.key(model)
    }

    /// The memory of the largest device; none if there is none.
    #[must_use]
    pub fn capacity_bytes_max(&self) -> Option<u64> {
        self.capacity_bytes_max
    }

    /// What tenants use and may use.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Invocations that were told to start and are not over.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Rises whenever something ends, leaves or comes up: what had no place before may have one now.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// An event is taken in.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.events += 1;
        self.eased.clear();
        self.tenants.begin(now_ns);
    }

    pub(crate) fn is_running(&self, invocation: InvocationId) -> bool {
        self.running.contains_key(&invocation)
    }

    pub(crate) fn tenants_mut(&mut self) -> &mut Tenants {
        &mut self.tenants
    }

    /// Resolve the names of an arrival, whose models must differ. [`forget`](Self::forget) undoes it.
    pub(crate) fn resolve(&mut self, arrival: &Arrival, now_ns: u64) -> Request {
        self.watched_from_ns.get_or_insert(now_ns);
        let tenant = self.tenants.retain(&arrival.function.tenant);
        let function = FunctionKey(self.functions.retain(&arrival.function));
        let demands = arrival.models.iter().map(|demand| {
            let model = self.models.retain(&demand.model);
            self.models.get_mut(model).demand(now_ns);
            Demand { model, bytes: demand.bytes, load_time_ns: demand.load_time_ns }
        });
        let models = demands.collect();
        Request {
            invocation: arrival.invocation,
            tenant,
            function,
            models,
            arrived_at_ns: now_ns,
            deadline_at_ns: arrival.deadline_at_ns,
            priority: arrival.priority,
            batch: arrival.batch,
            run_time_ns: arrival.run_time_ns,
        }
    }

    /// A request is not waited for any more.
    pub(crate) fn forget(&mut self, request: &Request) {
        for demand in &request.models {
            self.models.get_mut(demand.model).waits_no_more();
            self.models.release(demand.model);
        }
        self.functions.release(request.function.0);
        self.tenants.release(request.tenant);
    }

    /// Book a placement. The references of its request are the running invocation's from now on.
    pub(crate) fn place(&mut self, placement: &Placement, now_ns: u64) {
        self.clock += 1;
        let clock = self.clock;
        let Placement { request, node, device, evict, evict_elsewhere, why } = placement;
        for (device, model) in evict_elsewhere {
            self.change(*device, SmallVec::from_slice(&[*model]), |view| view.give_up(*model));
        }
        if let Some(node) = self.nodes.get_mut(node) {
            node.running += 1;
        }
        for demand in &request.models {
            self.models.get_mut(demand.model).waits_no_more();
        }
        let Estimate { wait_ns, load_time_ns, run_time_ns, .. } = why.estimate;
        let charged_ns = load_time_ns.saturating_add(run_time_ns);
        let end_ns = now_ns.saturating_add(wait_ns).saturating_add(charged_ns);
        let mut missing = SmallVec::new();
        if let Some(device) = *device {
            let view = self.devices.get(device.index()).and_then(Option::as_ref);
            let lacks = |demand: &&Demand| view.is_some_and(|view| !view.holds(demand.model));
            missing = request.models.iter().filter(lacks).map(|demand| demand.model).collect();
            let touched =
                request.models.iter().map(|demand| demand.model).chain(evict.iter().copied()).collect();
            self.change(device, touched, |view| {
                view.grant((request.invocation, end_ns), &request.models, evict, clock);
            });
        }
        let running = Running {
            node: *node,
            device: *device,
            models: request.models.iter().map(|demand| demand.model).collect(),
            missing,
            function: request.function,
            tenant: request.tenant,
            batch: request.batch,
            started_at_ns: now_ns,
            load_time_ns: 0,
            end_ns,
            charged_ns,
        };
        self.tenants.start(request.tenant, charged_ns);
        self.running.insert(request.invocation, running);
    }

    /// Models of a device that may go, of which its node has not been told.
    pub(crate) fn take_given_up(&mut self, device: DeviceKey) -> Vec<ModelKey> {
        let view = self.devices.get_mut(device.index()).and_then(Option::as_mut);
        view.map(DeviceView::take_given_up).unwrap_or_default()
    }

    /// An invocation does run. False if it is not known.
    pub(crate) fn started(&mut self, invocation: InvocationId, now_ns: u64) -> bool {
        let Some(running) = self.running.get_mut(&invocation) else { return false };
        let late_ns = now_ns.saturating_sub(running.started_at_ns);
        let (before_ns, end_ns) = (running.end_ns, running.end_ns.saturating_add(late_ns));
        running.started_at_ns = now_ns;
        running.end_ns = end_ns;
        if let Some(device) = running.device.filter(|_| late_ns > 0) {
            self.change(device, SmallVec::new(), |view| view.expect_end(invocation, before_ns, end_ns));
        }
        true
    }

    /// An invocation is over. False if it is not known. Only those that did their work say how long that takes.
    pub(crate) fn over(&mut self, invocation: InvocationId, now_ns: u64, worked: bool) -> bool {
        let Some(running) = self.running.remove(&invocation) else { return false };
        let taken_ns = now_ns.saturating_sub(running.started_at_ns);
        self.tenants.finish(running.tenant, running.charged_ns, taken_ns);
        if let Some(node) = self.nodes.get_mut(&running.node) {
            node.running = node.running.saturating_sub(1);
        }
        if let Some(key) = running.device {
            let models = running.models.clone();
            if let Some(kind) = self.device(key).map(|device| device.kind().index()).filter(|_| worked) {
                let run_time_ns = taken_ns.saturating_sub(running.load_time_ns);
                self.functions.get_mut(running.function.0).add(kind, running.batch, run_time_ns);
                self.run_times.add(kind, running.batch, run_time_ns);
            }
            self.change(key, models.clone(), |device| {
                device.release((invocation, running.end_ns), &models, worked.then_some(taken_ns));
            });
            self.freed += 1;
            self.eased.push(key);
        }
        self.drop_running(&running);
        true
    }

    /// A model is in a device's memory. False if the device is not known, or the model was there already.
    pub(crate) fn loaded(
        &mut self,
        device: DeviceKey,
        model: &ModelId,
        bytes: u64,
        load_time_ns: Option<u64>,
    ) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let key = self.models.retain(model);
        if let Some(load_time_ns) = load_time_ns {
            self.learn_load(device, key, bytes, load_time_ns);
        }
        let held_before = self.device(device).map_or(0, DeviceView::held_bytes);
        let was_promised = self.device(device).is_some_and(|view| view.has(key).place);
        let mut news = false;
        self.change(device, SmallVec::from_slice(&[key]), |view| news = view.loaded(key, bytes, clock));
        self.models.release(key);
        let held_after = self.device(device).map_or(0, DeviceView::held_bytes);
        if !was_promised || held_after < held_before {
            self.freed += 1;
            self.eased.push(device);
        }
        news
    }

    /// A model is not in a device's memory any more. False if it was not.
    pub(crate) fn evicted(&mut self, device: DeviceKey, model: &ModelId) -> bool {
        let Some(key) = self.models.key(model) else { return false };
        let was_held = self.device(device).is_some_and(|view| view.holds(key));
        let mut evicted = false;
        self.change(device, SmallVec::from_slice(&[key]), |view| evicted = view.evicted(key));
        if evicted && was_held {
            self.freed += 1;
            self.eased.push(device);
        }
        evicted
    }

    /// Where a node would load a model from.
    pub(crate) fn staged(&mut self, node: NodeId, model: &ModelId, bytes: &[(Tier, u64)]) {
        let key = self.models.retain(model);
        self.models.get_mut(key).stage(node, bytes);
        self.models.release(key);
    }

    pub(crate) fn node_up(&mut self, node: NodeId, specs: Vec<DeviceSpec>) {
        let mut devices = Vec::new();
        for (ordinal, spec) in (0..).zip(specs) {
            let kind = self.kind(&spec.kind);
            let view = DeviceView::new(DeviceId { node, ordinal }, kind, spec);
            let place = self.devices.iter().position(Option::is_none).unwrap_or(self.devices.len());
            let key = DeviceKey(u32::try_from(place).unwrap_or(u32::MAX));
            if view.is_open() {
                self.open.insert((Reverse(0), key));
            } else {
                self.closed.insert((view.free_at_ns(), key));
            }
            match self.devices.get_mut(place) {
                Some(free) => *free = Some(view),
                None => self.devices.push(Some(view)),
            }
            devices.push(key);
        }
        self.eased.extend_from_slice(&devices);
        self.nodes.insert(node, NodeView { devices, running: 0 });
        self.freed += 1;
        self.sum_up();
    }

    /// Forget a node. Returns what ran there, in order, and its devices, or none if the node is not known.
    pub(crate) fn node_down(&mut self, node: NodeId) -> Option<(Vec<InvocationId>, Vec<DeviceKey>)> {
        let NodeView { devices, .. } = self.nodes.remove(&node)?;
        let mut lost: Vec<_> = self.running.extract_if(|_, running| running.node == node).collect();
        lost.sort_unstable_by_key(|(invocation, _)| *invocation);
        for (_, running) in &lost {
            self.tenants.finish(running.tenant, running.charged_ns, running.charged_ns);
            self.drop_running(running);
        }
        for key in &devices {
            let Some(view) = self.devices.get_mut(key.index()).and_then(Option::take) else { continue };
            self.open.remove(&(Reverse(view.dispatches()), *key));
            self.closed.remove(&(view.free_at_ns(), *key));
            for model in view.all() {
                self.models.moved(model, *key, view.has(model), Has::default(), &mut self.tenants);
            }
        }
        self.models.unstage(node);
        self.sum_up();
        Some((lost.into_iter().map(|(invocation, _)| invocation).collect(), devices))
    }

    fn drop_running(&mut self, running: &Running) {
        for model in &running.models {
            self.models.release(*model);
        }
        self.functions.release(running.function.0);
        self.tenants.release(running.tenant);
    }

    /// Change a device, and keep what is indexed by its models and by whether it is open.
    fn change(
        &mut self,
        key: DeviceKey,
        touched: SmallVec<[ModelKey; 1]>,
        change: impl FnOnce(&mut DeviceView),
    ) {
        let Some(device) = self.devices.get_mut(key.index()).and_then(Option::as_mut) else { return };
        let before: SmallVec<[_; 4]> = touched.into_iter().map(|model| (model, device.has(model))).collect();
        let (was_open, dispatches, free_at_ns) = (device.is_open(), device.dispatches(), device.free_at_ns());
        change(device);
        let now = (device.is_open(), device.dispatches(), device.free_at_ns());
        if now != (was_open, dispatches, free_at_ns) {
            if was_open {
                self.open.remove(&(Reverse(dispatches), key));
            } else {
                self.closed.remove(&(free_at_ns, key));
            }
            if now.0 {
                self.open.insert((Reverse(now.1), key));
            } else {
                self.closed.insert((now.2, key));
            }
        }
        for (model, before) in &before {
            self.models.moved(*model, key, *before, device.has(*model), &mut self.tenants);
        }
        for model in device.held().filter(|model| !before.iter().any(|(touched, _)| touched == model)) {
            self.models.get_mut(model).freed_at(key, free_at_ns, now.2);
        }
    }

    fn kind(&mut self, kind: &DeviceKind) -> KindKey {
        let known = self.kinds.iter().position(|known| known == kind);
        let at = known.unwrap_or_else(|| {
            if self.kinds.len() < KINDS_MAX {
                self.kinds.push(kind.clone());
            }
            self.kinds.len() - 1
        });
        KindKey(u32::try_from(at).unwrap_or(u32::MAX))
    }

    fn sum_up(&mut self) {
        self.capacity_bytes_max = self.devices().map(|(_, device)| device.spec().capacity_bytes).max();
        let slots = self.devices().map(|(_, device)| {
            let spec = device.spec();
            u64::from(spec.slots.min(spec.invocations_max).max(1))
        });
        let slots = slots.sum();
        self.tenants.set_slots(slots);
    }
}

impl NodeView {
    /// Its devices, by ordinal.
    #[must_use]
    pub fn devices(&self) -> &[DeviceKey] {
        &self.devices
    }

    /// Invocations that run on it, with and without models.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running
    }
}
