//! Runs of a model that are only made to be measured.

use super::Shared;
use super::pool::Pool;
use super::resident::Pin;
use super::run::Run;
use crate::error::InferenceError;
use crate::request::RunRequest;
use crate::threads::{Lane, LaneSlots, shutting_down};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Runs a model with sessions of its own, which have as many threads as it was made with, and end with it. Its runs stand in line for the
/// device like all others, are never run together with any, and are not part of the model's profile.
pub struct Probe {
    lane: Lane,
    pool: Arc<Pool>,
    pin: Pin,
}

impl Pin {
    /// Measure the model in runs of so many threads each, up to what the device can give.
    #[must_use]
    pub fn probe(&self, threads: u32) -> Probe {
        let shared = self.shared();
        let threads = threads.clamp(1, shared.backend.threads_max().max(1));
        let own = &self.resident().lane;
        let lane = if shared.backend.in_turn(&self.resident().source).is_some() {
            Lane { batcher: None, ..own.clone() }
        } else {
            let number = shared.lock().lane(None);
            Lane { number, slots: LaneSlots::new(shared.config.slots), batcher: None }
        };
        Probe { lane, pool: Arc::new(Pool::new(threads)), pin: self.clone() }
    }
}

impl Probe {
    /// Start a run, as [`Pin::run`] does.
    pub fn run(&self, request: RunRequest) -> Run {
        Run::start_in(self.pin.clone(), self.lane.clone(), Some(Arc::clone(&self.pool)), request)
    }

    /// Have memory given back that lies idle between the inputs and outputs of runs, whosever they were, and tell what is left.
    pub async fn trimmed_run_memory_bytes(&self) -> Result<u64, InferenceError> {
        self.run_memory_after(Shared::trim).await
    }

    /// What runs have taken between their inputs and outputs by now, whosever they were.
    pub async fn run_memory_bytes(&self) -> Result<u64, InferenceError> {
        self.run_memory_after(|_| ()).await
    }

    /// On the loader thread, since either may block.
    async fn run_memory_after(&self, first: fn(&Shared)) -> Result<u64, InferenceError> {
        let shared = Arc::clone(self.pin.shared());
        let (reply, told) = oneshot::channel();
        self.pin.shared().runs.load(Box::new(move || {
            first(&shared);
            // Whoever asked may be gone.
            let _ = reply.send(shared.backend.run_memory_bytes());
        }))?;
        told.await.map_err(|_| shutting_down())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let (pool, pin) = (Arc::clone(&self.pool), self.pin.clone());
        let shared = Arc::clone(pin.shared());
        // Ending a session may block, and comes before the model can go. Where the device is shutting down, it happens here.
        let _ = self.pin.shared().runs.load(Box::new(move || {
            pool.end();
            drop(pin);
            shared.trim();
        }));
    }
}
