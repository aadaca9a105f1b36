//! What a placement is expected to cost.

use super::{DeviceView, View};
use crate::estimate::Tier;
use crate::policy::Demand;
use crate::{DeviceKey, Estimate, KindKey, ModelKey, Request};
use weir_types::{Cost, Platform, Platforms};

/// How much quicker an accelerator is taken to be before it was tried.
const ACCELERATION: u64 = 8;

impl View {
    /// What granting `request`'s models on a device and running it there is expected to take, if there is room.
    #[must_use]
    pub fn estimate(&self, now_ns: u64, device: &DeviceView, request: &Request) -> Estimate {
        let missing = || device.own(&request.models).filter(|demand| !device.holds(demand.model));
        Estimate {
            wait_ns: device.wait_ns(now_ns),
            load_time_ns: missing()
                .map(|demand| self.load_time_ns(device, demand))
                .fold(0, u64::saturating_add),
            run_time_ns: self.run_time_ns(device, request),
            missing_bytes: missing().map(|demand| demand.bytes).fold(0, u64::saturating_add),
            cost: Cost::ZERO,
        }
    }

    /// The expected time to load a model: as measured from where it is now, else as the caller said, else by the bytes in each tier.
    #[must_use]
    pub fn load_time_ns(&self, device: &DeviceView, demand: &Demand) -> u64 {
        let kind = device.kind().index();
        let model = self.model(demand.model);
        let tiers = self.tiers(device, demand);
        let most = tiers.into_iter().max_by_key(|(_, bytes)| *bytes).map_or(Tier::Disk, |(tier, _)| tier);
        if let Some(mean_ns) = model.load_times.mean_ns(kind, most) {
            return crate::estimate::round_ns(mean_ns);
        }
        demand.load_time_ns.unwrap_or_else(|| {
            let parts = tiers.into_iter().filter(|(_, bytes)| *bytes > 0);
            parts
                .map(|(tier, bytes)| self.load_times.by_size_ns(kind, tier, bytes))
                .fold(0, u64::saturating_add)
        })
    }

    /// The expected time to load a model again that a device gives up: it stays in the node's memory or on its disk.
    #[must_use]
    pub fn reload_time_ns(&self, device: &DeviceView, model: ModelKey, bytes: u64) -> u64 {
        let kind = device.kind().index();
        let known = &self.model(model).load_times;
        let measured = [Tier::Memory, Tier::Disk].iter().find_map(|tier| known.mean_ns(kind, *tier));
        measured
            .map_or_else(|| self.load_times.by_size_ns(kind, Tier::Disk, bytes), crate::estimate::round_ns)
    }

    /// The expected time to run, once the models are there: as measured, else as the caller said, else as others take.
    ///
    /// An accelerator that the function was never tried on is taken to be [`ACCELERATION`] times as quick as whatever it was measured on, so
    /// that it is tried.
    #[must_use]
    pub fn run_time_ns(&self, device: &DeviceView, request: &Request) -> u64 {
        self.run_time_on_ns(device.kind(), device.spec().platform, request)
    }

    fn run_time_on_ns(&self, kind: KindKey, platform: Platform, request: &Request) -> u64 {
        let own = self.functions.get(request.function.0);
        let known_ns = |kind: KindKey| {
            let told = request.told_ns.iter().find(|(told, _)| *told == kind).map(|(_, told_ns)| *told_ns);
            own.estimate_ns(kind.index(), request.batch).or(told)
        };
        let others_ns = || (0..).map(KindKey).take(self.kinds.len()).filter_map(known_ns);
        let guess_ns =
            |told_ns| own.estimate_or_prior_ns(&self.run_times, kind.index(), request.batch, told_ns);
        if platform == Platform::Cpu || known_ns(kind).is_some() {
            return guess_ns(known_ns(kind).or(request.run_time_ns));
        }
        match others_ns().chain(request.run_time_ns).min() {
            Some(best_ns) => best_ns / ACCELERATION,
            None if self.run_times.count(kind.index()) == 0 => guess_ns(None) / ACCELERATION,
            None => guess_ns(None),
        }
    }

    /// The expected time to run on the quickest kind of device that can run it, wherever the models are; the longest there is where all devices
    /// are of one kind.
    #[must_use]
    pub(crate) fn quickest_run_time_ns(&self, request: &Request) -> u64 {
        if self.kinds.len() <= 1 {
            return u64::MAX;
        }
        let kinds = (0..).map(KindKey).zip(&self.kinds_up).filter(|(_, (_, up))| *up > 0);
        let runs = |platform: Platform| request.models.iter().any(|demand| demand.runs_on.contains(platform));
        let times_ns = kinds.filter(|(_, (platform, _))| runs(*platform));
        times_ns
            .map(|(kind, (platform, _))| self.run_time_on_ns(kind, *platform, request))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// How many runs the expected time to run there was measured by.
    #[must_use]
    pub(crate) fn runs_measured(&self, device: &DeviceView, request: &Request) -> u64 {
        self.functions.get(request.function.0).count(device.kind().index())
    }

    /// The expected time to run on the first of the devices, for those who have to know before they choose one.
    #[must_use]
    pub fn expected_run_time_ns(&self, request: &Request) -> u64 {
        let first = self.devices().next();
        first.map_or(request.run_time_ns.unwrap_or(0), |(_, device)| self.run_time_ns(device, request))
    }

    /// Where a model's bytes would come from.
    fn tiers(&self, device: &DeviceView, demand: &Demand) -> [(Tier, u64); Tier::ALL.len()] {
        let mut tiers = Tier::ALL.map(|tier| (tier, 0));
        let mut add = |tier: Tier, bytes: u64| tiers[tier as usize].1 += bytes;
        let node = device.id().node;
        let model = self.model(demand.model);
        // A copy from a sibling is counted on only where such copies were seen.
        let copies = self.load_times.mean_ns(device.kind().index(), Tier::Sibling).is_some();
        let is_sibling =
            |holder: &DeviceKey| self.device(*holder).is_some_and(|other| other.id().node == node);
        if copies && model.holders().iter().any(is_sibling) {
            add(Tier::Sibling, demand.bytes);
            return tiers;
        }
        let mut left = demand.bytes;
        for (tier, bytes) in model.staged(node).unwrap_or_default() {
            let part = left.min(*bytes);
            add(*tier, part);
            left -= part;
        }
        add(Tier::Disk, left);
        tiers
    }

    pub(super) fn learn_load(&mut self, device: DeviceKey, model: ModelKey, bytes: u64, load_time_ns: u64) {
        let Some(view) = self.device(device) else { return };
        let kind = view.kind().index();
        let tiers = self.tiers(view, &Demand { model, bytes, load_time_ns: None, runs_on: Platforms::ALL });
        let most = tiers.into_iter().max_by_key(|(_, bytes)| *bytes).map_or(Tier::Disk, |(tier, _)| tier);
        self.models.get_mut(model).load_times.add(kind, most, load_time_ns);
        self.load_times.add_per_mib(kind, most, bytes, load_time_ns);
        // Whoever waited for it has run that much less.
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
