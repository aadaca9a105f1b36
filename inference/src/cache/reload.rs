//! Reloads the models of a lost device after its recovery, the most recently used first.
//!
//! Models are reloaded one at a time. Each reload waits for the loads that calls have requested
//! meanwhile. Reloads evict nothing. Reloading skips models that do not fit or were unloaded. If
//! the device is lost again during the reload, the remaining models are left to calls, since one of
//! the models may be the cause.

use super::load;
use super::resident::Resident;
use super::setting::RunSetting;
use super::{CacheEntry, CacheShared, CacheState};
use crate::backend::{ModelKey, ModelSource};
use std::collections::VecDeque;
use std::sync::Arc;
use tracing::{debug, info};

/// Models to reload.
#[derive(Default)]
pub(super) struct Reloads {
    waiting: VecDeque<Reload>,
    /// Models with pins from before the loss: each is queued when its last pin drops.
    held: Vec<Reload>,
    /// Whether a reload is in progress.
    is_under_way: bool,
}

/// A model to reload, and its run setting.
struct Reload {
    source: Arc<ModelSource>,
    setting: RunSetting,
}

impl Reloads {
    /// Records the resident models at the loss of the device, each with the time of its last use.
    pub(super) fn lost(&mut self, mut residents: Vec<(u64, Arc<Resident>)>) {
        self.waiting.clear();
        if std::mem::take(&mut self.is_under_way) {
            self.held.clear();
            return;
        }
        residents.sort_unstable_by_key(|(last_used, _)| std::cmp::Reverse(*last_used));
        let reload = |(_, resident): (u64, Arc<Resident>)| Reload {
            source: resident.source.clone(),
            setting: resident.run_setting(),
        };
        self.waiting = residents.into_iter().map(reload).collect();
    }

    /// Removes a model that is not wanted any more.
    pub(super) fn forget(&mut self, key: &ModelKey) {
        self.waiting.retain(|reload| reload.source.key != *key);
        self.held.retain(|reload| reload.source.key != *key);
    }

    /// Records that the last pin of a lost model dropped. Returns whether the model must be
    /// reloaded now.
    pub(super) fn let_go(&mut self, key: &ModelKey) -> bool {
        let place = self.held.iter().position(|reload| reload.source.key == *key);
        let reload = place.map(|place| self.held.remove(place));
        let is_wanted = reload.is_some();
        self.waiting.extend(reload);
        is_wanted
    }
}

impl CacheShared {
    /// Queues the next reload after the loader thread's other work, if the device is up.
    pub(super) fn reload(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return;
        }
        state.reloads.is_under_way = !state.reloads.waiting.is_empty();
        if state.reloads.is_under_way {
            drop(state);
            let shared = self.clone();
            // During a shutdown, the reload is not needed.
            let _ = self.runs.load(Box::new(move || shared.reload_next()));
        }
    }

    fn reload_next(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return;
        }
        let Some(Reload { source, setting }) = state.reloads.waiting.pop_front() else { return };
        let lane = match state.entries.get(&source.key) {
            None => load::begin_again(self, &mut state, &source).map(Some),
            Some(CacheEntry::Unloading { .. }) => {
                state.reloads.held.push(Reload { source: source.clone(), setting });
                Ok(None)
            }
            // A call has already loaded the model.
            Some(CacheEntry::Loading { .. } | CacheEntry::Resident { .. }) => Ok(None),
        };
        drop(state);
        match lane {
            Ok(Some(lane)) => {
                info!(model = %source.id(), device = %self.backend.device(), "reloading a model after a device loss");
                load::load(self.clone(), source.clone(), lane, &[]);
                self.set_again(&source.key, setting);
            }
            Ok(None) => {}
            Err(error) => debug!(model = %source.id(), %error, "model not reloaded"),
        }
        self.reload();
    }

    /// Restores the run setting of a model.
    fn set_again(&self, key: &ModelKey, setting: RunSetting) {
        let resident = self.state.lock().entries.get(key).and_then(CacheEntry::resident).cloned();
        let Some(resident) = resident.filter(|resident| resident.run_setting() != setting) else { return };
        match resident.apply(setting) {
            Ok(()) => self.runs.resize(&resident.lane, setting.sessions),
            Err(error) => debug!(model = %key.id, %error, "run setting not restored after a device loss"),
        }
    }
}

impl CacheState {
    /// Resident models, with the time of their last use.
    pub(super) fn used(&self) -> Vec<(u64, Arc<Resident>)> {
        let resident = |entry: &CacheEntry| match entry {
            CacheEntry::Resident { resident, last_used } => Some((*last_used, resident.clone())),
            CacheEntry::Loading { .. } | CacheEntry::Unloading { .. } => None,
        };
        self.entries.values().filter_map(resident).collect()
    }
}
