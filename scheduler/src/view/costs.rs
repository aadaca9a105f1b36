//! Expected costs of a placement.

use super::models::Missing;
use super::nodes::NodeView;
use super::{DeviceView, ModelParts, View};
use crate::estimate::{StorageTier, round_ns};
use crate::policy::OpenableModel;
use crate::{DeviceKey, Estimate, KindKey, LoadByTier, ModelKey, PlacementRequest};
use smallvec::SmallVec;
use weir_types::{Cost, Platform};

/// A load is mixed if more than one part in `MIXED_PART` of its bytes does not come from the tier
/// that supplies the most bytes. The time of a mixed load is not learned.
const MIXED_PART: u64 = 8;

/// Assumed speed-up of an accelerator before `TRIALS` measured runs.
const ACCELERATION: u64 = 8;
/// Measured runs after which the run time on an accelerator is reliable. The first runs may include
/// preparations.
const TRIALS: u64 = 2;

impl View {
    /// Estimates the times of granting `request`'s models on a device and running it there, assuming
    /// there is room. Leaves `cost` zero and `load_by_tier` empty.
    #[must_use]
    pub fn estimate(&self, now_ns: u64, device: &DeviceView, request: &PlacementRequest) -> Estimate {
        let missing = || device.own(&request.models).filter(|demand| !device.holds(demand.model));
        let missing_bytes =
            |demand: &OpenableModel| device.missing_bytes(demand.model, demand.bytes, &demand.parts);
        let load_time_ns =
            missing().map(|demand| self.load_time_ns(device, demand)).fold(0, u64::saturating_add);
        Estimate {
            wait_ns: device.wait_for_ns(now_ns, &request.models, load_time_ns),
            move_time_ns: self.move_time_ns(device, request),
            load_time_ns,
            run_time_ns: self.run_time_ns(device, request),
            off_device_ns: self.off_device_ns(device, request),
            missing_bytes: missing().map(missing_bytes).fold(0, u64::saturating_add),
            load_by_tier: LoadByTier::default(),
            cost: Cost::ZERO,
        }
    }

    /// The expected time to move the inputs of `request` to the node of a device.
    #[must_use]
    pub fn move_time_ns(&self, device: &DeviceView, request: &PlacementRequest) -> u64 {
        self.network.move_time_ns(&request.inputs, device.id().node)
    }

    /// The expected time to load the missing part of a model: as measured from its current
    /// location, else as measured from another location and adjusted by size, else the caller's
    /// value, else by the bytes in each tier.
    #[must_use]
    pub fn load_time_ns(&self, device: &DeviceView, demand: &OpenableModel) -> u64 {
        let kind = device.kind().index();
        let missing_bytes = device.missing_bytes(demand.model, demand.bytes, &demand.parts);
        let part = Missing { bytes: missing_bytes, of_bytes: demand.bytes };
        let tiers = self.tiers(device, demand.model, missing_bytes);
        let most = most_of(tiers);
        let own_ns = |tier: StorageTier| self.model(demand.model).load_time_ns(kind, tier, part);
        if let Some(known_ns) = own_ns(most) {
            return known_ns;
        }
        let by_size_ns =
            || self.tier_times_ns(device, tiers).map(|(_, time_ns)| time_ns).fold(0, u64::saturating_add);
        let from_ns = |tier: StorageTier| self.by_size_ns(device, tier, missing_bytes);
        let elsewhere = StorageTier::ALL.into_iter().find_map(|tier| {
            let known_ns = own_ns(tier)?;
            Some(adjusted_ns(known_ns, from_ns(tier), by_size_ns()))
        });
        // Callers do not know about fetches from the object store.
        let fetch_ns = || match most {
            StorageTier::ObjectStore => {
                from_ns(StorageTier::ObjectStore).saturating_sub(from_ns(StorageTier::Memory))
            }
            _ => 0,
        };
        let told = || demand.load_time_ns.map(|whole_ns| part.of_ns(whole_ns).saturating_add(fetch_ns()));
        elsewhere.or_else(told).unwrap_or_else(by_size_ns)
    }

    /// The estimate of a placement, with its load time by tier.
    pub(crate) fn explain(&self, now_ns: u64, device: &DeviceView, request: &PlacementRequest) -> Estimate {
        let missing = device.own(&request.models).filter(|demand| !device.holds(demand.model));
        let load_by_tier = self.load_by_tier(device, missing);
        Estimate { load_by_tier, ..self.estimate(now_ns, device, request) }
    }

    /// The expected time to load the models that a device lacks, by the tier of their bytes.
    pub(crate) fn load_by_tier<'a>(
        &self,
        device: &DeviceView,
        missing: impl Iterator<Item = &'a OpenableModel>,
    ) -> LoadByTier {
        let mut by_tier = LoadByTier::default();
        for demand in missing {
            let load_time_ns = self.load_time_ns(device, demand);
            let missing_bytes = device.missing_bytes(demand.model, demand.bytes, &demand.parts);
            let tiers = self.tiers(device, demand.model, missing_bytes);
            let times: SmallVec<[_; StorageTier::ALL.len()]> = self.tier_times_ns(device, tiers).collect();
            let sum_ns: f64 = times.iter().map(|(_, time_ns)| *time_ns as f64).sum();
            // A measured time of the whole model is divided as the times by size are.
            let mut left_ns = load_time_ns;
            for (tier, time_ns) in times.iter().skip(1) {
                let part_ns =
                    round_ns(load_time_ns as f64 * (*time_ns as f64 / sum_ns.max(1.0))).min(left_ns);
                by_tier.add(*tier, part_ns);
                left_ns -= part_ns;
            }
            let first = times.first().map_or(StorageTier::Disk, |(tier, _)| *tier);
            by_tier.add(first, left_ns);
        }
        by_tier
    }

    /// The expected time to load the bytes of each tier that has any.
    fn tier_times_ns(&self, device: &DeviceView, tiers: Tiers) -> impl Iterator<Item = (StorageTier, u64)> {
        let used = tiers.into_iter().filter(|(_, bytes)| *bytes > 0);
        used.map(|(tier, bytes)| (tier, self.by_size_ns(device, tier, bytes)))
    }

    fn by_size_ns(&self, device: &DeviceView, tier: StorageTier, bytes: u64) -> u64 {
        let kind = device.kind().index();
        match self.node(device.id().node) {
            Some(node) => node.by_size_ns(&self.all_times, kind, tier, bytes),
            None => self.all_times.loads.by_size_ns(kind, tier, bytes),
        }
    }

    /// The expected time to reload a model that the device evicts, and `bytes` of it: these bytes
    /// remain in the node's memory or on its disk.
    #[must_use]
    pub fn reload_time_ns(&self, device: &DeviceView, model: ModelKey, bytes: u64) -> u64 {
        let kind = device.kind().index();
        let part = Missing { bytes, of_bytes: device.has(model).bytes };
        let known = |tier: &StorageTier| self.model(model).load_time_ns(kind, *tier, part);
        let measured = [StorageTier::Memory, StorageTier::Disk].iter().find_map(known);
        measured.unwrap_or_else(|| self.by_size_ns(device, StorageTier::Disk, bytes))
    }

    /// The expected device time with all models in memory: as measured, else the caller's value,
    /// else the measurement of other functions.
    ///
    /// An accelerator on which the function ran less than `TRIALS` times is assumed to be at least
    /// `ACCELERATION` times as fast as the fastest other device, so that the accelerator is tried: if
    /// its first run was slow, it would otherwise never run again.
    #[must_use]
    pub fn run_time_ns(&self, device: &DeviceView, request: &PlacementRequest) -> u64 {
        self.run_time_on_ns(device.kind(), device.spec().platform, request)
    }

    /// Whether the run time on the device was measured, or told by the caller.
    pub(in crate::view) fn knows_run_time(&self, device: &DeviceView, request: &PlacementRequest) -> bool {
        let kind = device.kind();
        let runs = &self.functions.get(request.function.0).run;
        runs.count(kind.index()) > 0
            || request.run_time_ns.is_some()
            || request.told_ns.iter().any(|(told, _)| *told == kind)
    }

    /// The expected time off the device, without waits: 0 until it was measured.
    #[must_use]
    pub fn off_device_ns(&self, device: &DeviceView, request: &PlacementRequest) -> u64 {
        let times = &self.functions.get(request.function.0).off_device;
        times.estimate_ns(device.kind().index(), request.batch).unwrap_or(0)
    }

    /// The expected time from start to end with all models in memory, on and off the device.
    pub(crate) fn life_ns(&self, device: &DeviceView, request: &PlacementRequest) -> u64 {
        self.run_time_ns(device, request).saturating_add(self.off_device_ns(device, request))
    }

    fn run_time_on_ns(&self, kind: KindKey, platform: Platform, request: &PlacementRequest) -> u64 {
        let own = &self.functions.get(request.function.0).run;
        let known_ns = |kind: KindKey| {
            let told = request.told_ns.iter().find(|(told, _)| *told == kind).map(|(_, told_ns)| *told_ns);
            own.estimate_ns(kind.index(), request.batch).or(told)
        };
        let others = || (0..).map(KindKey).take(self.kinds.len()).filter(|other| *other != kind);
        let others_ns = || others().filter_map(known_ns);
        let guess_ns =
            |told_ns| own.estimate_or_prior_ns(&self.all_times.runs, kind.index(), request.batch, told_ns);
        let count = own.count(kind.index());
        if let Some(known_ns) = known_ns(kind) {
            let is_on_trial = platform != Platform::Cpu && (1..TRIALS).contains(&count);
            let assumed_ns = others_ns().min().filter(|_| is_on_trial).map(|best_ns| best_ns / ACCELERATION);
            return assumed_ns.map_or(known_ns, |assumed_ns| assumed_ns.min(known_ns));
        }
        if platform == Platform::Cpu {
            return guess_ns(request.run_time_ns);
        }
        match others_ns().chain(request.run_time_ns).min() {
            Some(best_ns) => best_ns / ACCELERATION,
            None if self.all_times.runs.count(kind.index()) == 0 => guess_ns(None) / ACCELERATION,
            None => guess_ns(None),
        }
    }

    /// The expected run time on the fastest kind of device that can run the request, independent of
    /// where the models are; `u64::MAX` if all devices are of one kind.
    #[must_use]
    pub(crate) fn quickest_run_time_ns(&self, request: &PlacementRequest) -> u64 {
        if self.kinds.len() <= 1 {
            return u64::MAX;
        }
        self.run_times_ns(request).map(|(_, run_time_ns)| run_time_ns).min().unwrap_or(u64::MAX)
    }

    /// How much longer a run takes on the next fastest kind of device than on `device`; 0 if
    /// another device of the same kind is up, or no other kind can run it.
    pub(crate) fn slower_elsewhere_ns(&self, device: &DeviceView, request: &PlacementRequest) -> u64 {
        let own = device.kind();
        if self.kinds_up.get(own.index()).is_none_or(|(_, up)| *up != 1) {
            return 0;
        }
        let others = self.run_times_ns(request).filter(|(kind, _)| *kind != own);
        let quickest_ns = others.map(|(_, run_time_ns)| run_time_ns).min().unwrap_or(0);
        quickest_ns.saturating_sub(self.run_time_ns(device, request))
    }

    /// The expected run time on each kind of device that is up and can run the request.
    fn run_times_ns(&self, request: &PlacementRequest) -> impl Iterator<Item = (KindKey, u64)> {
        let kinds = (0..).map(KindKey).zip(&self.kinds_up).filter(|(_, (_, up))| *up > 0);
        let runs = |platform: Platform| request.models.iter().any(|demand| demand.runs_on.contains(platform));
        let able = kinds.filter(move |(_, (platform, _))| runs(*platform));
        able.map(|(kind, (platform, _))| (kind, self.run_time_on_ns(kind, *platform, request)))
    }

    /// Number of measured runs from which the expected run time is estimated.
    #[must_use]
    pub(crate) fn runs_measured(&self, device: &DeviceView, request: &PlacementRequest) -> u64 {
        self.functions.get(request.function.0).run.count(device.kind().index())
    }

    /// The expected run time on the first device, for policies that need it before they choose a
    /// device.
    #[must_use]
    pub fn expected_run_time_ns(&self, request: &PlacementRequest) -> u64 {
        let first = self.devices().next();
        first.map_or(request.run_time_ns.unwrap_or(0), |(_, device)| self.run_time_ns(device, request))
    }

    /// The tiers from which the missing bytes of a model would come.
    fn tiers(&self, device: &DeviceView, model: ModelKey, missing_bytes: u64) -> Tiers {
        let mut tiers = StorageTier::ALL.map(|tier| (tier, 0));
        let mut add = |tier: StorageTier, bytes: u64| tiers[tier as usize].1 += bytes;
        let node = device.id().node;
        let model = self.model(model);
        // Copies from a sibling device are assumed only after one was measured.
        let copies = self.all_times.loads.is_measured(device.kind().index(), StorageTier::Sibling);
        let is_sibling =
            |holder: &DeviceKey| self.device(*holder).is_some_and(|other| other.id().node == node);
        if copies && model.holders().iter().any(is_sibling) {
            add(StorageTier::Sibling, missing_bytes);
            return tiers;
        }
        let mut left = missing_bytes;
        let staged = model.staged(node).unwrap_or_default();
        let staged_bytes: f64 = staged.iter().map(|(_, bytes)| *bytes as f64).sum();
        for (tier, bytes) in staged.iter().skip(1) {
            let part = round_ns(missing_bytes as f64 * (*bytes as f64 / staged_bytes)).min(left);
            add(*tier, part);
            left -= part;
        }
        let origin = || self.node(node).map_or(StorageTier::Disk, NodeView::origin);
        add(staged.first().map_or_else(origin, |(tier, _)| *tier), left);
        tiers
    }

    pub(super) fn learn_load(
        &mut self,
        device: DeviceKey,
        model: ModelKey,
        (bytes, parts): (u64, &ModelParts),
        load_time_ns: u64,
    ) {
        let Some(view) = self.device(device) else { return };
        let kind = view.kind().index();
        let missing_bytes = view.missing_bytes(model, bytes, parts);
        let tiers = self.tiers(view, model, missing_bytes);
        let most = most_of(tiers);
        let is_mixed = tiers[most as usize].1 < missing_bytes - missing_bytes / MIXED_PART;
        let part = Missing { bytes: missing_bytes, of_bytes: bytes };
        let node = view.id().node;
        // The time of a mixed load says little about either tier.
        if !is_mixed {
            self.models.get_mut(model).learn_load(kind, most, part, load_time_ns);
            self.all_times.loads.add(kind, most, missing_bytes, load_time_ns);
            if let Some(node) = self.nodes.get_mut(&node) {
                node.learn_load(kind, most, missing_bytes, load_time_ns);
            }
        }
        // Subtracts the load from the run time of every invocation that waited for it.
        let Some(view) = self.devices.get(device.index()).and_then(Option::as_ref) else { return };
        for invocation in view.runs() {
            if let Some(running) =
                self.running.get_mut(&invocation).filter(|running| running.missing.contains(&model))
            {
                running.load_time_ns = running.load_time_ns.saturating_add(load_time_ns);
            }
        }
    }
}

/// Estimates the time of a load from a measured load of the same model, which took `known_ns` and
/// read other tiers. By size alone, the measured load would take `from_ns`, and this load `to_ns`.
/// The rest of the measured time, such as for creating a session, does not depend on the tier.
fn adjusted_ns(known_ns: u64, from_ns: u64, to_ns: u64) -> u64 {
    if to_ns >= from_ns {
        return known_ns.saturating_add(to_ns - from_ns);
    }
    let scaled_ns = round_ns(known_ns as f64 * (to_ns as f64 / from_ns as f64));
    known_ns.saturating_sub(from_ns - to_ns).max(scaled_ns)
}

/// Bytes by source tier.
type Tiers = [(StorageTier, u64); StorageTier::ALL.len()];

/// The tier that supplies the most bytes.
fn most_of(tiers: Tiers) -> StorageTier {
    tiers.into_iter().max_by_key(|(_, bytes)| *bytes).map_or(StorageTier::Disk, |(tier, _)| tier)
}
