//! Loading a model, and freeing the models that make room for it. Both happen on the loader thread,
//! in the order of the requests.

use super::resident::{Origin, Resident};
use super::{CacheEntry, CacheShared, CacheState, Pin};
use crate::backend::{ModelKey, ModelSource};
use crate::batching::{BatchRules, Batcher};
use crate::error::InferenceError;
use crate::footprint::{CombinedSize, Footprint};
use crate::meter::Used;
use crate::threads::{Lane, LaneSlots};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};
use weir_types::{ModelId, TenantId};

type Waiting = oneshot::Sender<Result<Pin, InferenceError>>;

/// Queues the load of an absent model on the loader thread. The receiver is ready once the model is
/// loaded.
pub(super) fn begin(
    shared: &Arc<CacheShared>,
    state: &mut CacheState,
    source: &Arc<ModelSource>,
    victims: &[ModelId],
) -> Result<oneshot::Receiver<Result<Pin, InferenceError>>, InferenceError> {
    let (needed, evicted) = room(shared, state, source, victims)?;
    let lane = lane(shared, state, source);
    let job = (shared.clone(), source.clone());
    let victims = evicted.clone();
    // The load cannot start before the entries are updated: it needs the lock that the caller
    // holds.
    shared.runs.load(Box::new(move || load(job.0, job.1, lane, &victims)))?;

    for resident in evicted {
        resident.claim_freeing();
        let key = resident.source.key.clone();
        state.entries.insert(key, CacheEntry::Unloading { resident, waiting: Vec::new() });
    }
    let (sender, receiver) = oneshot::channel();
    let loading = CacheEntry::Loading { footprint: needed, waiting: vec![sender], unloading: Vec::new() };
    state.entries.insert(source.key.clone(), loading);
    shared.profiles.loading(&source.key);
    Ok(receiver)
}

/// On the loader thread: registers the reload of an absent model, without waiting callers. Returns
/// the lane for the load.
pub(super) fn begin_again(
    shared: &Arc<CacheShared>,
    state: &mut CacheState,
    source: &Arc<ModelSource>,
) -> Result<Lane, InferenceError> {
    let (footprint, _) = room(shared, state, source, &[])?;
    let lane = lane(shared, state, source);
    let loading = CacheEntry::Loading { footprint, waiting: Vec::new(), unloading: Vec::new() };
    state.entries.insert(source.key.clone(), loading);
    shared.profiles.loading(&source.key);
    Ok(lane)
}

/// Estimated footprint of a model, and the `victims` that must be evicted for it.
fn room(
    shared: &CacheShared,
    state: &CacheState,
    source: &ModelSource,
    victims: &[ModelId],
) -> Result<(Footprint, Vec<Arc<Resident>>), InferenceError> {
    let needed = estimate(shared, source);
    let evicted = state
        .make_room(&needed, victims, shared.capacity_bytes())
        .map_err(|lacking| no_room(shared, source.id(), lacking.needed_bytes, lacking.free_bytes))?;
    Ok((needed, evicted))
}

/// The lane that runs of a model queue in.
fn lane(shared: &CacheShared, state: &mut CacheState, source: &ModelSource) -> Lane {
    let slots = LaneSlots::new(slots(shared, source));
    let number = state.lane(shared.backend.in_turn(source));
    Lane { number, tenant: source.id().tenant.clone(), slots, batcher: batcher(shared, source) }
}

impl CacheShared {
    /// Queues an unpinned model on the loader thread to be freed. Does not block, and may be called
    /// twice.
    pub(super) fn free(self: &Arc<Self>, resident: &Arc<Resident>) {
        if !resident.claim_freeing() {
            return;
        }
        let shared = self.clone();
        let freed = resident.clone();
        let sent = self.runs.load(Box::new(move || {
            shared.free_now(&freed);
            shared.trim();
        }));
        if sent.is_err() {
            // The device is shutting down: the model is freed with the last handle of the cache.
            debug!(model = %resident.source.id(), "model not unloaded");
        }
    }

    fn free_now(self: &Arc<Self>, resident: &Resident) {
        resident.unload();
        let mut state = self.state.lock();
        let entry = state.entries.remove(&resident.source.key);
        state.has_gone(&resident.source.key);
        let is_wanted_again = state.reloads.let_go(&resident.source.key);
        drop(state);
        if is_wanted_again {
            self.reload();
        }
        let bytes = resident.footprint.total_bytes();
        info!(model = %resident.source.id(), device = %self.backend.device(), bytes, "model unloaded");
        if let Some(CacheEntry::Unloading { waiting, .. }) = entry {
            waiting.into_iter().for_each(|waiting| _ = waiting.send(()));
        }
    }

    pub(super) fn trim(&self) {
        self.arena.trim();
        self.backend.trim();
    }
}

impl CacheState {
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Number of a new lane. Each load has its own lane; all models of a tenant that take turns
    /// share one.
    pub(super) fn lane(&mut self, in_turn: Option<TenantId>) -> u64 {
        self.lanes += 1;
        match in_turn {
            Some(tenant) => *self.turns.entry(tenant).or_insert(self.lanes),
            None => self.lanes,
        }
    }

    /// The `victims` that are resident and unpinned, without duplicates.
    fn evictable(&self, victims: &[ModelId]) -> Vec<Arc<Resident>> {
        let mut evictable: Vec<Arc<Resident>> = Vec::new();
        for id in victims {
            let pushes = self.entries.iter().filter(|(key, _)| key.id == *id);
            for resident in pushes.filter_map(|(_, entry)| entry.resident()) {
                if resident.pins() == 0 && !evictable.iter().any(|other| Arc::ptr_eq(other, resident)) {
                    evictable.push(resident.clone());
                }
            }
        }
        evictable
    }

    /// The `victims` that must be evicted for a model to fit, in their order.
    fn make_room(
        &self,
        needed: &Footprint,
        victims: &[ModelId],
        capacity_bytes: u64,
    ) -> Result<Vec<Arc<Resident>>, Lacking> {
        let mut there = self.lasting();
        let is_over =
            |there: &CombinedSize| there.bytes().saturating_add(there.missing_bytes(needed)) > capacity_bytes;
        let mut evicted = Vec::new();
        for victim in self.evictable(victims) {
            if !is_over(&there) {
                break;
            }
            there.remove(&victim.footprint);
            evicted.push(victim);
        }
        if is_over(&there) {
            let needed_bytes = there.missing_bytes(needed);
            let free_bytes = capacity_bytes.saturating_sub(there.bytes());
            return Err(Lacking { needed_bytes, free_bytes });
        }
        Ok(evicted)
    }

    /// Memory that is still taken after the loader thread has done its queued work.
    fn lasting(&self) -> CombinedSize {
        let is_leaving = |entry: &&CacheEntry| matches!(entry, CacheEntry::Unloading { resident, .. } if resident.is_freeing());
        self.entries.values().filter(|entry| !is_leaving(entry)).map(CacheEntry::footprint).collect()
    }
}

/// The memory that a model without room needs in addition to the resident models, and the free
/// memory.
struct Lacking {
    needed_bytes: u64,
    free_bytes: u64,
}

/// On the loader thread: makes room, loads the model, answers all waiting callers, and waits for
/// the weights to arrive.
pub(super) fn load(
    shared: Arc<CacheShared>,
    source: Arc<ModelSource>,
    lane: Lane,
    victims: &[Arc<Resident>],
) {
    // Answers even if the backend panics.
    let mut answer = LoadPromise { shared, source, is_given: false };
    for victim in victims {
        answer.shared.free_now(victim);
    }
    if !victims.is_empty() {
        answer.shared.trim();
    }
    if let Some(why) = answer.shared.lost() {
        answer.failed(&InferenceError::DeviceLost(why));
        return;
    }
    let origin = Origin::look(&*answer.shared.backend, &answer.source);
    let began = Instant::now();
    match load_resident(&answer.shared, &answer.source, lane, origin) {
        Ok(resident) => {
            if let Some(arriving) = answer.loaded(resident, began.elapsed()) {
                answer.shared.see_arrive(&arriving, began);
            }
        }
        Err(error) => {
            answer.count(began.elapsed());
            answer.shared.note_loss(&error);
            answer.failed(&error.in_use());
        }
    }
}

fn load_resident(
    shared: &CacheShared,
    source: &Arc<ModelSource>,
    lane: Lane,
    origin: Origin,
) -> Result<Resident, InferenceError> {
    let model = shared.backend.load(source)?;
    Resident::new(source.clone(), lane, origin, model)
}

/// Sends the outcome of a load to all waiting callers. If dropped without an outcome, sends a
/// failure.
struct LoadPromise {
    shared: Arc<CacheShared>,
    source: Arc<ModelSource>,
    is_given: bool,
}

impl Drop for LoadPromise {
    fn drop(&mut self) {
        if !self.is_given {
            self.failed(&load_error(self.source.id(), "the backend panicked"));
        }
    }
}

impl LoadPromise {
    /// Admits the loaded model to the cache; runs may begin `time` after the start of the load.
    /// Returns the model if some weights are still arriving.
    fn loaded(&mut self, resident: Resident, time: Duration) -> Option<Arc<Resident>> {
        self.is_given = true;
        let is_arriving = resident.model().is_ok_and(|model| model.is_arriving());
        let key = &self.source.key;
        let bytes = resident.footprint.total_bytes();
        let resident = Arc::new(resident);
        let mut state = self.shared.state.lock();
        let LoadingEnd { footprint: estimate, waiting, unloading } = state.end_loading(key);
        if let Some(why) = state.lost.clone() {
            drop(state);
            resident.unload();
            self.count(time);
            self.refuse(waiting, &InferenceError::DeviceLost(why));
            return None;
        }
        let there = state.lasting();
        let free_bytes = self.shared.capacity_bytes().saturating_sub(there.bytes());
        let estimated_bytes = estimate.map_or(0, |estimate| there.missing_bytes(&estimate));
        // The estimate was admitted before the load; only memory beyond it can exceed the capacity.
        if there.missing_bytes(&resident.footprint) > free_bytes.max(estimated_bytes) {
            drop(state);
            resident.unload();
            self.count(time);
            self.refuse(waiting, &no_room(&self.shared, &key.id, bytes, free_bytes));
            return None;
        }
        let last_used = state.tick();
        let answers: Vec<_> = waiting
            .into_iter()
            .map(|waiting| (waiting, Pin::new(&resident, &self.shared, Some(time))))
            .collect();
        // Unloaded before it was loaded: the model is freed with the pins of earlier callers.
        let is_leaving = !unloading.is_empty() && resident.retire();
        let entry = if unloading.is_empty() {
            CacheEntry::Resident { resident: resident.clone(), last_used }
        } else {
            CacheEntry::Unloading { resident: resident.clone(), waiting: unloading }
        };
        state.entries.insert(key.clone(), entry);
        state.has_come(&resident);
        drop(state);
        if is_leaving {
            self.shared.free(&resident);
        }
        if !is_arriving {
            self.shared.has_arrived(&resident, time);
        }
        // The pin of a caller that has given up drops here.
        answers.into_iter().for_each(|(waiting, pin)| _ = waiting.send(Ok(pin)));
        is_arriving.then_some(resident)
    }

    /// Counts the time of a load whose model is not used.
    fn count(&self, time: Duration) {
        self.source.meter.add(self.shared.backend.device(), &Used::load(time));
    }

    fn failed(&mut self, error: &InferenceError) {
        self.is_given = true;
        let ended = self.shared.state.lock().end_loading(&self.source.key);
        self.refuse(ended.waiting, error);
    }

    fn refuse(&self, waiting: Vec<Waiting>, error: &InferenceError) {
        warn!(model = %self.source.id(), %error, "model not loaded");
        self.shared.load_is_over();
        waiting.into_iter().for_each(|waiting| _ = waiting.send(Err(error.clone())));
    }
}

/// Callers that wait for the end of a load.
#[derive(Default)]
struct LoadingEnd {
    footprint: Option<Footprint>,
    waiting: Vec<Waiting>,
    unloading: Vec<oneshot::Sender<()>>,
}

impl CacheState {
    /// Removes the entry of a load.
    fn end_loading(&mut self, key: &ModelKey) -> LoadingEnd {
        let Some(CacheEntry::Loading { footprint, waiting, unloading }) = self.entries.remove(key) else {
            return LoadingEnd::default();
        };
        LoadingEnd { footprint: Some(footprint), waiting, unloading }
    }
}

/// Estimated footprint of a model: at least the measured footprint of an earlier load, or else of
/// the trial load at upload.
fn estimate(shared: &CacheShared, source: &ModelSource) -> Footprint {
    shared.backend.footprint(source).at_least(shared.profiles.get(&source.key).resident_bytes)
}

fn slots(shared: &CacheShared, source: &ModelSource) -> usize {
    let asked = source.slots.and_then(|slots| usize::try_from(slots).ok());
    asked.unwrap_or(shared.config.slots).clamp(1, shared.config.slots)
}

/// The batcher of a model. Rules that do not fit the model were either refused at the push or come
/// from an older version.
fn batcher(shared: &CacheShared, source: &ModelSource) -> Option<Arc<Batcher>> {
    let rules = BatchRules::for_signature(&source.prepared.signature, &source.batching);
    let rules = rules
        .inspect_err(|error| warn!(model = %source.id(), %error, "batching disabled for the model"))
        .ok()??;
    Some(Arc::new(Batcher::new(rules, shared.profiles.get(&source.key))))
}

fn no_room(shared: &CacheShared, model: &ModelId, needed_bytes: u64, free_bytes: u64) -> InferenceError {
    let capacity_bytes = shared.capacity_bytes();
    InferenceError::NoRoom { model: model.clone(), needed_bytes, free_bytes, capacity_bytes }
}

fn load_error(model: &ModelId, why: &str) -> InferenceError {
    InferenceError::Load { model: model.clone(), why: why.into() }
}
