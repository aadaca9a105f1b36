//! What is left of a load once runs may begin: the model has its place, its weights are on their way, and the first runs go on behind them.
//!
//! Until they are there the load is not over: its time runs, the next load waits, and the model is none of those that the scheduler is told of. Should they never
//! be, the runs that need them say why, and the model goes: whoever asks for it next has it loaded anew.

use super::Shared;
use super::resident::Resident;
use crate::meter::Used;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Where models are loaded from, as profiles call it: weights are mapped files.
const TIER: &str = "disk";

impl Shared {
    /// On the loader thread: wait for the rest of a model whose load began then.
    pub(super) fn see_arrive(self: &Arc<Self>, resident: &Arc<Resident>, began: Instant) {
        let arrived = resident.model().and_then(|model| model.arrive());
        let time = began.elapsed();
        match arrived {
            Ok(()) => self.has_arrived(resident, time),
            Err(error) => {
                resident.source.meter.add(self.backend.device(), &Used::load(time));
                warn!(model = %resident.source.id(), %error, "model not loaded");
                self.note_loss(&error);
                // Nobody waits for it to be gone.
                drop(self.retire_resident(resident));
                self.load_is_over();
            }
        }
    }

    /// All of a model is there, so long after its load began.
    pub(super) fn has_arrived(&self, resident: &Resident, time: Duration) {
        let (key, bytes) = (&resident.source.key, resident.footprint.total_bytes());
        resident.source.meter.add(self.backend.device(), &Used::load(time));
        self.profiles.loaded(key, TIER, time, bytes);
        resident.has_arrived(time);
        info!(model = %key.id, device = %self.backend.device(), bytes, load_ms = time.as_millis(), "model loaded");
        self.load_is_over();
    }
}
