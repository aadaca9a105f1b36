//! Models: who holds them, how much they are asked for, and what they cost.

use crate::estimate::{LoadTimes, Tier, round_ns};
use crate::keys::Table;
use crate::{DeviceKey, ModelKey, PartId, Parts, Tenants};
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{ModelId, NodeId};

/// Models whose costs are remembered; see [`Table`].
const MODELS_MAX: usize = 65_536;

/// Half of what a model is asked for is forgotten after this time.
const HALF_LIFE_NS: f64 = 120e9;

/// Less than this says nothing about rates.
const WATCHED_NS_MIN: u64 = 1_000_000_000;

/// One model.
#[derive(Debug, Default)]
pub struct ModelView {
    holders: BTreeSet<DeviceKey>,
    /// The same by the time at which they can take one more invocation; those that can now come first.
    by_free: BTreeSet<(u64, DeviceKey)>,
    waiting: u32,
    /// Of loads of all of it, or most.
    load_times: LoadTimes,
    /// Of loads beside models that had most of it.
    beside_times: LoadTimes,
    staged: BTreeMap<NodeId, Vec<(Tier, u64)>>,
    demand: f64,
    demand_at_ns: u64,
}

impl ModelView {
    /// The devices that hold it: in memory or granted and on its way, and not given up.
    #[must_use]
    pub fn holders(&self) -> &BTreeSet<DeviceKey> {
        &self.holders
    }

    /// The devices that hold it, those first that can take one more invocation soonest.
    pub fn holders_by_free(&self) -> impl Iterator<Item = DeviceKey> {
        self.by_free.iter().map(|(_, device)| *device)
    }

    /// Requests for it that wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Arrivals per second that asked for it, as of late. `watched_ns` is how long arrivals have been counted.
    pub(super) fn demand_per_s(&self, now_ns: u64, watched_ns: u64) -> f64 {
        let forgotten = (-(now_ns.saturating_sub(self.demand_at_ns) as f64) / HALF_LIFE_NS).exp2();
        let seen = 1.0 - (-(watched_ns.max(WATCHED_NS_MIN) as f64) / HALF_LIFE_NS).exp2();
        self.demand * forgotten * std::f64::consts::LN_2 / (HALF_LIFE_NS / 1e9) / seen
    }

    /// The expected time to load a part of it, by what such loads took.
    pub(super) fn load_time_ns(&self, kind: usize, tier: Tier, part: Missing) -> Option<u64> {
        let beside_ns = self.beside_times.mean_ns(kind, tier).filter(|_| part.is_lesser());
        let whole_ns = || self.load_times.mean_ns(kind, tier);
        beside_ns.map(round_ns).or_else(|| whole_ns().map(|whole_ns| part.of_ns(round_ns(whole_ns))))
    }

    pub(super) fn learn_load(&mut self, kind: usize, tier: Tier, part: Missing, load_time_ns: u64) {
        let times = if part.is_lesser() { &mut self.beside_times } else { &mut self.load_times };
        times.add(kind, tier, load_time_ns);
    }

    /// Where a node would load it from, if it said so.
    pub(super) fn staged(&self, node: NodeId) -> Option<&[(Tier, u64)]> {
        self.staged.get(&node).map(Vec::as_slice)
    }

    pub(super) fn demand(&mut self, now_ns: u64) {
        let half_lives = now_ns.saturating_sub(self.demand_at_ns) as f64 / HALF_LIFE_NS;
        self.demand = self.demand * (-half_lives).exp2() + 1.0;
        self.demand_at_ns = now_ns;
        self.waiting += 1;
    }

    pub(super) fn waits_no_more(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// A holder can take one more invocation at another time.
    pub(super) fn freed_at(&mut self, device: DeviceKey, before_ns: u64, at_ns: u64) {
        if before_ns != at_ns && self.by_free.remove(&(before_ns, device)) {
            self.by_free.insert((at_ns, device));
        }
    }

    pub(super) fn stage(&mut self, node: NodeId, bytes: &[(Tier, u64)]) {
        // More than one entry for a tier would be nonsense, and a list without end too.
        self.staged.insert(node, bytes.iter().copied().take(Tier::ALL.len()).collect());
    }
}

/// The part of a model that is not on a device: what it has in common with models there is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missing {
    pub(super) bytes: u64,
    /// What all of it takes.
    pub(super) of_bytes: u64,
}

impl Missing {
    /// Whether more of it is there than is missing.
    fn is_lesser(self) -> bool {
        self.bytes < self.of_bytes / 2
    }

    /// What of a time for all of it is for the part. Half of it and more counts as all.
    pub(super) fn of_ns(self, whole_ns: u64) -> u64 {
        if self.is_lesser() {
            round_ns(whole_ns as f64 * self.bytes as f64 / self.of_bytes as f64)
        } else {
            whole_ns
        }
    }
}

/// What a model has on a device.
#[derive(Debug, Clone, Default)]
pub(super) struct Has {
    /// It counts there, given up or not.
    pub(super) place: bool,
    pub(super) bytes: u64,
    /// It is there or on its way, and was not given up.
    pub(super) holds: bool,
    /// When the device can take one more invocation.
    pub(super) free_at_ns: u64,
    pub(super) parts: Parts,
}

#[derive(Debug)]
pub(super) struct Models {
    table: Table<ModelId, ModelView>,
    /// By what models have in common: where there are models with it that stay, and how many.
    by_part: BTreeMap<PartId, BTreeMap<DeviceKey, u32>>,
}

impl Models {
    pub(super) fn new() -> Self {
        Self { table: Table::new(MODELS_MAX), by_part: BTreeMap::new() }
    }

    /// The devices that hold models with this part.
    pub(super) fn holders_of(&self, part: PartId) -> impl Iterator<Item = DeviceKey> {
        self.by_part.get(&part).into_iter().flat_map(|devices| devices.keys().copied())
    }

    /// A model's number, with one more reference.
    pub(super) fn retain(&mut self, model: &ModelId) -> ModelKey {
        ModelKey(self.table.retain(model))
    }

    pub(super) fn release(&mut self, model: ModelKey) {
        self.table.release(model.0);
    }

    pub(super) fn key(&self, model: &ModelId) -> Option<ModelKey> {
        self.table.key(model).map(ModelKey)
    }

    pub(super) fn id(&self, model: ModelKey) -> &ModelId {
        self.table.id(model.0)
    }

    pub(super) fn get(&self, model: ModelKey) -> &ModelView {
        self.table.get(model.0)
    }

    pub(super) fn get_mut(&mut self, model: ModelKey) -> &mut ModelView {
        self.table.get_mut(model.0)
    }

    /// What a model has on a device changed.
    pub(super) fn moved(
        &mut self,
        model: ModelKey,
        device: DeviceKey,
        before: &Has,
        now: &Has,
        tenants: &mut Tenants,
    ) {
        if now.place && !before.place {
            self.table.retain_key(model.0);
            tenants.retain(&self.table.id(model.0).tenant);
        }
        // What was given up is on nobody's account: the device keeps it only as long as it has room to spare.
        if before.holds != now.holds || before.bytes != now.bytes || before.parts != now.parts {
            let tenant = &self.table.id(model.0).tenant;
            if now.holds {
                tenants.holds(tenant, (device, model), (now.bytes, &now.parts));
            }
            if before.holds {
                tenants.lets_go(tenant, (device, model), (before.bytes, &before.parts));
            }
        }
        if before.place && !now.place {
            self.table.release(model.0);
            tenants.release_id(&self.table.id(model.0).tenant);
        }
        if before.holds != now.holds || before.parts != now.parts {
            self.shared(device, before, false);
            self.shared(device, now, true);
        }
        let view = self.table.get_mut(model.0);
        if before.holds {
            view.holders.remove(&device);
            view.by_free.remove(&(before.free_at_ns, device));
        }
        if now.holds {
            view.holders.insert(device);
            view.by_free.insert((now.free_at_ns, device));
        }
    }

    /// A model that stays came to a device, or is none there any more.
    fn shared(&mut self, device: DeviceKey, has: &Has, comes: bool) {
        for part in has.parts.iter().filter(|_| has.holds) {
            let devices = self.by_part.entry(part.id).or_default();
            let count = devices.entry(device).or_default();
            *count = if comes { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                devices.remove(&device);
            }
            if devices.is_empty() {
                self.by_part.remove(&part.id);
            }
        }
    }

    pub(super) fn unstage(&mut self, node: NodeId) {
        self.table.values_mut().for_each(|view| {
            view.staged.remove(&node);
        });
    }
}
