//! Required copies: models that devices keep in memory whether or not calls use them.
//!
//! A required copy is granted like the models of a running invocation, so it is never evicted. The
//! copies of a device take at most a part of its memory; the rest stays free for other calls.

use crate::{
    Action, Arrival, DeviceKey, DeviceView, LeastLoss, PlacementRequest, RequiredModel, RoomFinder, Victims,
    View,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{FunctionId, InvocationId, ModelId, Version};

/// Models for which one event seeks devices. The next event or wake-up goes on with the others.
const MODELS_PER_EVENT: usize = 16;
/// Time until the others.
const NEXT_MODELS_NS: u64 = 10_000_000;
/// Time until devices are sought again for copies that found no room.
const NO_ROOM_RETRY_NS: u64 = 1_000_000_000;

/// The required models, and the devices that keep them.
pub(super) struct RequiredCopies {
    percent_max: u64,
    room: RoomFinder,
    models: Vec<RequiredCopy>,
    /// The model at which the next search begins.
    next: usize,
    /// When devices are sought for missing copies; `None` if no copy is missing.
    place_at_ns: Option<u64>,
}

/// A required model, and the devices that keep it. A model that is required no longer stays, with no
/// copies, until its devices have released it.
struct RequiredCopy {
    model: RequiredModel,
    /// The model as a request, which holds a reference to its names.
    request: PlacementRequest,
    on: BTreeSet<DeviceKey>,
    /// Devices that are to release the model and have not done so yet.
    releasing: BTreeSet<DeviceKey>,
    /// Devices that failed to load the model, and the time at which they are considered again.
    failed: BTreeMap<DeviceKey, u64>,
}

impl RequiredCopies {
    pub(super) fn new(percent_max: u32) -> Self {
        Self {
            percent_max: u64::from(percent_max.min(100)),
            room: RoomFinder::new(Box::new(LeastLoss)),
            models: Vec::new(),
            next: 0,
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
        self.models.iter().map(|copy| copy.copies_min().saturating_sub(copy.on.len()) as u64).sum()
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
            before.into_iter().map(|copy| (copy.model.demand.model.clone(), copy)).collect();
        for model in models {
            if self.models.iter().any(|copy| copy.is_of(&model.demand.model)) {
                continue;
            }
            let request = resolve(&model, now_ns, view);
            let mut copy = RequiredCopy::new(model, request);
            if let Some(known) = before.remove(&copy.model.demand.model) {
                copy.on = known.on;
                copy.releasing = known.releasing;
                copy.failed = known.failed;
                view.forget_names(&known.request);
            }
            while copy.on.len() > copy.copies_min() {
                let Some(device) = copy.on.last().copied() else { break };
                copy.release(device, view, actions);
            }
            self.models.push(copy);
        }
        for (_, mut copy) in before {
            copy.model.copies_min = 0;
            while let Some(device) = copy.on.first().copied() {
                copy.release(device, view, actions);
            }
            self.models.push(copy);
        }
        self.next = 0;
        self.changed(now_ns, view);
    }

    /// Seeks devices for missing copies at the end of this event.
    pub(super) fn changed(&mut self, now_ns: u64, view: &mut View) {
        let gone = self.models.extract_if(.., |copy| copy.copies_min() == 0 && copy.releasing.is_empty());
        gone.for_each(|copy| view.forget_names(&copy.request));
        self.place_at_ns = self.models.iter().any(RequiredCopy::is_missing).then_some(now_ns);
    }

    /// Records that a device has released a model. Returns false if that was not demanded.
    pub(super) fn released(
        &mut self,
        device: DeviceKey,
        model: &ModelId,
        now_ns: u64,
        view: &mut View,
    ) -> bool {
        let Some(copy) = self.models.iter_mut().find(|copy| copy.is_of(model)) else { return false };
        if !copy.releasing.remove(&device) {
            return false;
        }
        copy.let_go(device, view);
        self.changed(now_ns, view);
        true
    }

    /// Records that a device could not load a model. Returns false if the model was not required
    /// there.
    pub(super) fn failed(
        &mut self,
        device: DeviceKey,
        model: &ModelId,
        now_ns: u64,
        view: &mut View,
    ) -> bool {
        let Some(copy) = self.models.iter_mut().find(|copy| copy.is_of(model)) else { return false };
        if !copy.on.remove(&device) {
            return false;
        }
        copy.failed.insert(device, now_ns.saturating_add(RequiredModel::RETRY_NS));
        copy.let_go(device, view);
        self.changed(now_ns, view);
        true
    }

    /// Forgets the copies on devices of a lost node.
    pub(super) fn devices_gone(&mut self, devices: &[DeviceKey], now_ns: u64, view: &mut View) {
        for copy in &mut self.models {
            for device in devices {
                copy.failed.remove(device);
                copy.on.remove(device);
                copy.releasing.remove(device);
            }
        }
        self.changed(now_ns, view);
    }

    /// Releases the copies on a device that runs nothing for now.
    pub(super) fn device_down(
        &mut self,
        device: DeviceKey,
        now_ns: u64,
        view: &mut View,
        actions: &mut Vec<Action>,
    ) {
        for copy in &mut self.models {
            copy.release(device, view, actions);
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
        let Some(state) = view.device(device) else { return };
        let bytes_max = required_bytes_max(state, self.percent_max);
        let mut bytes = state.required_bytes();
        for copy in self.models.iter_mut().rev() {
            if bytes <= bytes_max {
                break;
            }
            if copy.release(device, view, actions) {
                bytes = bytes.saturating_sub(copy.model.demand.bytes);
            }
        }
        self.changed(now_ns, view);
    }

    /// Chooses devices for missing copies, if that is due.
    pub(super) fn place(&mut self, now_ns: u64, view: &mut View, actions: &mut Vec<Action>) {
        if self.place_at_ns.is_none_or(|place_at_ns| now_ns < place_at_ns) {
            return;
        }
        let len = self.models.len();
        let mut placed = false;
        let mut sought = 0;
        for _ in 0..len {
            if sought == MODELS_PER_EVENT {
                break;
            }
            let at = self.next % len;
            self.next = (at + 1) % len;
            let Some(copy) = self.models.get_mut(at) else { break };
            copy.failed.retain(|_, until_ns| *until_ns > now_ns);
            sought += usize::from(copy.is_missing());
            while copy.is_missing() {
                let Some((device, victims)) = best_device(copy, &self.room, self.percent_max, now_ns, view)
                else {
                    break;
                };
                placed = true;
                copy.load_on(device, &victims, now_ns, view, actions);
            }
        }
        let after_ns = if placed || sought == MODELS_PER_EVENT { NEXT_MODELS_NS } else { NO_ROOM_RETRY_NS };
        let is_missing = self.models.iter().any(RequiredCopy::is_missing);
        self.place_at_ns = is_missing.then(|| now_ns.saturating_add(after_ns));
    }
}

impl RequiredCopy {
    fn new(model: RequiredModel, request: PlacementRequest) -> Self {
        let (on, releasing, failed) = Default::default();
        Self { model, request, on, releasing, failed }
    }

    fn is_of(&self, model: &ModelId) -> bool {
        self.model.demand.model == *model
    }

    fn copies_min(&self) -> usize {
        usize::try_from(self.model.copies_min).unwrap_or(usize::MAX)
    }

    fn is_missing(&self) -> bool {
        self.on.len() < self.copies_min()
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
        self.on.insert(device);
        let given_up = view.take_given_up(device);
        let Some(id) = view.device(device).map(DeviceView::id) else { return };
        let evict = given_up.iter().chain(&victims.models).map(|model| view.model_id(*model).clone());
        actions.push(Action::Load {
            device: id,
            model: self.model.demand.model.clone(),
            evict: evict.collect(),
        });
    }

    /// Demands that a device releases its copy. Returns false if it has none.
    fn release(&mut self, device: DeviceKey, view: &View, actions: &mut Vec<Action>) -> bool {
        let was_on = self.on.remove(&device);
        if let Some(state) = view.device(device).filter(|_| was_on) {
            self.releasing.insert(device);
            actions.push(Action::Release { device: state.id(), model: self.model.demand.model.clone() });
        }
        was_on
    }

    /// Ends the promise of room for the copy.
    fn let_go(&self, device: DeviceKey, view: &mut View) {
        for demand in &self.request.models {
            view.require_no_more(device, demand.model);
        }
    }
}

/// The model as the request of an invocation of its own, so that its room is found like a call's.
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
    };
    view.resolve_names(&arrival, now_ns)
}

/// The device for one more copy: on a node without a copy if possible, then one that has the model in
/// memory, then the one that loses least by the load.
fn best_device(
    copy: &RequiredCopy,
    room: &RoomFinder,
    percent_max: u64,
    now_ns: u64,
    view: &View,
) -> Option<(DeviceKey, Victims)> {
    let nodes: BTreeSet<_> =
        copy.on.iter().filter_map(|device| view.device(*device)).map(|device| device.id().node).collect();
    let demand = copy.request.models.first()?;
    let fitting = view.devices().filter_map(|(key, device)| {
        let is_excluded =
            copy.on.contains(&key) || copy.releasing.contains(&key) || copy.failed.contains_key(&key);
        let bytes = device.required_bytes().saturating_add(demand.bytes);
        if is_excluded || bytes > required_bytes_max(device, percent_max) {
            return None;
        }
        let victims = room.fit(now_ns, view, key, &copy.request)?;
        let holds = device.holds(demand.model);
        let load_time_ns = if holds { 0 } else { view.load_time_ns(device, demand) };
        let free_bytes = device.spec().capacity_bytes.saturating_sub(device.held_bytes());
        let rank = (
            nodes.contains(&device.id().node),
            !holds,
            victims.loss_ns.saturating_add(load_time_ns),
            Reverse(free_bytes),
            key,
        );
        Some((rank, victims))
    });
    let (rank, victims) = fitting.min_by_key(|(rank, _)| *rank)?;
    Some((rank.4, victims))
}

/// The part of a device's memory that required copies may take.
fn required_bytes_max(device: &DeviceView, percent_max: u64) -> u64 {
    device.spec().capacity_bytes.saturating_mul(percent_max) / 100
}
