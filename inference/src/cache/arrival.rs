//! The end of a load after runs may begin: memory is allocated, weights are being transferred, and
//! the first runs wait for the weights that they need.
//!
//! Until the weights have arrived, the load is not complete: its time runs, the next load waits,
//! and the scheduler does not see the model as loaded. If the transfer fails, the waiting runs
//! return the error and the model is unloaded; the next acquire loads it again.

use super::CacheShared;
use super::resident::{FinishedLoad, Resident};
use crate::meter::Used;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

impl CacheShared {
    /// On the loader thread: waits until the weights of a model have arrived. The load started at
    /// `began`.
    pub(super) fn see_arrive(self: &Arc<Self>, resident: &Arc<Resident>, began: Instant) {
        let arrived = resident.model().and_then(|model| model.arrive());
        let time = began.elapsed();
        match arrived {
            Ok(()) => self.has_arrived(resident, time),
            Err(error) => {
                resident.source.meter.add(self.backend.device(), &Used::load(time));
                warn!(model = %resident.source.id(), %error, "model not loaded");
                self.note_loss(&error);
                // No caller waits for the unload.
                drop(self.retire_resident(resident));
                self.load_is_over();
            }
        }
    }

    /// Completes a load that took `time`.
    pub(super) fn has_arrived(&self, resident: &Resident, time: Duration) {
        let key = &resident.source.key;
        let bytes = resident.footprint.total_bytes();
        resident.source.meter.add(self.backend.device(), &Used::load(time));
        let from = resident.origin.after_load(&*self.backend);
        self.profiles.loaded(key, from.most(), time, bytes);
        resident.has_arrived(FinishedLoad { time, from });
        info!(model = %key.id, device = %self.backend.device(), bytes, from = from.most(), load_ms = time.as_millis(), "model loaded");
        self.load_is_over();
    }
}
