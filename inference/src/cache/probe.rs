//! Runs of a model that serve only to measure it.

use super::CacheShared;
use super::pool::Pool;
use super::resident::Pin;
use super::run::PendingRun;
use crate::error::InferenceError;
use crate::request::RunRequest;
use crate::threads::{Lane, LaneSlots, shutting_down};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Runs a model with separate sessions, which have the probe's number of threads and end with the
/// probe. Its runs queue for the device like all others, but are never batched and are not part of
/// the model's profile.
pub struct Probe {
    lane: Lane,
    pool: Arc<Pool>,
    pin: Pin,
}

impl Pin {
    /// Creates a probe whose runs have `threads` threads each, limited to the device's maximum.
    #[must_use]
    pub fn probe(&self, threads: u32) -> Probe {
        let shared = self.shared();
        let threads = threads.clamp(1, shared.backend.threads_max().max(1));
        let own = &self.resident().lane;
        let lane = if shared.backend.in_turn(&self.resident().source).is_some() {
            Lane { batcher: None, ..own.clone() }
        } else {
            let number = shared.state.lock().lane(None);
            let slots = LaneSlots::new(shared.config.slots);
            Lane { number, tenant: own.tenant.clone(), slots, batcher: None }
        };
        Probe { lane, pool: Arc::new(Pool::new(threads)), pin: self.clone() }
    }
}

impl Probe {
    /// Starts a run, as [`Pin::run`] does.
    pub fn run(&self, request: RunRequest) -> PendingRun {
        PendingRun::start_in(self.pin.clone(), self.lane.clone(), Some(self.pool.clone()), request)
    }

    /// Returns idle run memory (of all models) to the system, and reports the memory that remains.
    pub async fn trimmed_run_memory_bytes(&self) -> Result<u64, InferenceError> {
        self.run_memory_after(CacheShared::trim).await
    }

    /// Memory that runs of all models hold for intermediate tensors.
    pub async fn run_memory_bytes(&self) -> Result<u64, InferenceError> {
        self.run_memory_after(|_| ()).await
    }

    /// Runs on the loader thread, since both steps may block.
    async fn run_memory_after(&self, first: fn(&CacheShared)) -> Result<u64, InferenceError> {
        let shared = self.pin.shared().clone();
        let (reply, told) = oneshot::channel();
        self.pin.shared().runs.load(Box::new(move || {
            first(&shared);
            // The caller may have stopped waiting.
            let _ = reply.send(shared.backend.run_memory_bytes());
        }))?;
        told.await.map_err(|_| shutting_down())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let pool = self.pool.clone();
        let pin = self.pin.clone();
        let shared = pin.shared().clone();
        // Ending a session may block, and must precede the unload of the model. During a shutdown,
        // the sessions end here.
        let _ = self.pin.shared().runs.load(Box::new(move || {
            pool.end();
            drop(pin);
            shared.trim();
        }));
    }
}
