//! Model residency on devices, and the indexes derived from it.

use super::nodes::TRANSFERS;
use super::{DeviceView, ModelParts, View};
use crate::policy::OpenableModel;
use crate::{DeviceKey, MeasuredTransfer, ModelKey, Part, StorageTier, Victims};
use smallvec::SmallVec;
use std::cmp::Reverse;
use weir_types::{ModelId, NodeId};

impl View {
    /// Records a loaded model. Returns false if the device is unknown, or the model was already
    /// loaded with this size.
    pub(crate) fn loaded(
        &mut self,
        device: DeviceKey,
        model: &ModelId,
        (bytes, parts): (u64, &[Part]),
        load_time_ns: Option<u64>,
    ) -> bool {
        let parts = ModelParts::new(bytes, parts);
        self.clock += 1;
        let clock = self.clock;
        let key = self.models.retain(model);
        if let Some(load_time_ns) = load_time_ns {
            self.learn_load(device, key, (bytes, &parts), load_time_ns);
        }
        let held_before = self.device(device).map_or(0, DeviceView::held_bytes);
        let was_promised = self.device(device).is_some_and(|view| view.has(key).place);
        let mut news = false;
        self.change(device, SmallVec::from_slice(&[key]), |view| {
            news = view.loaded(key, bytes, parts, clock);
        });
        let load_ended = self.load_ended(device, key);
        self.models.release(key);
        let held_after = self.device(device).map_or(0, DeviceView::held_bytes);
        if !was_promised || held_after < held_before || load_ended {
            self.freed += 1;
            self.eased.push(device);
        }
        news
    }

    /// Records an evicted model. Returns false if the model was not in the device's memory.
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

    /// Requires a copy of a model on a device, which gives up `victims` for it.
    pub(crate) fn require(
        &mut self,
        device: DeviceKey,
        demand: &OpenableModel,
        victims: &Victims,
        now_ns: u64,
    ) {
        self.clock += 1;
        let clock = self.clock;
        for (device, model) in &victims.elsewhere {
            self.change(*device, SmallVec::from_slice(&[*model]), |view| view.give_up(*model));
        }
        // A device loads its copies one after the other.
        let there_at_ns = self.device(device).map_or(now_ns, |view| {
            let load_time_ns = if view.holds(demand.model) { 0 } else { self.load_time_ns(view, demand) };
            view.copies_there_at_ns().max(now_ns).saturating_add(load_time_ns)
        });
        let touched = std::iter::once(demand.model).chain(victims.models.iter().copied()).collect();
        self.change(device, touched, |view| {
            view.require(demand, there_at_ns, clock);
            for victim in &victims.models {
                view.allow(*victim);
            }
        });
    }

    /// Requires a copy of a model on a device no longer: it is granted until
    /// [`end_promise`](Self::end_promise).
    pub(crate) fn require_no_more(&mut self, device: DeviceKey, model: ModelKey) {
        self.change(device, SmallVec::from_slice(&[model]), |view| view.require_no_more(model));
    }

    /// Ends the grant of a copy that was required.
    pub(crate) fn end_promise(&mut self, device: DeviceKey, model: ModelKey) {
        self.change(device, SmallVec::from_slice(&[model]), |view| view.keep_promise(model));
        self.freed += 1;
        self.eased.push(device);
    }

    /// Records where a node would load a model from.
    pub(crate) fn staged(
        &mut self,
        node: NodeId,
        model: &ModelId,
        bytes: &[(StorageTier, u64)],
        moved: Option<&MeasuredTransfer>,
    ) {
        if let (Some(node), Some(moved)) = (self.nodes.get_mut(&node), moved) {
            node.learn_transfer(moved);
            self.all_times.transfers.add(TRANSFERS, moved.from, moved.bytes, moved.time_ns);
        }
        let key = self.models.retain(model);
        self.models.get_mut(key).stage(node, bytes);
        self.models.release(key);
    }

    /// Records the tier from which a node would load models that it has not reported. Returns false
    /// if the node is unknown.
    pub(crate) fn set_origin(&mut self, node: NodeId, origin: StorageTier) -> bool {
        let node = self.nodes.get_mut(&node);
        node.map(|node| node.set_origin(origin)).is_some()
    }

    /// Takes the models given up on a device that were not yet reported to its node.
    pub(crate) fn take_given_up(&mut self, device: DeviceKey) -> Vec<ModelKey> {
        let view = self.devices.get_mut(device.index()).and_then(Option::as_mut);
        view.map(DeviceView::take_given_up).unwrap_or_default()
    }

    /// Reserves a device for the waiting invocations with SLOs (`is_kept`), or limits its
    /// concurrent invocations to its slots (`serves_slos`). A device that accepts invocations again
    /// as a result counts as freed.
    pub(crate) fn reserve(&mut self, key: DeviceKey, is_kept: bool, serves_slos: bool) {
        let Some(device) = self.device(key).filter(|device| !device.is_reserved(is_kept, serves_slos)) else {
            return;
        };
        let was_open = device.is_open();
        self.change(key, SmallVec::new(), |view| view.reserve(is_kept, serves_slos));
        if !was_open && self.device(key).is_some_and(DeviceView::is_open) {
            self.freed += 1;
            self.eased.push(key);
        }
    }

    /// Changes a device and updates the indexes by its models and by its open state.
    pub(super) fn change(
        &mut self,
        key: DeviceKey,
        touched: SmallVec<[ModelKey; 1]>,
        change: impl FnOnce(&mut DeviceView),
    ) {
        let Some(device) = self.devices.get_mut(key.index()).and_then(Option::as_mut) else { return };
        let before: SmallVec<[_; 4]> = touched.into_iter().map(|model| (model, device.has(model))).collect();
        let was_open = device.is_open();
        let dispatches = device.dispatches();
        let free_at_ns = device.free_at_ns();
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
            self.models.moved(*model, key, before, &device.has(*model), &mut self.tenants);
        }
        for model in device.held().filter(|model| !before.iter().any(|(touched, _)| touched == model)) {
            self.models.get_mut(model).freed_at(key, free_at_ns, now.2);
        }
    }
}
