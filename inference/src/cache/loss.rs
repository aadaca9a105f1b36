//! Loss of a device, with everything in its memory, and its recovery.

use super::{CacheEntry, CacheShared};
use crate::error::InferenceError;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// Pause after the first failed recovery; doubles with each failure.
const RECOVER_AGAIN: Duration = Duration::from_millis(20);
/// The longest pause.
const RECOVER_AGAIN_MAX: Duration = Duration::from_secs(2);

/// Availability of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The device runs models.
    Up,
    /// The device was lost for this reason, and is being recovered.
    Lost(Arc<str>),
}

impl CacheShared {
    /// Why the device is lost, while it is.
    pub(super) fn lost(&self) -> Option<Arc<str>> {
        self.state.lock().lost.clone()
    }

    /// If `error` reports a device loss: marks all models as lost, ends running and waiting jobs,
    /// and starts the recovery.
    pub(super) fn note_loss(self: &Arc<Self>, error: &InferenceError) {
        let InferenceError::DeviceLost(why) = error else { return };
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return;
        }
        state.lost = Some(why.clone());
        let had = state.used();
        state.reloads.lost(had);
        let mut gone = Vec::new();
        for entry in state.entries.values_mut() {
            // A load in progress or in the queue detects the loss itself.
            let (resident, waiting) = match entry {
                CacheEntry::Loading { .. } => continue,
                CacheEntry::Resident { resident, .. } => (resident.clone(), Vec::new()),
                CacheEntry::Unloading { resident, waiting } => (resident.clone(), std::mem::take(waiting)),
            };
            resident.lose();
            gone.push(resident.source.key.clone());
            let is_free = resident.retire();
            *entry = CacheEntry::Unloading { resident: resident.clone(), waiting };
            if is_free {
                self.free(&resident);
            }
        }
        gone.iter().for_each(|key| state.has_gone(key));
        drop(state);
        warn!(device = %self.backend.device(), %why, "device lost, with the contents of its memory");
        self.health.send_replace(Health::Lost(why.clone()));
        self.runs.lose();
        let shared = self.clone();
        // The recovery is queued after the freeing of the models. During a shutdown, the recovery
        // is not needed.
        let _ = self.runs.load(Box::new(move || shared.recover()));
    }

    /// Recovers the device. Runs on the loader thread, which has nothing to load in the meantime.
    fn recover(self: &Arc<Self>) {
        let mut pause = RECOVER_AGAIN;
        while let Err(error) = self.backend.recover() {
            debug!(device = %self.backend.device(), %error, "device recovery failed, retrying");
            if self.runs.pause(pause) {
                return;
            }
            pause = (2 * pause).min(RECOVER_AGAIN_MAX);
        }
        self.state.lock().lost = None;
        info!(device = %self.backend.device(), "device recovered");
        self.health.send_replace(Health::Up);
        self.reload();
    }
}
