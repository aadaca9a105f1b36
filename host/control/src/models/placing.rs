//! Selects the node's device on which a model runs.

use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_cluster::Placements;
use weir_cluster::{AnnouncedModel, ResidencyChanges, ResidentLoad};
use weir_inference::{FinishedLoad, ResidentModel, RunSetting};
use weir_scheduler::ModelDemand;
use weir_types::Ordinal;
use weir_types::api::{EventKind, ModelOnDevice, ModelRuns};
use weir_types::{ModelId, Platform, Platforms};

/// Unsupported runs on a platform, without any completed run there, after which the platform
/// refuses a model with variable dimensions. With fixed dimensions, one run decides.
const UNSUPPORTED_RUNS_MAX: u32 = 3;

/// The platforms that failed to load a model, or support none of its runs, with the reasons.
#[derive(Default)]
pub struct Refusals {
    refused: Mutex<BTreeMap<Platform, Arc<str>>>,
    /// Runs that were not supported, by platform; `None` once a run completed there.
    unsupported_runs: Mutex<BTreeMap<Platform, Option<u32>>>,
}

/// The device for a model that was placed on a device.
pub(super) struct DevicePick<'a> {
    pub(super) device: &'a Arc<NodeDevice>,
    /// Why it is not the device of the placement; `None` if it is.
    pub(super) instead: Option<Arc<str>>,
}

impl Refusals {
    /// Records that devices of this platform cannot load the model. Returns false if this is
    /// already known.
    pub(super) fn note(&self, platform: Platform, why: Arc<str>) -> bool {
        self.refused.lock().insert(platform, why).is_none()
    }

    /// Records that a run completed on devices of this platform.
    pub(super) fn note_completed(&self, platform: Platform) {
        self.unsupported_runs.lock().insert(platform, None);
    }

    /// Records that devices of this platform did not support a run of the model. Returns whether
    /// they refuse the model from now on.
    fn note_unsupported(&self, platform: Platform, runs_max: u32, why: &Arc<str>) -> bool {
        let refuses = match self.unsupported_runs.lock().entry(platform).or_insert(Some(0)) {
            Some(runs) => {
                *runs = runs.saturating_add(1);
                *runs >= runs_max
            }
            None => false,
        };
        refuses && self.note(platform, why.clone())
    }

    fn platforms(&self) -> Platforms {
        self.refused.lock().keys().copied().collect()
    }
}

impl ModelEntry {
    /// The platforms that the model supports and that its manifest allows.
    pub fn runs_on(&self) -> Platforms {
        let can = self.source.prepared.platforms().without(self.refusals.platforms());
        can.within(self.record.manifest.device.platforms())
    }

    /// Why the model does not run on a platform; `None` if it does.
    pub fn why_not(&self, platform: Platform) -> Option<Arc<str>> {
        if self.runs_on().contains(platform) {
            return None;
        }
        let choice = self.record.manifest.device;
        if !choice.platforms().contains(platform) {
            return Some(format!("its manifest says device = \"{choice}\"").into());
        }
        if let Some(why) = self.refusals.refused.lock().get(&platform) {
            return Some(why.clone());
        }
        let why = self.source.prepared.why_not(platform);
        Some(why.map_or_else(
            || {
                "the model was pushed before this node could prepare models for the device; push it again"
                    .into()
            },
            Into::into,
        ))
    }

    /// Records that devices of this platform did not support a run of the model. A platform that
    /// has completed no run, and cannot be expected to, refuses the model until the node restarts.
    pub(super) fn note_unsupported(&self, platform: Platform, why: &Arc<str>) {
        let mut dims = self.source.prepared.signature.inputs.iter().flat_map(|port| &port.shape);
        let runs_max = if dims.all(Option::is_some) { 1 } else { UNSUPPORTED_RUNS_MAX };
        if self.refusals.note_unsupported(platform, runs_max, why) {
            let model = self.source.id();
            tracing::warn!(%model, %platform, why = &**why, "a platform supports no run of a model that was prepared for it");
        }
    }

    /// The model's demand, as the scheduler counts it.
    pub fn demand(&self) -> ModelDemand {
        let model = self.source.id().clone();
        let parts = self.shared.get().to_vec();
        ModelDemand { model, bytes: self.demand_bytes(), load_time_ns: None, runs_on: self.runs_on(), parts }
    }

    /// The memory that the model takes on a device that holds none of its weights yet.
    fn demand_bytes(&self) -> u64 {
        self.source.prepared.resident_bytes.saturating_add(self.worker_bytes)
    }
}

/// Why a model would not fit onto a device with otherwise empty memory; `None` if it would fit.
fn too_large(entry: &ModelEntry, device: &NodeDevice) -> Option<String> {
    let needed_bytes = entry.demand_bytes();
    let capacity_bytes = device.cache.capacity_bytes();
    if needed_bytes <= capacity_bytes {
        return None;
    }
    let worker = match entry.worker_bytes {
        0 => String::new(),
        bytes => format!(
            ", including {bytes} for its tenant's worker (context_bytes and memory_bytes_max of [node.kernel_graphs])"
        ),
    };
    Some(format!(
        "the model needs {needed_bytes} bytes{worker}; the memory for models is {capacity_bytes} bytes (models.memory_bytes_max)"
    ))
}

fn runs((setting, sessions): (RunSetting, usize)) -> ModelRuns {
    let RunSetting { threads, sessions: at_once_max } = setting;
    ModelRuns { threads, at_once_max: at_once_max as u64, sessions: sessions as u64 }
}

impl Models {
    /// The contents of a device's memory for the scheduler, with the load of each model.
    fn residents(&self, device: &NodeDevice) -> Vec<ResidentLoad> {
        let resident = |ResidentModel { id, bytes, load, .. }: ResidentModel| {
            let FinishedLoad { time, from } = load?;
            let entry = self.get(&id.tenant, &id.name, Some(id.version)).ok();
            // A model that a guest has loaded is nowhere else.
            let from = entry.as_ref().map(|_| self.tiers(from)).unwrap_or_default();
            let parts = entry.map(|entry| entry.shared.get().to_vec()).unwrap_or_default();
            let resident = AnnouncedModel { device: device.ordinal, model: id, bytes, parts };
            Some(ResidentLoad { resident, time, from })
        };
        device.cache.resident().into_iter().filter_map(resident).collect()
    }

    /// Reports the contents of a device's memory to the scheduler.
    pub fn note_residents(&self, ordinal: Ordinal, placements: &Placements) {
        let Some(device) = self.devices.get(ordinal) else { return };
        let ResidencyChanges { loaded, gone } = placements.residents(ordinal, || self.residents(device));
        for ModelId { tenant, name, version } in gone {
            self.note_model(
                EventKind::Evicted,
                &ModelId { tenant, name: name.clone(), version },
                format!("model {name}:{version} left the memory of {}", device.name),
            );
        }
        for ResidentLoad { resident, time, from } in loaded {
            // The load has left the files in memory.
            self.staging.note(&resident.model);
            let bytes = from.iter().map(|(_, bytes)| bytes).sum();
            let most = from.iter().max_by_key(|(_, bytes)| *bytes);
            if let Some((tier, _)) = most {
                self.metrics.devices.transferred(tier.as_str(), &device.name, bytes, time);
            }
        }
    }

    /// The device on which a model of a call with this placement runs: the placed one, or else the
    /// CPU, or else any that can run it.
    pub(super) fn choose(&self, entry: &ModelEntry, placed: Option<Ordinal>) -> Option<DevicePick<'_>> {
        let runs = |device: &&Arc<NodeDevice>| {
            entry.runs_on().contains(device.platform) && device.runs(&entry.source.prepared)
        };
        let placed = placed.and_then(|ordinal| self.devices.get(ordinal));
        if let Some(device) = placed.filter(runs) {
            return Some(DevicePick { device, instead: None });
        }
        let device = self.devices.cpu().filter(runs).or_else(|| self.devices.iter().find(runs))?;
        let instead = placed.and_then(|placed| {
            let why = entry.why_not(placed.platform)?;
            Some(self.instead(entry, &placed.name, &why))
        });
        Some(DevicePick { device, instead })
    }

    /// The best device of this node for a call with these models when the scheduler has not chosen:
    /// one that runs all of them and has as many as possible in memory.
    pub fn device_for(&self, models: &[ModelId]) -> Option<Ordinal> {
        let entries: Vec<_> =
            models.iter().filter_map(|id| self.get(&id.tenant, &id.name, Some(id.version)).ok()).collect();
        let first = entries.first()?;
        let runs_all =
            |device: &&Arc<NodeDevice>| entries.iter().all(|entry| entry.runs_on().contains(device.platform));
        let there = |device: &&Arc<NodeDevice>| {
            entries.iter().filter(|entry| device.cache.is_resident(&entry.source.key)).count()
        };
        // The first of equals.
        let best = self.devices.iter().filter(runs_all).min_by_key(|device| std::cmp::Reverse(there(device)));
        best.or_else(|| self.choose(first, None).map(|choice| choice.device)).map(|device| device.ordinal)
    }

    /// Whether the device for a call with these models has them in memory, or has free memory for
    /// them, so that no other model is evicted.
    pub fn has_spare_room(&self, models: &[ModelId]) -> bool {
        let entries = models.iter().filter_map(|id| self.get(&id.tenant, &id.name, Some(id.version)).ok());
        let entries: Vec<_> = entries.collect();
        if models.is_empty() {
            return true;
        }
        let Some(device) = self.device_for(models).and_then(|ordinal| self.devices.get(ordinal)) else {
            return false;
        };
        let missing = entries.iter().filter(|entry| !device.cache.is_resident(&entry.source.key));
        let missing_bytes: u64 = missing.map(|entry| entry.demand_bytes()).sum();
        missing_bytes == 0
            || device.cache.used_bytes().saturating_add(missing_bytes) <= device.cache.capacity_bytes()
    }

    /// Why a device does not run a model; `None` if it does.
    fn why_not(&self, entry: &ModelEntry, device: &NodeDevice) -> Option<Arc<str>> {
        let quarantine = || device.cache.backend().quarantine(&entry.source.key);
        entry
            .why_not(device.platform)
            .or_else(|| too_large(entry, device).map(Into::into))
            .or_else(quarantine)
    }

    /// Why no device of this node runs a model, for the model's owner; `None` if one does.
    pub fn nowhere(&self, entry: &ModelEntry) -> Option<String> {
        let why: Option<Vec<_>> = self
            .devices
            .iter()
            .map(|device| Some(format!("{}: {}", device.name, self.why_not(entry, device)?)))
            .collect();
        let ModelId { name, version, .. } = entry.source.id();
        why.map(|why| format!("no device of this node can run {name}:{version}: {}", why.join("; ")))
    }

    /// Ends the quarantine of a model on the devices of this node. Returns whether the model was
    /// quarantined.
    pub fn release(&self, entry: &ModelEntry) -> bool {
        let release = |device: &Arc<NodeDevice>| device.cache.backend().release(&entry.source.key);
        self.devices.iter().filter(|device| release(device)).count() > 0
    }

    /// Counts that a model runs on a device other than the placed one, and returns the reason as
    /// text.
    pub(super) fn instead(&self, entry: &ModelEntry, device: &Arc<str>, why: &str) -> Arc<str> {
        let id = entry.source.id();
        tracing::debug!(model = %id, %device, why, "a model runs on another device than it was placed on");
        self.metrics.instead(device);
        format!("{device} cannot run {}:{}: {why}", id.name, id.version).into()
    }

    /// The state of a model on each of the node's devices.
    pub(super) fn on_devices(&self, entry: &ModelEntry) -> Vec<ModelOnDevice> {
        let known = |device: &Arc<NodeDevice>| ModelOnDevice {
            device: device.name.as_ref().to_owned(),
            kind: device.kind.as_ref().to_owned(),
            why_not: self.why_not(entry, device).map(|why| why.as_ref().to_owned()),
            resident: device.cache.is_resident(&entry.source.key),
            runs: device.cache.run_setting(&entry.source.key).map(runs),
            profile: device.cache.profiles().get(&entry.source.key),
        };
        self.devices.iter().map(known).collect()
    }
}
