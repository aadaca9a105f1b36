//! How many runs of a model go on at once, and with how many threads each: changed while it is served.
//!
//! Sessions with another number of threads are made beside those there are, and only then take over. Runs that are under way end where they
//! began; the sessions that are left over lie idle, ready for a change back, until [`ModelCache::retire_sessions`] ends them.

use super::pool::{Pool, Pooled};
use super::resident::Resident;
use super::{Entry, ModelCache, Pin};
use crate::backend::ModelKey;
use crate::error::InferenceError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How a model in a device's memory is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSetting {
    /// Threads of each run.
    pub threads: u32,
    /// Runs at once, at most.
    pub sessions: usize,
}

impl ModelCache {
    /// How a model is run now, and how many sessions there are of it, those that are being retired included. None if it is not in memory.
    #[must_use]
    pub fn run_setting(&self, key: &ModelKey) -> Option<(RunSetting, usize)> {
        let state = self.shared.lock();
        let resident = state.entries.get(key)?.resident()?;
        Some((resident.run_setting(), resident.sessions()))
    }

    /// How many requests a model was run for since it was loaded, those that are under way included. None if it is not in memory.
    #[must_use]
    pub fn asked(&self, key: &ModelKey) -> Option<u64> {
        Some(self.shared.lock().entries.get(key)?.resident()?.asked())
    }

    /// Run a model like this from now on, within the device's slots and its threads. The future is ready once it is so; it goes on if it is
    /// dropped. None if the model is not in memory: when it comes back, it runs as every model does, unless it was the device that was lost.
    pub fn set_run_setting(
        &self,
        key: &ModelKey,
        setting: RunSetting,
    ) -> Option<impl Future<Output = Result<(), InferenceError>> + Send + use<>> {
        let pin = self.pin_untouched(key)?;
        // Models that take turns go on doing so.
        let takes_turns = self.shared.backend.in_turn(&pin.resident().source).is_some();
        let sessions_max = if takes_turns { pin.resident().lane.slots.get() } else { self.slots() };
        let setting = RunSetting {
            threads: setting.threads.clamp(1, self.threads_max()),
            sessions: setting.sessions.clamp(1, sessions_max),
        };
        let (reply, applied) = oneshot::channel();
        let runs = self.shared.runs.clone();
        let sent = self.shared.runs.load(Box::new(move || {
            let resident = pin.resident();
            let outcome = resident.apply(setting).map(|()| runs.resize(&resident.lane, setting.sessions));
            // Whoever asked may be gone.
            let _ = reply.send(outcome);
        }));
        Some(async move {
            sent?;
            applied.await.unwrap_or_else(|_| Err(crate::threads::shutting_down()))
        })
    }

    /// End the sessions of a model that it does not need as it is run now, and that nobody has used for `idle_for`.
    pub fn retire_sessions(&self, key: &ModelKey, idle_for: Duration) {
        let Some(before) = Instant::now().checked_sub(idle_for) else { return };
        let Some(pin) = self.pin_untouched(key) else { return };
        let retired = pin.resident().retire_sessions(before);
        if retired.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // Dropped elsewhere only where the device is shutting down.
        let _ = self.shared.runs.load(Box::new(move || {
            drop(retired);
            drop(pin);
            shared.trim();
        }));
    }

    /// The most threads that a run can have.
    #[must_use]
    pub fn threads_max(&self) -> u32 {
        self.shared.backend.threads_max().max(1)
    }

    /// Pin a model if it is there, without counting that as a use of it.
    fn pin_untouched(&self, key: &ModelKey) -> Option<Pin> {
        let state = self.shared.lock();
        let resident = state.entries.get(key).and_then(Entry::resident)?;
        Some(Pin::new(resident, &self.shared, None))
    }
}

impl Resident {
    pub(super) fn run_setting(&self) -> RunSetting {
        RunSetting { threads: self.pool().threads(), sessions: self.lane.slots.get() }
    }

    /// Have as many sessions as that takes, and let runs take those from now on. Blocks.
    pub(super) fn apply(&self, setting: RunSetting) -> Result<(), InferenceError> {
        let pool = self.pool_of(setting.threads);
        let model = self.model()?;
        while pool.len() < setting.sessions {
            pool.put(pool.make(&*model)?);
        }
        if self.switch_to(pool) {
            // What runs take is another time now.
            if let Some(batcher) = &self.lane.batcher {
                batcher.forget_times();
            }
        }
        Ok(())
    }

    fn retire_sessions(&self, before: Instant) -> Vec<Pooled> {
        let needed = self.lane.slots.get();
        let (current, former) = self.pools();
        let mut retired = current.retire(before, needed);
        retired.extend(former.iter().flat_map(|pool| pool.retire(before, 0)));
        self.forget_empty_pools();
        retired
    }

    /// Sessions of all pools.
    fn sessions(&self) -> usize {
        let (current, former) = self.pools();
        current.len() + former.iter().map(|pool| pool.len()).sum::<usize>()
    }

    /// The pool of sessions with so many threads; a new one, that nobody else knows yet, if there is none.
    fn pool_of(&self, threads: u32) -> Arc<Pool> {
        let (current, former) = self.pools();
        let known = std::iter::once(current).chain(former).find(|pool| pool.threads() == threads);
        known.unwrap_or_else(|| Arc::new(Pool::new(threads)))
    }
}
