//! Losing a device, with everything in its memory, and having it again.

use super::{Entry, Shared};
use crate::error::InferenceError;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// The pause before a device that could not be had is asked for again; it doubles with each.
const RECOVER_AGAIN: Duration = Duration::from_millis(20);
/// The longest such pause.
const RECOVER_AGAIN_MAX: Duration = Duration::from_secs(2);

/// Whether a device is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It runs models.
    Up,
    /// It was lost, for this reason, and is being had again.
    Lost(Arc<str>),
}

impl Shared {
    /// Why the device is lost, while it is.
    pub(super) fn lost(&self) -> Option<Arc<str>> {
        self.lock().lost.clone()
    }

    /// If `error` says that the device is lost: let go of what was in its memory, end what runs and waits, and have it again.
    pub(super) fn note_loss(self: &Arc<Self>, error: &InferenceError) {
        let InferenceError::DeviceLost(why) = error else { return };
        let mut state = self.lock();
        if state.lost.is_some() {
            return;
        }
        state.lost = Some(Arc::clone(why));
        let had = state.used();
        state.reloads.lost(had);
        let mut gone = Vec::new();
        for entry in state.entries.values_mut() {
            // A load that is under way finds out by itself; so does one that waits for its turn.
            let (resident, waiting) = match entry {
                Entry::Loading { .. } => continue,
                Entry::Resident { resident, .. } => (Arc::clone(resident), Vec::new()),
                Entry::Unloading { resident, waiting } => (Arc::clone(resident), std::mem::take(waiting)),
            };
            resident.lose();
            gone.push(resident.source.key.clone());
            let is_free = resident.retire();
            *entry = Entry::Unloading { resident: Arc::clone(&resident), waiting };
            if is_free {
                self.free(&resident);
            }
        }
        gone.iter().for_each(|key| state.has_gone(key));
        drop(state);
        warn!(device = %self.backend.device(), %why, "the device is lost, and what was in its memory");
        self.health.send_replace(Health::Lost(Arc::clone(why)));
        self.runs.lose();
        let shared = Arc::clone(self);
        // Behind what frees the models. Where the device is shutting down, nobody wants it again.
        let _ = self.runs.load(Box::new(move || shared.recover()));
    }

    /// On the loader thread, which has nothing to load meanwhile.
    fn recover(self: &Arc<Self>) {
        let mut pause = RECOVER_AGAIN;
        while let Err(error) = self.backend.recover() {
            debug!(device = %self.backend.device(), %error, "the device cannot be had yet");
            if self.runs.pause(pause) {
                return;
            }
            pause = (2 * pause).min(RECOVER_AGAIN_MAX);
        }
        self.lock().lost = None;
        info!(device = %self.backend.device(), "the device is there again");
        self.health.send_replace(Health::Up);
        self.reload();
    }
}
