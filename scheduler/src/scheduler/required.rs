//! Required copies: models that devices keep in memory whether or not calls use them.
//!
//! A required copy is granted like the models of a running invocation, so it is never evicted. The
//! copies of a device take at most a part of its memory; the rest stays free for other calls.

use crate::view::{CombinedModelSize, ModelSize};
use crate::{
    Action, Arrival, DeviceKey, DeviceView, LeastLoss, PlacementRequest, RequiredModel, RoomFinder,
    TenantKey, Victims, View,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{FunctionId, InvocationId, ModelId, Platform, Version};

/// Maximum number of copies for which devices are sought after one event.
const COPIES_PER_EVENT: usize = 16;
/// Time until devices are sought for the copies beyond this number.
const NEXT_COPIES_NS: u64 = 10_000_000;
/// Time until devices are sought again, after no missing copy found one.
const NO_ROOM_RETRY_NS: u64 = 1_000_000_000;
/// Time for which a lost node may return with its copies before other devices load them.
const LOST_GRACE_NS: u64 = 10_000_000_000;
/// The time after which a device is considered again doubles with each failure, up to this power.
const RETRY_DOUBLINGS_MAX: u32 = 5;

/// The required models, and the devices that keep them.
pub(super) struct RequiredCopies {
    percent_max: u64,
    room: RoomFinder,
    models: Vec<RequiredModelState>,
    /// The model at which the next search begins.
    next: usize,
    /// Number of models that were searched in vain since the last change.
    in_vain: usize,
    /// When devices are sought for missing copies; `None` if no copy is missing.
    place_at_ns: Option<u64>,
}

/// A required model, and the devices that keep it. A model that is required no longer stays, with a
/// minimum of no copies, until its devices have released it.
struct RequiredModelState {
    model: RequiredModel,
    /// The model as a request, which holds a reference to its names.
    request: PlacementRequest,
    /// The devices that keep copies, and when each was chosen.
    on: BTreeMap<DeviceKey, u64>,
    /// Devices that are to release the model and have not done so yet.
    releasing: BTreeSet<DeviceKey>,
    /// Devices that failed to load the model: the time at which each is considered again, and the
    /// number of failures.
    failed: BTreeMap<DeviceKey, (u64, u32)>,
}

/// How a device ends its obligation to keep a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyEnd {
    /// The device has released the model, as demanded.
    Released,
    /// The device could not load the model.
    Failed,
}

impl RequiredCopies {
    pub(super) fn new(percent_max: u32) -> Self {
        Self {
            percent_max: u64::from(percent_max.min(100)),
            room: RoomFinder::new(Box::new(LeastLoss)),
            models: Vec::new(),
            next: 0,
            in_vain: 0,
            place_at_ns: None,
        }
    }

    /// Whether no model is required.
    pub(super) fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// When [`place`](Self::place) is due; `None` if no copy is missing.
    pub(super) fn place_at_ns(&self) -> Option<u64> {
        self.place_at_ns
    }

    /// Number of required copies that no device keeps.
    pub(super) fn missing(&self) -> u64 {
        self.models.iter().map(|model| model.copies_min().saturating_sub(model.on.len()) as u64).sum()
    }

    /// Memory of a tenant's required copies on all devices, and of the models of `request` that are
    /// not among them.
    pub(super) fn bytes_with(&self, request: &PlacementRequest) -> u64 {
        let copies = self.tenant_bytes(request.tenant);
        let is_required = |model| self.models.iter().any(|state| state.requires(model));
        let others = request.models.iter().filter(|demand| !is_required(demand.model));
        others.fold(copies, |sum, demand| sum.saturating_add(demand.bytes))
    }

    /// Memory of a tenant's required copies. Shared parts count once for each device.
    fn tenant_bytes(&self, tenant: TenantKey) -> u64 {
        let mut devices = BTreeMap::<DeviceKey, CombinedModelSize>::new();
        for state in self.models.iter().filter(|state| state.request.tenant == tenant) {
            for device in state.on.keys() {
                let together = devices.entry(*device).or_default();
                state.request.models.iter().for_each(|demand| together.add(&ModelSize::for_demand(demand)));
            }
        }
        devices.values().map(CombinedModelSize::bytes).fold(0, u64::saturating_add)
    }

    /// Replaces the list of required models. Copies that stay required stay on their devices.
    pub(super) fn set(
        &mut self,
        mut models: Vec<RequiredModel>,
        now_ns: u64,
        view: &mut View,
        actions: &mut Vec<Action>,
    ) {
        models.truncate(if self.percent_max == 0 { 0 } else { RequiredModel::MODELS_MAX });
        let before = std::mem::take(&mut self.models);
        let mut before: BTreeMap<_, _> =
            before.into_iter().map(|state| (state.model.demand.model.clone(), state)).collect();
        let mut listed = BTreeSet::new();
        for model in models {
            if !listed.insert(model.demand.model.clone()) {
                continue;
            }
            let request = resolve(&model, now_ns, view);
            let mut state = RequiredModelState::new(model, request);
            if let Some(known) = before.remove(&state.model.demand.model) {
                state.on = known.on;
                state.releasing = known.releasing;
                state.failed = known.failed;
                view.forget_names(&known.request);
            }
            state.release_unable(now_ns, view, actions);
            state.release_excess(now_ns, view, actions);
            self.models.push(state);
        }
        for (_, mut state) in before {
            state.model.copies_min = 0;
            state.release_excess(now_ns, view, actions);
            self.models.push(state);
        }
        self.next = 0;
        self.changed(now_ns, view);
    }

    /// Seeks devices for missing copies at the end of this event.
    pub(super) fn changed(&mut self, now_ns: u64, view: &mut View) {
        let over = self.models.extract_if(.., |state| state.copies_min() == 0 && state.releasing.is_empty());
        over.for_each(|state| view.forget_names(&state.request));
        self.in_vain = 0;
        self.place_at_ns = self.models.iter().any(RequiredModelState::is_missing).then_some(now_ns);
    }

    /// Records that a device no longer keeps a copy. Returns false if it had none that could end so.
    pub(super) fn ended(
        &mut self,
        device: DeviceKey,
        model: &ModelId,
        end: CopyEnd,
        now_ns: u64,
        view: &mut View,
    ) -> bool {
        let Some(state) = self.models.iter_mut().find(|state| state.model.demand.model == *model) else {
            return false;
        };
        let was_there = match end {
            CopyEnd::Released => state.releasing.remove(&device),
            CopyEnd::Failed => state.on.remove(&device).is_some(),
        };
        if !was_there {
            return false;
        }
        if end == CopyEnd::Failed {
            state.note_failure(device, now_ns);
            state.require_no_more(device, view);
        }
        state.end_promise(device, view);
        self.changed(now_ns, view);
        true
    }

    /// Forgets the copies on devices of a lost node.
    pub(super) fn devices_lost(&mut self, devices: &[DeviceKey], now_ns: u64, view: &mut View) {
        for state in &mut self.models {
            for device in devices {
                state.failed.remove(device);
                state.on.remove(device);
                state.releasing.remove(device);
            }
        }
        self.changed(now_ns, view);
        // The node may return in a moment, with its models.
        self.place_at_ns = self.place_at_ns.map(|place_at_ns| place_at_ns.saturating_add(LOST_GRACE_NS));
    }

    /// Releases the copies on a device that runs nothing for now. A device that was lost soon after
    /// it got a copy may have been lost by it, which counts as a failure.
    pub(super) fn device_down(
        &mut self,
        device: DeviceKey,
        now_ns: u64,
        view: &mut View,
        actions: &mut Vec<Action>,
    ) {
        for state in &mut self.models {
            let is_suspect = state.on.get(&device).is_some_and(|since_ns| is_new(*since_ns, now_ns));
            state.release(device, now_ns, view, actions);
            if is_suspect {
                state.note_failure(device, now_ns);
            }
        }
        self.changed(now_ns, view);
    }

    /// Releases copies on a device that has less memory than before, the latest of the list first.
    pub(super) fn shrink(
        &mut self,
        device: DeviceKey,
        now_ns: u64,
        view: &mut View,
        actions: &mut Vec<Action>,
    ) {
        while let Some(state) = view.device(device)
            && state.required_bytes() > required_bytes_max(state, self.percent_max)
        {
            let Some(last) = self.models.iter_mut().rev().find(|state| state.on.contains_key(&device)) else {
                break;
            };
            last.release(device, now_ns, view, actions);
        }
        self.changed(now_ns, view);
    }

    /// Chooses devices for missing copies, if that is due. `waiting_bytes` is the memory that the
    /// largest waiting call needs: copies leave a device with room for it.
    pub(super) fn place(
        &mut self,
        now_ns: u64,
        waiting_bytes: impl FnOnce() -> u64,
        view: &mut View,
        actions: &mut Vec<Action>,
    ) {
        if self.place_at_ns.is_none_or(|place_at_ns| now_ns < place_at_ns) {
            return;
        }
        let waiting_bytes = waiting_bytes();
        let len = self.models.len();
        let mut sought = 0;
        while sought < COPIES_PER_EVENT && self.in_vain < len {
            let at = self.next % len;
            let is_missing = self.models.get(at).is_some_and(RequiredModelState::is_missing);
            let found = if is_missing { self.best_device(at, now_ns, waiting_bytes, view) } else { None };
            sought += usize::from(is_missing);
            match (found, self.models.get_mut(at)) {
                (Some((device, victims)), Some(state)) => {
                    self.in_vain = 0;
                    state.load_on(device, &victims, now_ns, view, actions);
                }
                _ => {
                    self.in_vain += 1;
                    self.next = (at + 1) % len;
                }
            }
        }
        let after_ns = if self.in_vain < len { NEXT_COPIES_NS } else { NO_ROOM_RETRY_NS };
        if self.in_vain >= len {
            self.in_vain = 0;
        }
        let is_missing = self.models.iter().any(RequiredModelState::is_missing);
        self.place_at_ns = is_missing.then(|| now_ns.saturating_add(after_ns));
    }

    /// The device for one more copy of a model: on a node without a copy if possible, then one that
    /// has the model in memory, then the one that loses least by the load. Copies are on processors
    /// only if no accelerator can run the model.
    fn best_device(
        &self,
        at: usize,
        now_ns: u64,
        waiting_bytes: u64,
        view: &View,
    ) -> Option<(DeviceKey, Victims)> {
        let state = self.models.get(at)?;
        let demand = state.request.models.first()?;
        let tenant = view.tenants();
        let tenant_bytes = self.tenant_bytes(state.request.tenant).saturating_add(demand.bytes);
        if tenant_bytes > tenant.required_bytes_max(state.request.tenant) {
            return None;
        }
        let nodes: BTreeSet<_> = state
            .on
            .keys()
            .filter_map(|device| view.device(*device))
            .map(|device| device.id().node)
            .collect();
        let is_cpu = |device: &DeviceView| device.spec().platform == Platform::Cpu;
        let can_hold =
            |device: &DeviceView| device.can_run(demand) && demand.bytes <= device.spec().capacity_bytes;
        let has_accelerator = view.devices().any(|(_, device)| !is_cpu(device) && can_hold(device));
        let is_roomy =
            |device: &DeviceView| !device.is_down() && device.room_beside_required() >= waiting_bytes;
        let roomy: Vec<_> = view.devices().filter(|(_, device)| is_roomy(device)).collect();
        let fitting = view.devices().filter_map(|(key, device)| {
            let is_unfit = device.is_kept() || device.spec().invocations_max == 0;
            if is_unfit || is_cpu(device) && has_accelerator || state.is_excluded(key, now_ns) {
                return None;
            }
            let required_bytes = device.required_bytes_with(demand);
            // A call that needs more than the whole device does not wait for this one.
            let capacity_bytes = device.spec().capacity_bytes;
            let is_like = |other: &DeviceView| is_cpu(other) == is_cpu(device);
            let leaves_room = waiting_bytes > capacity_bytes
                || capacity_bytes.saturating_sub(required_bytes) >= waiting_bytes
                || roomy.iter().any(|(other, state)| *other != key && is_like(state));
            if required_bytes > required_bytes_max(device, self.percent_max) || !leaves_room {
                return None;
            }
            let victims = self.room.fit(now_ns, view, key, &state.request)?;
            let holds = device.holds(demand.model);
            let load_time_ns = if holds { 0 } else { view.load_time_ns(device, demand) };
            let rank = (
                nodes.contains(&device.id().node),
                !holds,
                victims.loss_ns.saturating_add(load_time_ns),
                Reverse(device.spec().capacity_bytes.saturating_sub(device.held_bytes())),
                key,
            );
            Some((rank, victims))
        });
        let (rank, victims) = fitting.min_by_key(|(rank, _)| *rank)?;
        Some((rank.4, victims))
    }
}

impl RequiredModelState {
    fn new(model: RequiredModel, request: PlacementRequest) -> Self {
        let (on, releasing, failed) = Default::default();
        Self { model, request, on, releasing, failed }
    }

    fn requires(&self, model: crate::ModelKey) -> bool {
        !self.on.is_empty() && self.request.models.iter().any(|demand| demand.model == model)
    }

    fn copies_min(&self) -> usize {
        usize::try_from(self.model.copies_min).unwrap_or(usize::MAX)
    }

    fn is_missing(&self) -> bool {
        self.on.len() < self.copies_min()
    }

    fn is_excluded(&self, device: DeviceKey, now_ns: u64) -> bool {
        self.on.contains_key(&device)
            || self.releasing.contains(&device)
            || self.failed.get(&device).is_some_and(|(until_ns, _)| now_ns < *until_ns)
    }

    fn note_failure(&mut self, device: DeviceKey, now_ns: u64) {
        let (until_ns, failures) = self.failed.entry(device).or_default();
        *until_ns = now_ns.saturating_add(RequiredModel::RETRY_NS << (*failures).min(RETRY_DOUBLINGS_MAX));
        *failures = failures.saturating_add(1);
    }

    fn load_on(
        &mut self,
        device: DeviceKey,
        victims: &Victims,
        now_ns: u64,
        view: &mut View,
        actions: &mut Vec<Action>,
    ) {
        for demand in &self.request.models {
            view.require(device, demand, victims, now_ns);
        }
        self.on.insert(device, now_ns);
        let given_up = view.take_given_up(device);
        let Some(id) = view.device(device).map(DeviceView::id) else { return };
        let evict = given_up.iter().chain(&victims.models).map(|model| view.model_id(*model).clone());
        let model = self.model.demand.model.clone();
        actions.push(Action::Load { device: id, model, evict: evict.collect() });
    }

    /// Releases the copies beyond the minimum, from the nodes with the most copies first.
    fn release_excess(&mut self, now_ns: u64, view: &mut View, actions: &mut Vec<Action>) {
        while self.on.len() > self.copies_min() {
            let node = |device: DeviceKey| view.device(device).map(|device| device.id().node);
            let beside = |device: DeviceKey| self.on.keys().filter(|on| node(**on) == node(device)).count();
            let Some(device) = self.on.keys().copied().max_by_key(|device| (beside(*device), *device)) else {
                return;
            };
            self.release(device, now_ns, view, actions);
        }
    }

    /// Releases the copies on devices that, as is known by now, cannot run the model.
    fn release_unable(&mut self, now_ns: u64, view: &mut View, actions: &mut Vec<Action>) {
        let Some(demand) = self.request.models.first() else { return };
        let is_unable = |device: &DeviceKey| view.device(*device).is_some_and(|state| !state.can_run(demand));
        let unable: Vec<_> = self.on.keys().copied().filter(is_unable).collect();
        for device in unable {
            self.release(device, now_ns, view, actions);
        }
    }

    /// Demands that a device releases its copy, if it has one.
    fn release(&mut self, device: DeviceKey, now_ns: u64, view: &mut View, actions: &mut Vec<Action>) {
        let Some(since_ns) = self.on.remove(&device) else { return };
        if !is_new(since_ns, now_ns) {
            self.failed.remove(&device);
        }
        self.require_no_more(device, view);
        if let Some(state) = view.device(device) {
            self.releasing.insert(device);
            actions.push(Action::Release { device: state.id(), model: self.model.demand.model.clone() });
        }
    }

    /// From now on, the copy on a device is a grant that ends, like that of a call.
    fn require_no_more(&self, device: DeviceKey, view: &mut View) {
        for demand in &self.request.models {
            view.require_no_more(device, demand.model);
        }
    }

    /// Ends the promise of room for the copy on a device.
    fn end_promise(&self, device: DeviceKey, view: &mut View) {
        for demand in &self.request.models {
            view.end_promise(device, demand.model);
        }
    }
}

/// Whether a copy that was placed at `since_ns` may be the reason for a loss of its device.
fn is_new(since_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(since_ns) < RequiredModel::RETRY_NS
}

/// The model as the request of an invocation, for which the device finds room as for a call's.
fn resolve(model: &RequiredModel, now_ns: u64, view: &mut View) -> PlacementRequest {
    let ModelId { tenant, name, .. } = model.demand.model.clone();
    let arrival = Arrival {
        invocation: InvocationId(0),
        function: FunctionId { tenant, name, version: Version(0) },
        models: vec![model.demand.clone()],
        deadline_at_ns: u64::MAX,
        priority: 0,
        batch: 1,
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 1,
        is_splittable: false,
        steps: Vec::new(),
    };
    view.resolve_names(&arrival, now_ns)
}

/// The part of a device's memory that required copies may take.
fn required_bytes_max(device: &DeviceView, percent_max: u64) -> u64 {
    device.spec().capacity_bytes.saturating_mul(percent_max) / 100
}
