//! What a device would cost an invocation, and those after it.
//!
//! For a device that holds the models: the time until it is free, and the work of what came before and waits for its models. For one that
//! does not: that time, the load, what the models that go for it will be missed, and the *crowding*: a device whose models are asked for
//! much is a bad place for one more. A further copy of a model that is asked for again and again serves others too, and bears only its part
//! of load and loss.

use super::queues::{Order, Queues};
use super::{Claims, Reach};
use crate::estimate::round_ns;
use crate::policy::Placer;
use crate::{DeviceKey, DeviceView, Request, View};
use smallvec::SmallVec;

/// Arrivals within this time share the cost of another copy.
const SHARED_S: f64 = 4.0;

/// What a device that is always busy with its other models adds to the cost of a load there.
const CROWDED_LOAD_NS: f64 = 6e9;

/// The same for a run there, as far as there is a choice.
const CROWDED_RUN_NS: f64 = 0.3e9;

/// No device counts as more crowded.
const CROWDING_MAX: f64 = 1.5;

/// No load costs less than this part of what it takes by itself.
const LOAD_PART_MIN: f64 = 0.2;

/// All that costs follow from.
pub(super) struct Costs<'a> {
    pub(super) now_ns: u64,
    pub(super) view: &'a View,
    pub(super) placer: &'a Placer,
    pub(super) queues: &'a Queues,
    pub(super) claims: &'a Claims,
    pub(super) reach: Reach,
    /// Of the devices that are free, only those that have more to offer than before are costed for loads.
    pub(super) news_only: bool,
}

/// The best device so far.
#[derive(Debug)]
pub(super) struct Best {
    /// It, and whether it is free.
    pub(super) device: Option<(DeviceKey, bool)>,
    pub(super) cost_ns: u64,
    /// What it would add to the device beyond what those that wait for its models add anyway.
    pub(super) work_ns: u64,
}

impl Costs<'_> {
    /// The best device for one that stands at this place.
    pub(super) fn best(&self, order: Order, request: &Request) -> Best {
        let mut best = self.best_holder(order, request);
        if best.cost_ns > self.least_load_ns(request) {
            let busy = self.view.closed().take(if self.news_only { 0 } else { self.reach.busy });
            self.cost_loads(request, self.free(request).into_iter().chain(busy), &mut best);
        }
        best
    }

    /// Whether one like `request` that stands at this place would rather load on a device that is free. `load` keeps what that costs.
    pub(super) fn would_load(&self, order: Order, request: &Request, load: &mut Option<u64>) -> bool {
        let wait_ns = self.best_holder(order, request).cost_ns;
        if wait_ns <= self.least_load_ns(request) {
            return false;
        }
        let load_ns = *load.get_or_insert_with(|| {
            let mut best = Best::default();
            self.cost_loads(request, self.free(request), &mut best);
            best.cost_ns
        });
        load_ns < wait_ns
    }

    /// Whether loading what it needs would take the tenant over its part of memory.
    pub(super) fn is_capped(&self, request: &Request) -> bool {
        let bytes = request.models.iter().fold(0_u64, |sum, demand| sum.saturating_add(demand.bytes));
        bytes > self.view.tenants().bytes_left(request.tenant)
    }

    /// The best of the devices that hold everything: no load, but perhaps a wait.
    fn best_holder(&self, order: Order, request: &Request) -> Best {
        let mut best = Best::default();
        let Some((first, others)) = request.models.split_first() else { return best };
        for key in self.view.model(first.model).holders_by_free().take(self.reach.holders) {
            let Some(device) = self.view.device(key) else { continue };
            let wait_ns = device.wait_ns(self.now_ns);
            if best.device.is_some() && wait_ns >= best.cost_ns {
                break;
            }
            if !others.iter().all(|demand| device.holds(demand.model)) {
                continue;
            }
            if !device.is_open() {
                let ahead_ns = self.queued_ns(device, order, request).saturating_add(self.claimed_ns(key));
                best.offer(key, false, wait_ns.saturating_add(ahead_ns), 0);
            } else if self.placer.fit(self.now_ns, self.view, key, request).is_some() {
                let crowded_ns = round_ns(CROWDED_RUN_NS * self.crowding(device, request));
                best.offer(key, true, wait_ns.saturating_add(crowded_ns), 0);
            }
        }
        best
    }

    /// Devices on which something is missing.
    fn cost_loads(&self, request: &Request, devices: impl IntoIterator<Item = DeviceKey>, best: &mut Best) {
        let part = self.part_of_load(request);
        for key in devices {
            let Some(device) = self.view.device(key) else { continue };
            if request.models.iter().all(|demand| device.holds(demand.model)) {
                continue;
            }
            let estimate = self.view.estimate(self.now_ns, device, request);
            let wait_ns = estimate.wait_ns.saturating_add(self.claimed_ns(key));
            let cost_ns = |loss_ns: u64| {
                wait_ns.saturating_add(round_ns(part * estimate.load_time_ns.saturating_add(loss_ns) as f64))
            };
            if best.device.is_some() && cost_ns(0) >= best.cost_ns {
                continue;
            }
            let Some(victims) = self.placer.fit(self.now_ns, self.view, key, request) else { continue };
            let crowded_ns = round_ns(CROWDED_LOAD_NS * self.crowding(device, request));
            let work_ns = estimate.load_time_ns.saturating_add(estimate.run_time_ns).max(1);
            best.offer(key, device.is_open(), cost_ns(victims.loss_ns).saturating_add(crowded_ns), work_ns);
        }
    }

    /// Free devices on which loads are costed: those that hold a part of what is needed, and those that were used least.
    fn free(&self, request: &Request) -> SmallVec<[DeviceKey; 16]> {
        let mut free = SmallVec::new();
        let is_free = |key: &DeviceKey| self.view.device(*key).is_some_and(DeviceView::is_open);
        if self.news_only {
            free.extend(self.view.eased().iter().copied().filter(is_free).take(self.reach.free));
            return free;
        }
        if request.models.len() > 1 {
            let holders = request
                .models
                .iter()
                .flat_map(|demand| self.view.model(demand.model).holders_by_free().take(self.reach.holders));
            free.extend(holders.filter(is_free).take(self.reach.free));
        }
        free.extend(self.view.open_last().take(self.reach.free));
        free
    }

    /// No load of what is missing is cheaper: a bound that is quick to have.
    fn least_load_ns(&self, request: &Request) -> u64 {
        let [demand] = &request.models[..] else { return 0 };
        let device = self.view.open().next().and_then(|key| self.view.device(key));
        device.map_or(0, |device| round_ns(LOAD_PART_MIN * self.view.load_time_ns(device, demand) as f64))
    }

    /// The part of a load that one more copy costs this invocation, if others will use it too.
    fn part_of_load(&self, request: &Request) -> f64 {
        let [demand] = &request.models[..] else { return 1.0 };
        let copies = self.view.model(demand.model).holders().len();
        if copies == 0 {
            return 1.0;
        }
        let others = self.view.demand_per_s(demand.model, self.now_ns) * SHARED_S / (copies + 1) as f64;
        (1.0 / (1.0 + others)).max(LOAD_PART_MIN)
    }

    /// The part of its time that a device is busy with the models it holds, other than those that are needed.
    fn crowding(&self, device: &DeviceView, request: &Request) -> f64 {
        let is_other = |model: &crate::ModelKey| request.models.iter().all(|demand| demand.model != *model);
        let per_s = device.held().filter(is_other).map(|model| {
            self.view.demand_per_s(model, self.now_ns) / self.view.model(model).holders().len().max(1) as f64
        });
        let run_s = self.view.run_time_ns(device, request) as f64 / 1e9;
        let slots = f64::from(device.spec().slots.max(1));
        (per_s.sum::<f64>() * run_s / slots).min(CROWDING_MAX)
    }

    /// The work of what came before and waits for the models of a device, as far as it is this device's part.
    fn queued_ns(&self, device: &DeviceView, order: Order, request: &Request) -> u64 {
        let ahead = device.held().map(|model| {
            let before = self.queues.before(model, order);
            if before == 0 {
                0.0
            } else {
                before as f64 / self.view.model(model).holders().len().max(1) as f64
            }
        });
        let slots = f64::from(device.spec().slots.max(1));
        round_ns(ahead.sum::<f64>() * self.view.run_time_ns(device, request) as f64 / slots)
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
    fn offer(&mut self, device: DeviceKey, is_free: bool, cost_ns: u64, work_ns: u64) {
        if self.device.is_none() || cost_ns < self.cost_ns {
            *self = Self { device: Some((device, is_free)), cost_ns, work_ns };
        }
    }
}
