//! Required models: what the scheduler is told of them, and what this node's devices are to load.

use super::Placements;
use super::state::{PlacementState, Placer};
use crate::wire::NodeEvent;
use tokio::sync::futures::Notified;
use weir_scheduler::RequiredModel;
use weir_types::{ModelId, Ordinal};

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

    /// The required models that this node's devices have to load.
    pub fn missing(&self) -> Vec<(Ordinal, ModelId)> {
        self.state.lock().residency.missing()
    }

    /// Completes when [`missing`](Self::missing) may name another model. Remembers one change before
    /// this call.
    pub fn missing_changed(&self) -> Notified<'_> {
        self.required.notified()
    }

    /// Whether a device of this node is required to keep a model.
    pub fn is_required(&self, device: Ordinal, model: &ModelId) -> bool {
        self.state.lock().residency.is_required(device, model)
    }

    /// Reports that a device could not load a required model, which it then no longer has to keep.
    pub fn load_failed(&self, device: Ordinal, model: ModelId) {
        let mut state = self.state.lock();
        if state.residency.release_required(device, &model) {
            self.tell(&mut state, NodeEvent::LoadFailed { device, model });
        }
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

    /// Ends the obligation of one of this node's devices to keep a model.
    pub(super) fn release_here(&self, state: &mut PlacementState, device: Ordinal, model: ModelId) {
        state.residency.release_required(device, &model);
        self.tell(state, NodeEvent::Released { device, model });
    }
}
