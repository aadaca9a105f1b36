//! Run settings of a model: concurrent runs and threads per run, changeable while the model is
//! served.
//!
//! Sessions with a new number of threads are created while runs still use the current sessions;
//! then runs switch to the new sessions. Runs in progress finish in their old sessions. The old
//! sessions then stay idle, ready for a change back, until [`ModelCache::retire_sessions`] ends
//! them.

use super::pool::{Pool, Pooled};
use super::resident::Resident;
use super::{CacheEntry, ModelCache, Pin};
use crate::backend::ModelKey;
use crate::error::InferenceError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Run setting of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSetting {
    /// Threads of each run.
    pub threads: u32,
    /// The most concurrent runs.
    pub sessions: usize,
}

impl ModelCache {
    /// Current setting of a model, and its number of sessions, including those that are being
    /// retired. `None` if the model is not in memory.
    #[must_use]
    pub fn run_setting(&self, key: &ModelKey) -> Option<(RunSetting, usize)> {
        let state = self.shared.state.lock();
        let resident = state.entries.get(key)?.resident()?;
        Some((resident.run_setting(), resident.sessions()))
    }

    /// Requests of a model since its load, including those in progress. `None` if the model is not
    /// in memory.
    #[must_use]
    pub fn asked(&self, key: &ModelKey) -> Option<u64> {
        Some(self.shared.state.lock().entries.get(key)?.resident()?.asked())
    }

    /// Changes the setting of a model, within the device's run slots and threads. The future
    /// resolves when the setting applies; dropping the future does not cancel the change. `None` if
    /// the model is not in memory. A reloaded model starts with the default setting, except after a
    /// device loss.
    pub fn set_run_setting(
        &self,
        key: &ModelKey,
        setting: RunSetting,
    ) -> Option<impl Future<Output = Result<(), InferenceError>> + Send + use<>> {
        let pin = self.pin_untouched(key)?;
        // Models that take turns keep their limit.
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
            // The caller may have stopped waiting.
            let _ = reply.send(outcome);
        }));
        Some(async move {
            sent?;
            applied.await.unwrap_or_else(|_| Err(crate::threads::shutting_down()))
        })
    }

    /// Ends the sessions of a model that exceed its setting and have been idle for `idle_for`.
    pub fn retire_sessions(&self, key: &ModelKey, idle_for: Duration) {
        let Some(before) = Instant::now().checked_sub(idle_for) else { return };
        let Some(pin) = self.pin_untouched(key) else { return };
        let retired = pin.resident().retire_sessions(before);
        if retired.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        // Dropped here instead only while the device is shutting down.
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

    /// Pins a model if it is resident, without counting a use.
    fn pin_untouched(&self, key: &ModelKey) -> Option<Pin> {
        let state = self.shared.state.lock();
        let resident = state.entries.get(key).and_then(CacheEntry::resident)?;
        Some(Pin::new(resident, &self.shared, None))
    }
}

impl Resident {
    pub(super) fn run_setting(&self) -> RunSetting {
        RunSetting { threads: self.pool().threads(), sessions: self.lane.slots.get() }
    }

    /// Creates the sessions for a setting, and makes runs use them. Blocks.
    pub(super) fn apply(&self, setting: RunSetting) -> Result<(), InferenceError> {
        let pool = self.pool_of(setting.threads);
        let model = self.model()?;
        while pool.len() < setting.sessions {
            pool.put(pool.make(&*model)?);
        }
        if self.switch_to(pool) {
            // Run times change with the setting.
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

    /// Number of sessions in all pools.
    fn sessions(&self) -> usize {
        let (current, former) = self.pools();
        current.len() + former.iter().map(|pool| pool.len()).sum::<usize>()
    }

    /// The pool of sessions with `threads` threads, or a new pool that is not installed yet.
    fn pool_of(&self, threads: u32) -> Arc<Pool> {
        let (current, former) = self.pools();
        let known = std::iter::once(current).chain(former).find(|pool| pool.threads() == threads);
        known.unwrap_or_else(|| Arc::new(Pool::new(threads)))
    }
}
