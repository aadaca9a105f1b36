//! Devices partitioned by model.

use super::cycle::can_hold;
use super::line::Line;
use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::{DeviceKey, ModelKey, View};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_types::InvocationId;

/// `exclusive` of the KaaS thesis, chapter 6: each model has its own queue and devices. The number
/// of devices follows its share of the work: rate times run time.
///
/// A model takes an unowned device while it has less than its share. If all devices are owned, a
/// model without a device takes over a device whose owner has no older invocation waiting. With
/// *stealing*, so does a model whose queue is longer, per device, than 150 % of another model's
/// queue. An invocation of several models belongs to the first. Models stay in memory when their
/// device changes its owner.
pub struct Exclusive {
    placer: RoomFinder,
    options: ExclusiveOptions,
    line: Line,
    by_model: BTreeMap<ModelKey, BTreeSet<u64>>,
    owners: BTreeMap<DeviceKey, Owner>,
    pools: HashMap<ModelKey, Pool>,
    whole: Whole,
    starts: u64,
}

/// How devices are partitioned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExclusiveOptions {
    /// Whether models with long queues take devices from models with short queues.
    pub stealing: bool,
    /// The number of models, each with an equal share of the work. `None`: shares are learned.
    pub models_expected: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Owner {
    model: ModelKey,
    /// The number of the last start on the device.
    used: u64,
}

#[derive(Debug, Default)]
struct Pool {
    devices: Vec<DeviceKey>,
    run_time_ns: u64,
}

/// The totals that shares are computed from.
#[derive(Debug, Clone, Copy, Default)]
struct Whole {
    at_ns: Option<u64>,
    devices: u32,
    work: f64,
}

/// Lifetime of the totals.
const WHOLE_NS: u64 = 1_000_000_000;

/// Ratio of queue lengths per device above which stealing is allowed.
const STEAL_RATIO: f64 = 1.5;

/// Maximum number of waiting invocations considered when devices are assigned.
const SCAN_LEN_MAX: usize = 64;

impl Exclusive {
    /// Creates the policy with a victim selection and options.
    #[must_use]
    pub fn new(placer: RoomFinder, options: ExclusiveOptions) -> Self {
        let (line, by_model, owners, pools, whole) = Default::default();
        Self { placer, options, line, by_model, owners, pools, whole, starts: 0 }
    }

    /// The oldest invocation of the owner's queue that some open device can start.
    fn next_owned(&self, now_ns: u64, view: &View) -> Option<(DeviceKey, u64)> {
        view.open().find_map(|device| {
            let places = self.by_model.get(&self.owners.get(&device)?.model)?;
            let may_start = |place: &u64| {
                self.line.get(*place).is_some_and(|request| {
                    view.tenants().may_start(request.tenant)
                        && self.placer.can_start(now_ns, view, device, request)
                })
            };
            Some((device, places.iter().copied().find(may_start)?))
        })
    }

    /// A device for a model that has too few.
    fn next_given(&self, now_ns: u64, view: &View) -> Option<(DeviceKey, u64)> {
        view.open().next()?;
        let may_start = |(_, request): &(u64, &PlacementRequest)| view.tenants().may_start(request.tenant);
        self.line.iter().filter(may_start).take(SCAN_LEN_MAX).find_map(|(place, request)| {
            let model = request.models.first()?.model;
            let free = |device: &DeviceKey| self.placer.can_start(now_ns, view, *device, request);
            let has = self.devices_for(now_ns, view, model, request);
            if has < self.quota(now_ns, view, model) {
                let nobodys = |device: &DeviceKey| !self.owners.contains_key(device);
                if let Some(device) = view.open().filter(nobodys).find(free) {
                    return Some((device, place));
                }
            }
            let mut others: Vec<_> = view.open().filter(free).collect();
            others.retain(|device| {
                let Some(owner) = self.owners.get(device) else { return false };
                if has == 0 {
                    self.oldest(view, owner.model).is_none_or(|oldest| oldest > place)
                } else {
                    self.options.stealing && owner.model != model && self.may_steal(model, owner.model)
                }
            });
            let rank = |device: &DeviceKey| {
                self.owners.get(device).map(|owner| {
                    let spare = self.pools.get(&owner.model).is_some_and(|pool| pool.devices.len() > 1);
                    (!spare, owner.used, *device)
                })
            };
            Some((others.into_iter().min_by_key(rank)?, place))
        })
    }

    /// The number of the model's devices that can start a request, now or later.
    fn devices_for(&self, now_ns: u64, view: &View, model: ModelKey, request: &PlacementRequest) -> usize {
        let can_hold = |key: &&DeviceKey| can_hold(now_ns, view, &self.placer, **key, request);
        self.pools.get(&model).map_or(0, |pool| pool.devices.iter().filter(can_hold).count())
    }

    /// The number of devices that a model may own.
    fn quota(&self, now_ns: u64, view: &View, model: ModelKey) -> usize {
        let devices = self.whole.devices;
        if let Some(models) = self.options.models_expected {
            return devices.div_ceil(models.max(1)).max(1) as usize;
        }
        let part = self.work(now_ns, view, model) / self.whole.work.max(f64::MIN_POSITIVE);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count; the cast saturates"
        )]
        let devices = (part * f64::from(devices)).ceil() as usize;
        devices.max(1)
    }

    /// Device time that a model demands per second.
    fn work(&self, now_ns: u64, view: &View, model: ModelKey) -> f64 {
        let run_time_ns = self.pools.get(&model).map_or(0, |pool| pool.run_time_ns);
        view.demand_per_s(model, now_ns) * run_time_ns as f64
    }

    fn may_steal(&self, thief: ModelKey, owner: ModelKey) -> bool {
        let per_device = |model: ModelKey| {
            let devices = self.pools.get(&model).map_or(0, |pool| pool.devices.len()).max(1);
            self.by_model.get(&model).map_or(0, BTreeSet::len) as f64 / devices as f64
        };
        let has_several = self.pools.get(&owner).is_some_and(|pool| pool.devices.len() > 1);
        has_several && per_device(thief) > STEAL_RATIO * per_device(owner)
    }

    /// The oldest invocation of a model's queue that may start, among the first [`SCAN_LEN_MAX`].
    fn oldest(&self, view: &View, model: ModelKey) -> Option<u64> {
        let may_start = |place: &u64| {
            self.line.get(*place).is_some_and(|request| view.tenants().may_start(request.tenant))
        };
        self.by_model.get(&model)?.iter().copied().take(SCAN_LEN_MAX).find(may_start)
    }

    fn own(&mut self, device: DeviceKey, model: ModelKey) {
        self.starts += 1;
        let before = self.owners.insert(device, Owner { model, used: self.starts });
        if before.is_some_and(|before| before.model == model) {
            return;
        }
        if let Some(before) = before {
            self.disown(device, before.model);
        }
        self.pools.entry(model).or_default().devices.push(device);
    }

    fn disown(&mut self, device: DeviceKey, model: ModelKey) {
        if let Some(pool) = self.pools.get_mut(&model) {
            pool.devices.retain(|other| *other != device);
        }
        self.tidy(model);
    }

    /// Removes a model without devices and waiting invocations.
    fn tidy(&mut self, model: ModelKey) {
        if !self.by_model.contains_key(&model)
            && self.pools.get(&model).is_some_and(|pool| pool.devices.is_empty())
        {
            self.pools.remove(&model);
        }
    }

    fn take(&mut self, place: u64) -> Option<PlacementRequest> {
        let request = self.line.take(place)?;
        if let Some(demand) = request.models.first()
            && let Some(places) = self.by_model.get_mut(&demand.model)
        {
            places.remove(&place);
            if places.is_empty() {
                self.by_model.remove(&demand.model);
            }
        }
        Some(request)
    }
}

impl Policy for Exclusive {
    fn name(&self) -> &'static str {
        "exclusive"
    }

    fn arrived(&mut self, request: PlacementRequest, view: &View) {
        let first = request.models.first().map(|demand| demand.model);
        let invocation = request.invocation;
        let run_time_ns = view.expected_run_time_ns(&request);
        self.line.push(request);
        if let Some(model) = first {
            self.pools.entry(model).or_default().run_time_ns = run_time_ns;
            self.by_model.entry(model).or_default().extend(self.line.place_of(invocation));
        }
    }

    fn begin(&mut self, now_ns: u64, view: &View) {
        let is_old = self.whole.at_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= WHOLE_NS);
        if is_old && !self.line.is_empty() {
            let devices = u32::try_from(view.devices().count()).unwrap_or(u32::MAX);
            let work = self.pools.keys().map(|model| self.work(now_ns, view, *model)).sum();
            self.whole = Whole { at_ns: Some(now_ns), devices, work };
        }
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        if self.line.is_empty() {
            return None;
        }
        let (device, place) = self.next_owned(now_ns, view).or_else(|| self.next_given(now_ns, view))?;
        let request = self.take(place)?;
        if let Some(demand) = request.models.first() {
            self.own(device, demand.model);
        }
        self.placer.place(now_ns, view, device, request).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        let request = self.take(self.line.place_of(invocation)?)?;
        if let Some(demand) = request.models.first() {
            self.tidy(demand.model);
        }
        Some(request)
    }

    fn devices_gone(&mut self, devices: &[DeviceKey], _view: &View) {
        self.whole.at_ns = None;
        for device in devices {
            if let Some(owner) = self.owners.remove(device) {
                self.disown(*device, owner.model);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.line.len()
    }
}
