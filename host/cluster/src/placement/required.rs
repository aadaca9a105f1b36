//! Required models: the list that the scheduler gets, and the loads of this node's devices.

use super::Placements;
use super::clock::now;
use super::state::{PlacementState, Placer};
use crate::wire::NodeEvent;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::futures::Notified;
use weir_scheduler::RequiredModel;
use weir_types::{ModelId, Ordinal};

/// The load of a required copy, which this node performs. The scheduler learns of a release of the
/// copy only after the load: dropping this ends it.
pub struct CopyLoad {
    placements: Arc<Placements>,
    /// The device and the model.
    copy: (Ordinal, ModelId),
}

impl CopyLoad {
    /// The device that is to load the model.
    pub fn device(&self) -> Ordinal {
        self.copy.0
    }

    /// The model to load.
    pub fn model(&self) -> &ModelId {
        &self.copy.1
    }

    /// Reports that the device could not load the model, which it then no longer has to keep.
    /// Returns false if the copy was not required any more.
    pub fn fail(self) -> bool {
        let mut state = self.placements.state.lock();
        let (device, model) = self.copy.clone();
        state.loading.remove(&self.copy);
        let was_required = state.residency.release_required(device, &model);
        let event = match was_required {
            true => NodeEvent::LoadFailed { device, model },
            false => NodeEvent::Released { device, model },
        };
        self.placements.tell(&mut state, event);
        was_required
    }
}

impl Drop for CopyLoad {
    fn drop(&mut self) {
        let mut state = self.placements.state.lock();
        if state.loading.remove(&self.copy) && !state.residency.is_required(self.copy.0, &self.copy.1) {
            let (device, model) = self.copy.clone();
            self.placements.tell(&mut state, NodeEvent::Released { device, model });
        }
    }
}

impl Placements {
    /// Replaces the list of models that devices keep in memory. Without effect where another node
    /// places this node's invocations, or if the scheduler has this list.
    pub fn require(&self, models: Vec<RequiredModel>) {
        let mut state = self.state.lock();
        let Placer::Own(driver) = &mut state.placer else { return };
        let required = driver.require(models);
        self.decide_all(&mut state, required);
    }

    /// Required copies that no device keeps; 0 where another node places this node's invocations.
    pub fn copies_missing(&self) -> u64 {
        match &self.state.lock().placer {
            Placer::Own(driver) => driver.copies_missing(),
            Placer::Dispatcher(_) => 0,
        }
    }

    /// Begins the load of a required copy that is missing, on a device that loads no other one.
    /// Copies in `resting` wait.
    pub fn begin_load(self: &Arc<Self>, resting: &BTreeSet<(Ordinal, ModelId)>) -> Option<CopyLoad> {
        let mut state = self.state.lock();
        let is_loading = |device: Ordinal| state.loading.iter().any(|(loading, _)| *loading == device);
        let missing = state.residency.missing().into_iter();
        let copy = missing.filter(|copy| !is_loading(copy.0)).find(|copy| !resting.contains(copy))?;
        state.loading.insert(copy.clone());
        Some(CopyLoad { placements: self.clone(), copy })
    }

    /// Whether a device had to keep a model until its scheduler was replaced a moment ago. The next
    /// scheduler is about to require the model again.
    pub fn was_required(&self, device: Ordinal, model: &ModelId) -> bool {
        self.state.lock().residency.was_required(device, model, now())
    }

    /// Completes when [`begin_load`](Self::begin_load) may find another copy. Remembers one change
    /// before this call.
    pub fn missing_changed(&self) -> Notified<'_> {
        self.required.notified()
    }

    /// Requires one of this node's devices to load and keep a model.
    pub(super) fn require_here(
        &self,
        state: &mut PlacementState,
        device: Ordinal,
        model: ModelId,
        evict: Vec<ModelId>,
    ) {
        let frees = !evict.is_empty();
        state.residency.require(device, model, evict);
        if frees {
            self.freed.notify_waiters();
        }
        self.required.notify_one();
    }

    /// Ends the obligation of one of this node's devices to keep a model. The scheduler learns of it
    /// by [`report_released`](Self::report_released), or at the end of the copy's load.
    pub(super) fn release_here(&self, state: &mut PlacementState, device: Ordinal, model: &ModelId) {
        state.residency.release_required(device, model);
        let copy = (device, model.clone());
        if !state.loading.contains(&copy) {
            state.released.push(copy);
        }
        self.freed.notify_waiters();
    }

    /// Reports released copies to the scheduler.
    pub(super) fn report_released(&self, state: &mut PlacementState) {
        for (device, model) in std::mem::take(&mut state.released) {
            self.tell(state, NodeEvent::Released { device, model });
        }
    }
}
