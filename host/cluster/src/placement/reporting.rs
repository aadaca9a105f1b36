//! Reports about this node's devices to the scheduler: models in memory, health and capacity.

use super::Placements;
use super::residency::{HealthChange, ReportedModel, ResidencyChanges, ResidentLoad};
use crate::wire::{AnnouncedModel, NodeEvent, StagedModel};
use tokio::sync::watch;
use weir_inference::Health;
use weir_types::Ordinal;

impl Placements {
    /// Reports a load or an eviction to the scheduler: `now` returns the models in the device's
    /// memory. Returns the changes since the last report.
    pub fn residents(&self, device: Ordinal, now: impl FnOnce() -> Vec<ResidentLoad>) -> ResidencyChanges {
        let mut state = self.state.lock();
        // Read under the lock, so that the last caller reports the latest state.
        let mut loads = now();
        let now = loads.iter().map(|loaded| loaded.resident.clone()).collect();
        let (gone, come) = state.residency.reconcile(device, now);
        for model in &gone {
            if state.residency.is_required(device, model) {
                self.required.notify_one();
            }
            self.tell(&mut state, NodeEvent::Evicted { device, model: model.clone() });
        }
        let mut new = Vec::new();
        for ReportedModel { resident: AnnouncedModel { model, bytes, parts, .. }, is_new } in come {
            let load = loads.iter().position(|loaded| is_new && loaded.resident.model == model);
            let load = load.map(|at| loads.swap_remove(at));
            let time_ns = |load: &ResidentLoad| u64::try_from(load.time.as_nanos()).unwrap_or(u64::MAX);
            let load_time_ns = load.as_ref().map(time_ns);
            if let Some(load) = load {
                // The scheduler learns the time for the tier that the model was in.
                let from = StagedModel { model: model.clone(), bytes: load.from.clone(), moved: None };
                self.stage_all(&mut state, vec![from]);
                new.push(load);
            }
            self.tell(&mut state, NodeEvent::Loaded { device, model, bytes, load_time_ns, parts });
        }
        ResidencyChanges { loaded: new, gone }
    }

    /// Reports to the scheduler that a device was lost, with the contents of its memory, or is
    /// back. Returns the change that this call reports, if any.
    pub fn note_health(&self, device: Ordinal, health: &watch::Receiver<Health>) -> Option<HealthChange> {
        let mut state = self.state.lock();
        // Read under the lock, so that the last caller reports the latest state.
        let is_up = *health.borrow() == Health::Up;
        if !state.residency.set_up(device, is_up) {
            return None;
        }
        if is_up {
            self.tell(&mut state, NodeEvent::DeviceUp { device });
        } else {
            self.report_ends_on(&mut state, device);
            self.tell(&mut state, NodeEvent::DeviceDown { device });
            let (gone, _) = state.residency.reconcile(device, Vec::new());
            for model in gone {
                self.tell(&mut state, NodeEvent::Evicted { device, model });
            }
        }
        Some(if is_up { HealthChange::Recovered } else { HealthChange::Lost })
    }

    /// Reports to the scheduler that a device may have more or less memory for models than before.
    pub fn note_capacity(&self, device: Ordinal, capacity: &watch::Receiver<u64>) {
        let mut state = self.state.lock();
        // Read under the lock, so that the last caller reports the latest state.
        let capacity_bytes = *capacity.borrow();
        if state.residency.set_capacity(device, capacity_bytes, &self.devices) {
            self.tell(&mut state, NodeEvent::DeviceResized { device, capacity_bytes });
        }
    }
}
