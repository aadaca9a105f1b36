//! The cost of starting an invocation on a device: the total additional waiting time of all
//! invocations.
//!
//! *The invocation* waits until the device is free, for the work of older invocations that wait for
//! the models there, for the load, and for inputs moved from other nodes. It also pays for the
//! difference between its run time there and on the fastest kind of device. Where no faster device
//! holds the models, the expected requests for the models in the next [`FORESIGHT_S`] pay that
//! difference, too.
//!
//! *Other invocations* wait while the device is taken: invocations that already wait for its other
//! models wait for the whole time, and invocations expected meanwhile wait for half of it on
//! average. *Later invocations* pay for a load: they miss the evicted models, less the worth of
//! another copy (see [`loss_ns`]), and the victims' runs take longer elsewhere if this is the
//! fastest device for them.
//!
//! The loss of waiting invocations counts less the longer the head of the queue has waited, and not
//! at all after [`PATIENCE_NS`]. Expected future losses do not count after [`PATIENCE_MAX_NS`].
//! Every invocation therefore starts eventually.

use super::queues::LinePosition;
use super::{Claims, Reach};
use crate::estimate::round_ns;
use crate::policy::RoomFinder;
use crate::victims::{Victims, loss_ns};
use crate::view::together_bytes;
use crate::{DeviceKey, DeviceView, ModelKey, NodeView, PlacementRequest, View};
use smallvec::SmallVec;
use std::cell::OnceCell;

/// Waiting time after which losses of other waiting invocations are ignored.
const PATIENCE_NS: f64 = 12e9;

/// Waiting time after which expected future losses are ignored, too.
const PATIENCE_MAX_NS: u64 = 48_000_000_000;

/// Time horizon for invocations that would be served by a slower kind of device, in seconds.
const FORESIGHT_S: f64 = 10.0;

/// Minimum cost of a load as a fraction of its duration, whatever another copy is worth.
const LOAD_PART_MIN: f64 = 0.35;

/// A model displaces other models from their fastest device only if its demand is this many times
/// theirs. Demand estimates are uncertain, especially for a model that was just requested.
const SEATED: f64 = 2.0;

/// Maximum number of devices considered for being near the inputs.
const NEAR_MAX: usize = 16;

/// The inputs of the cost function for one waiting invocation.
pub(super) struct CostInputs<'a> {
    pub(super) now_ns: u64,
    pub(super) view: &'a View,
    pub(super) placer: &'a RoomFinder,
    /// Number of waiting invocations that need a model and stand before a place.
    pub(super) before: &'a dyn Fn(ModelKey, LinePosition) -> usize,
    pub(super) claims: &'a Claims,
    pub(super) reach: Reach,
    /// Whether loads are costed only on free devices that gained capacity since the last event.
    pub(super) news_only: bool,
    /// The invocation to cost. All invocations of its queue are like it.
    pub(super) request: &'a PlacementRequest,
    /// How long the head of its queue has waited.
    pub(super) waited_ns: u64,
    /// The request's run time on the fastest kind of device.
    pub(super) quickest_ns: u64,
    /// The best load, computed once: it does not depend on the place in the queue.
    pub(super) load: OnceCell<Best>,
}

/// The best device so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Best {
    /// The device, and whether it is free.
    pub(super) device: Option<(DeviceKey, bool)>,
    cost_ns: u64,
    /// Work that a load would add to the device; 0 if the device holds the models.
    pub(super) work_ns: u64,
}

impl CostInputs<'_> {
    /// The best device for an invocation at this place in the order.
    pub(super) fn best(&self, order: LinePosition) -> Best {
        let holder = self.best_holder(order);
        if holder.cost_ns <= self.least_load_ns() {
            return holder;
        }
        let load = *self.load.get_or_init(|| self.best_load());
        if holder.device.is_some() && holder.cost_ns <= load.cost_ns { holder } else { load }
    }

    /// Whether loading its models would exceed the tenant's memory limit.
    pub(super) fn is_capped(&self) -> bool {
        together_bytes(&self.request.models) > self.view.tenants().bytes_left(self.request.tenant)
    }

    /// The best device that holds all models: no load, but possibly a wait.
    fn best_holder(&self, order: LinePosition) -> Best {
        let mut best = Best::default();
        let Some((first, others)) = self.request.models.split_first() else { return best };
        let offer = |key: DeviceKey, device: &DeviceView, best: &mut Best| {
            if !others.iter().all(|demand| device.holds(demand.model)) {
                return;
            }
            let wait_ns = device.wait_for_ns(self.now_ns, &self.request.models, 0);
            let wait_ns = wait_ns.saturating_add(self.view.move_time_ns(device, self.request));
            let run_time_ns = self.view.run_time_ns(device, self.request);
            let slower_ns = self.slower_ns(run_time_ns);
            let wait_ns = wait_ns.saturating_add(slower_ns).saturating_add(self.missed_ns(run_time_ns));
            if !device.is_open_to(self.request) {
                let ahead_ns = self.queued_ns(device, order).saturating_add(self.claimed_ns(key));
                // `ahead_ns` counts the earlier invocations that wait for this device. Later
                // invocations are not overtaken, so they lose nothing.
                let (_, later_ns) = self.delays_ns(device, run_time_ns);
                best.offer(key, false, wait_ns.saturating_add(ahead_ns).saturating_add(later_ns), 0);
            } else if self.placer.fit(self.now_ns, self.view, key, self.request).is_some() {
                let (waiting_ns, later_ns) = self.delays_ns(device, run_time_ns);
                best.offer(key, true, wait_ns.saturating_add(waiting_ns).saturating_add(later_ns), 0);
            }
        };
        for (key, device) in self.near().filter(|(_, device)| device.holds(first.model)) {
            offer(key, device, &mut best);
        }
        for key in self.view.model(first.model).holders_by_free().take(self.reach.holders) {
            let Some(device) = self.device(key) else { continue };
            if best.device.is_some() && device.wait_ns(self.now_ns) >= best.cost_ns {
                continue;
            }
            offer(key, device, &mut best);
        }
        best
    }

    /// The best device on which a model is missing.
    fn best_load(&self) -> Best {
        let mut best = Best::default();
        let busy = self.view.closed().filter(|key| self.device(*key).is_some());
        let busy = busy.take(if self.news_only { 0 } else { self.reach.busy });
        let near = self.near().filter(|_| !self.news_only).map(|(key, _)| key);
        for key in near.chain(self.free()).chain(busy) {
            let Some(device) = self.device(key) else { continue };
            if self.holds_all(device) {
                continue;
            }
            let estimate = self.view.estimate(self.now_ns, device, self.request);
            let slower_ns = self.slower_ns(estimate.run_time_ns);
            let wait_ns = estimate.wait_ns.saturating_add(estimate.move_time_ns);
            let wait_ns = wait_ns.saturating_add(self.claimed_ns(key)).saturating_add(slower_ns);
            let worth_ns = self.worth_ns(device);
            let cost_ns = |loss_ns: u64| {
                let load_ns = estimate.load_time_ns;
                let least_ns = round_ns(LOAD_PART_MIN * load_ns as f64);
                wait_ns.saturating_add(load_ns.saturating_add(loss_ns).saturating_sub(worth_ns).max(least_ns))
            };
            if best.device.is_some() && cost_ns(0) >= best.cost_ns {
                continue;
            }
            let Some(victims) = self.placer.fit(self.now_ns, self.view, key, self.request) else { continue };
            let displaced_ns = self.displaced_ns(key, device, &victims);
            let work_ns = estimate.load_time_ns.saturating_add(estimate.run_time_ns).max(1);
            let (waiting_ns, later_ns) = self.delays_ns(device, work_ns);
            let others_ns = waiting_ns.saturating_add(later_ns).saturating_add(displaced_ns);
            best.offer(
                key,
                device.is_open_to(self.request),
                cost_ns(victims.loss_ns).saturating_add(others_ns),
                work_ns,
            );
        }
        best
    }

    /// The devices of nodes that have some of the inputs. These devices are always considered.
    fn near(&self) -> impl Iterator<Item = (DeviceKey, &DeviceView)> {
        let nodes = self.request.inputs.iter().filter_map(|input| self.view.node(input.node));
        let keys = nodes.flat_map(NodeView::devices).take(NEAR_MAX);
        keys.filter_map(|key| Some((*key, self.device(*key)?)))
    }

    /// Free devices that are compared although they would have to load a model: devices that hold
    /// some of the models or parts of them, and the devices with the fewest dispatches.
    fn free(&self) -> SmallVec<[DeviceKey; 16]> {
        let mut free = SmallVec::new();
        let is_free = |key: &DeviceKey| self.device(*key).is_some_and(DeviceView::is_open);
        if self.news_only {
            free.extend(self.view.eased().iter().copied().filter(is_free).take(self.reach.free));
            return free;
        }
        if self.request.models.len() > 1 {
            let holders =
                self.request.models.iter().flat_map(|demand| {
                    self.view.model(demand.model).holders_by_free().take(self.reach.holders)
                });
            free.extend(holders.filter(is_free).take(self.reach.free));
        }
        let parts = self.request.models.iter().flat_map(|demand| demand.parts.iter());
        let sharers = parts.flat_map(|part| self.view.holders_of(part.id).take(self.reach.holders));
        free.extend(sharers.filter(is_free).take(self.reach.free));
        free.extend(self.view.open_last().filter(is_free).take(self.reach.free));
        free
    }

    /// A lower bound on the cost of a load, cheap to compute.
    fn least_load_ns(&self) -> u64 {
        let [demand] = &self.request.models[..] else { return 0 };
        // A device with shared parts of the model may load it faster than another device.
        if self.view.kinds_len() > 1 || !demand.parts.is_empty() {
            return 0;
        }
        let device = self.view.open().next().and_then(|key| self.view.device(key));
        device.map_or(0, |device| round_ns(LOAD_PART_MIN * self.view.load_time_ns(device, demand) as f64))
    }

    /// A device, if it can run the models and is not down.
    fn device(&self, key: DeviceKey) -> Option<&DeviceView> {
        self.view.device(key).filter(|device| device.takes(&self.request.models))
    }

    /// Whether any device that is up can run the request, with or without room.
    pub(super) fn has_device(&self) -> bool {
        let is_any = self.request.models.iter().all(|demand| demand.runs_on.is_all());
        is_any && self.view.open().next().is_some()
            || self.view.devices().any(|(_, device)| device.takes(&self.request.models))
    }

    fn holds_all(&self, device: &DeviceView) -> bool {
        self.request.models.iter().all(|demand| device.holds(demand.model))
    }

    /// The difference between a run time and the run time on the fastest kind of device.
    fn slower_ns(&self, run_time_ns: u64) -> u64 {
        run_time_ns.saturating_sub(self.quickest_ns)
    }

    /// The loss of expected requests if this one is served with this run time and no faster device
    /// holds the models.
    fn missed_ns(&self, run_time_ns: u64) -> u64 {
        let slower_ns = self.slower_ns(run_time_ns);
        let Some(first) = self.request.models.first().filter(|_| slower_ns > 0) else { return 0 };
        let holders = self.view.model(first.model).holders().iter().take(self.reach.holders);
        let mut others = holders.filter_map(|key| self.device(*key));
        if others.any(|other| self.view.run_time_ns(other, self.request) < run_time_ns) {
            return 0;
        }
        let come = self.view.demand_per_s(first.model, self.now_ns) * FORESIGHT_S;
        round_ns(come * slower_ns as f64)
    }

    /// The loss of expected requests for models that lose their fastest device: for each request,
    /// as much as this request gains. Without this cost, two models would evict each other in
    /// turns.
    fn displaced_ns(&self, key: DeviceKey, device: &DeviceView, victims: &Victims) -> u64 {
        if self.view.kinds_len() <= 1 || victims.models.is_empty() {
            return 0;
        }
        let slower_ns = self.view.slower_elsewhere_ns(device, self.request);
        let is_as_quick = |other: &DeviceKey| {
            *other != key && self.view.device(*other).is_some_and(|other| other.kind() == device.kind())
        };
        let leave =
            victims.models.iter().filter(|model| !self.view.model(**model).holders().iter().any(is_as_quick));
        let come: f64 = leave.map(|model| self.view.demand_per_s(*model, self.now_ns)).sum();
        round_ns(SEATED * come * FORESIGHT_S * slower_ns as f64)
    }

    /// The worth of another copy of a model that other devices hold: the loss if that copy were
    /// evicted again.
    fn worth_ns(&self, device: &DeviceView) -> u64 {
        let [demand] = &self.request.models[..] else { return 0 };
        match self.view.model(demand.model).holders().len() {
            0 => 0,
            copies => {
                round_ns(loss_ns(self.now_ns, self.view, device, demand.model, demand.bytes, copies + 1))
            }
        }
    }

    /// Additional waiting time of other invocations while a device is taken for `taken_ns`: of
    /// those that wait for its other models now, and of those expected to ask for them by then.
    fn delays_ns(&self, device: &DeviceView, taken_ns: u64) -> (u64, u64) {
        if self.waited_ns >= PATIENCE_MAX_NS {
            return (0, 0);
        }
        let taken_ns = taken_ns as f64 / f64::from(device.spec().slots.max(1));
        let mut waiting = 0.0;
        let mut per_s = 0.0;
        for model in device.held() {
            if self.request.models.iter().any(|demand| demand.model == model) {
                continue;
            }
            let view = self.view.model(model);
            // Copies substitute for each other: with several copies, all of them are rarely busy at
            // once.
            let copies = view.holders().len().max(1) as f64;
            let part = 1.0 / (copies * copies.sqrt());
            waiting += part * f64::from(view.waiting());
            per_s += part * self.view.demand_per_s(model, self.now_ns);
        }
        let come = per_s * taken_ns / 1e9;
        let patience = (1.0 - self.waited_ns as f64 / PATIENCE_NS).max(0.0);
        (round_ns(patience * waiting * taken_ns), round_ns(come * taken_ns / 2.0))
    }

    /// The work of older invocations that wait for the models of a device, divided by the number of
    /// their holders.
    fn queued_ns(&self, device: &DeviceView, order: LinePosition) -> u64 {
        let ahead = device.held().map(|model| {
            let before = (self.before)(model, order);
            if before == 0 {
                0.0
            } else {
                before as f64 / self.view.model(model).holders().len().max(1) as f64
            }
        });
        let slots = f64::from(device.spec().slots.max(1));
        round_ns(ahead.sum::<f64>() * self.view.run_time_ns(device, self.request) as f64 / slots)
    }

    fn claimed_ns(&self, device: DeviceKey) -> u64 {
        let claims = self.claims.iter().filter(|(claimed, _)| *claimed == device);
        claims.fold(0, |sum, (_, work_ns)| sum.saturating_add(*work_ns))
    }
}

impl Default for Best {
    fn default() -> Self {
        Self { device: None, cost_ns: u64::MAX, work_ns: 0 }
    }
}

impl Best {
    /// Whether the best device is busy and holds the models.
    pub(super) fn waits_for_holder(&self) -> bool {
        self.work_ns == 0 && matches!(self.device, Some((_, false)))
    }

    fn offer(&mut self, device: DeviceKey, is_free: bool, cost_ns: u64, work_ns: u64) {
        if self.device.is_none() || cost_ns < self.cost_ns {
            *self = Self { device: Some((device, is_free)), cost_ns, work_ns };
        }
    }
}
