//! Models: their holders, their demand, and their costs.

use crate::estimate::{LoadTimes, StorageTier, round_ns};
use crate::keys::KeyTable;
use crate::{DeviceKey, ModelKey, ModelParts, PartId, Tenants};
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{ModelId, NodeId};

/// Maximum number of models with remembered costs; see [`KeyTable`].
const MODELS_MAX: usize = 65_536;

/// Half-life of the demand estimate.
const HALF_LIFE_NS: f64 = 120e9;

/// Minimum observation time for a demand rate.
const WATCHED_NS_MIN: u64 = 1_000_000_000;

/// A model.
#[derive(Debug, Default)]
pub struct ModelView {
    holders: BTreeSet<DeviceKey>,
    /// The same devices by the time at which they accept one more invocation; devices that accept
    /// one now come first.
    by_free: BTreeSet<(u64, DeviceKey)>,
    waiting: u32,
    /// Load times of the whole model, or most of it.
    load_times: LoadTimes,
    /// Load times with most of the model already on the device, shared with other models.
    beside_times: LoadTimes,
    staged: BTreeMap<NodeId, Vec<(StorageTier, u64)>>,
    demand: f64,
    demand_at_ns: u64,
}

impl ModelView {
    /// The devices that hold the model: in memory, or granted and loading, and not given up.
    #[must_use]
    pub fn holders(&self) -> &BTreeSet<DeviceKey> {
        &self.holders
    }

    /// The devices that hold the model, earliest to accept one more invocation first.
    pub fn holders_by_free(&self) -> impl Iterator<Item = DeviceKey> {
        self.by_free.iter().map(|(_, device)| *device)
    }

    /// Number of waiting requests for the model.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Recent arrivals per second that asked for the model. `watched_ns` is the time over which
    /// arrivals were counted.
    pub(super) fn demand_per_s(&self, now_ns: u64, watched_ns: u64) -> f64 {
        let forgotten = (-(now_ns.saturating_sub(self.demand_at_ns) as f64) / HALF_LIFE_NS).exp2();
        let seen = 1.0 - (-(watched_ns.max(WATCHED_NS_MIN) as f64) / HALF_LIFE_NS).exp2();
        self.demand * forgotten * std::f64::consts::LN_2 / (HALF_LIFE_NS / 1e9) / seen
    }

    /// The expected time to load the missing part of the model, from measured loads.
    pub(super) fn load_time_ns(&self, kind: usize, tier: StorageTier, part: Missing) -> Option<u64> {
        let beside_ns = self.beside_times.mean_ns(kind, tier).filter(|_| part.is_lesser());
        let whole_ns = || self.load_times.mean_ns(kind, tier);
        beside_ns.map(round_ns).or_else(|| whole_ns().map(|whole_ns| part.of_ns(round_ns(whole_ns))))
    }

    pub(super) fn learn_load(&mut self, kind: usize, tier: StorageTier, part: Missing, load_time_ns: u64) {
        let times = if part.is_lesser() { &mut self.beside_times } else { &mut self.load_times };
        times.add(kind, tier, load_time_ns);
    }

    /// Where a node would load the model from, if the node reported that.
    pub(super) fn staged(&self, node: NodeId) -> Option<&[(StorageTier, u64)]> {
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

    /// Updates the time at which a holder accepts one more invocation.
    pub(super) fn freed_at(&mut self, device: DeviceKey, before_ns: u64, at_ns: u64) {
        if before_ns != at_ns && self.by_free.remove(&(before_ns, device)) {
            self.by_free.insert((at_ns, device));
        }
    }

    pub(super) fn stage(&mut self, node: NodeId, bytes: &[(StorageTier, u64)]) {
        if bytes.iter().all(|(_, bytes)| *bytes == 0) {
            self.staged.remove(&node);
            return;
        }
        // Bounds the list: at most one entry per tier makes sense.
        self.staged.insert(node, bytes.iter().copied().take(StorageTier::ALL.len()).collect());
    }
}

/// The part of a model that is not on a device. Models on the device share the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missing {
    pub(super) bytes: u64,
    /// Size of the whole model.
    pub(super) of_bytes: u64,
}

impl Missing {
    /// Whether less than half of the model is missing.
    fn is_lesser(self) -> bool {
        self.bytes < self.of_bytes / 2
    }

    /// The share of the whole model's load time for this part. A missing half or more counts as the
    /// whole.
    pub(super) fn of_ns(self, whole_ns: u64) -> u64 {
        if self.is_lesser() {
            round_ns(whole_ns as f64 * self.bytes as f64 / self.of_bytes as f64)
        } else {
            whole_ns
        }
    }
}

/// The state of a model on a device.
#[derive(Debug, Clone, Default)]
pub(super) struct Has {
    /// The model has an entry on the device, given up or not.
    pub(super) place: bool,
    pub(super) bytes: u64,
    /// The model is resident or loading, and was not given up.
    pub(super) holds: bool,
    /// When the device accepts one more invocation.
    pub(super) free_at_ns: u64,
    pub(super) parts: ModelParts,
}

#[derive(Debug)]
pub(super) struct ModelTable {
    table: KeyTable<ModelId, ModelView>,
    /// Holders by part: the devices with models that contain the part and were not given up, with
    /// the number of these models.
    by_part: BTreeMap<PartId, BTreeMap<DeviceKey, u32>>,
}

impl ModelTable {
    pub(super) fn new() -> Self {
        Self { table: KeyTable::new(MODELS_MAX), by_part: BTreeMap::new() }
    }

    /// The devices that hold models with this part.
    pub(super) fn holders_of(&self, part: PartId) -> impl Iterator<Item = DeviceKey> {
        self.by_part.get(&part).into_iter().flat_map(|devices| devices.keys().copied())
    }

    /// The key of a model, with one more reference.
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

    /// Updates the indexes after a model's state on a device changed.
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
        // A model that was given up is charged to no tenant: the device keeps it only while it has
        // room to spare.
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

    /// Counts a model that was not given up when it comes to a device (`comes`) or leaves the
    /// device.
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
