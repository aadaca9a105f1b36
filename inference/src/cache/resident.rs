//! One model in the device's memory, and the guard that keeps it there.

use super::Shared;
use super::pool::{Pool, Pooled};
use super::run::Run;
use crate::backend::{Model, ModelKey, ModelSource};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::request::RunRequest;
use crate::threads::{Lane, shutting_down};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use weir_types::{Measured, ModelId, Signature};

/// Keeps a model in the device's memory until it drops, and runs it. Cheap to clone.
pub struct Pin {
    resident: Arc<Resident>,
    shared: Arc<Shared>,
    load_time: Option<Duration>,
}

/// A model in the device's memory. Owned by the cache's entry, and by pins while there are any.
pub(super) struct Resident {
    pub(super) source: Arc<ModelSource>,
    pub(super) lane: Lane,
    pub(super) footprint: Footprint,
    /// Raised from zero only under the cache's lock, where eviction looks at it.
    pins: AtomicUsize,
    /// When the last pin was let go of.
    unpinned_at: Mutex<Instant>,
    /// Set when the model is to go once nobody pins it.
    retiring: AtomicBool,
    /// Set by the one who has sent it to the loader thread to be freed.
    freeing: AtomicBool,
    /// Set when the device is lost with it.
    lost: AtomicBool,
    /// What one more session takes of the device's memory.
    pub(super) session_bytes: u64,
    /// Requests for it since it was loaded.
    asked: AtomicU64,
    /// How long its load took, once that is over.
    load_time: OnceLock<Duration>,
    loaded: Mutex<Loaded>,
}

/// What takes up the device's memory. Fields drop in order: the sessions before their weights.
struct Loaded {
    /// The sessions that runs take.
    pool: Arc<Pool>,
    /// Those they took before, until these are retired.
    former: Vec<Arc<Pool>>,
    model: Option<Arc<dyn Model>>,
}

/// Threads of a run, unless something else is set.
const THREADS: u32 = 1;

impl Pin {
    /// The caller holds the cache's lock, or another pin of the same model.
    pub(super) fn new(resident: &Arc<Resident>, shared: &Arc<Shared>, load_time: Option<Duration>) -> Self {
        resident.pins.fetch_add(1, Ordering::AcqRel);
        Self { resident: Arc::clone(resident), shared: Arc::clone(shared), load_time }
    }

    /// Which model it keeps.
    #[must_use]
    pub fn id(&self) -> &ModelId {
        self.resident.source.id()
    }

    /// Which push of it.
    #[must_use]
    pub fn key(&self) -> &ModelKey {
        &self.resident.source.key
    }

    /// What the model takes and gives.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.resident.source.prepared.signature
    }

    /// Whether it was lost with its device. It is not loaded anew before all pins of what was lost have gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.resident.is_lost()
    }

    /// How long this pin had to wait for a load, until runs could begin; none where the model was there already.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        self.load_time
    }

    /// What one more session of it takes of the device's memory.
    #[must_use]
    pub fn session_bytes(&self) -> u64 {
        self.resident.session_bytes
    }

    /// Keep what the model did in several configurations, in place of what was kept before.
    pub fn set_measured(&self, measured: Vec<Measured>) {
        self.shared.profiles.set_measured(self.key(), measured);
    }

    /// Start a run. It is in line for the device when this returns; dropping the future withdraws or stops it.
    ///
    /// What is wrong with the request is found before it gets in line, and is the future's answer like any other error.
    pub fn run(&self, request: RunRequest) -> Run {
        self.resident.asked.fetch_add(1, Ordering::Relaxed);
        Run::start(self.clone(), request)
    }

    pub(super) fn resident(&self) -> &Resident {
        &self.resident
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        Self::new(&self.resident, &self.shared, self.load_time)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.resident.note_unpinned();
        // In one order here and in the other in `Shared::retire`: at least one of the two sees both.
        if self.resident.pins.fetch_sub(1, Ordering::SeqCst) == 1
            && self.resident.retiring.load(Ordering::SeqCst)
        {
            self.shared.free(&self.resident);
        }
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({})", self.id())
    }
}

impl Resident {
    /// A model that has just been loaded, and its first session: the first run must not have to wait for that. Blocks.
    pub(super) fn new(
        source: Arc<ModelSource>,
        lane: Lane,
        model: Box<dyn Model>,
    ) -> Result<Self, InferenceError> {
        let (footprint, session_bytes) = (model.footprint(), model.session_bytes());
        let pool = Arc::new(Pool::new(THREADS));
        pool.put(pool.make(&*model)?);
        let loaded = Mutex::new(Loaded { pool, former: Vec::new(), model: Some(model.into()) });
        let (pins, retiring, freeing, lost) = Default::default();
        let unpinned_at = Mutex::new(Instant::now());
        Ok(Self {
            source,
            lane,
            footprint,
            pins,
            unpinned_at,
            retiring,
            freeing,
            lost,
            session_bytes,
            asked: AtomicU64::new(0),
            load_time: OnceLock::new(),
            loaded,
        })
    }

    /// Requests for it since it was loaded, those that failed included.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// All of it is there, so long after its load began.
    pub(super) fn has_arrived(&self, load_time: Duration) {
        // There is one load of it.
        let _ = self.load_time.set(load_time);
    }

    /// How long its load took; none while some of it is on its way.
    pub(super) fn load_time(&self) -> Option<Duration> {
        self.load_time.get().copied()
    }

    /// The sessions that runs take now.
    pub(super) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.lock().pool)
    }

    /// The same, and those they took before.
    pub(super) fn pools(&self) -> (Arc<Pool>, Vec<Arc<Pool>>) {
        let loaded = self.lock();
        (Arc::clone(&loaded.pool), loaded.former.clone())
    }

    /// Have runs take their sessions from `pool`. False if they do already.
    pub(super) fn switch_to(&self, pool: Arc<Pool>) -> bool {
        let mut loaded = self.lock();
        if Arc::ptr_eq(&loaded.pool, &pool) || loaded.model.is_none() {
            return false;
        }
        loaded.former.retain(|former| !Arc::ptr_eq(former, &pool));
        let before = std::mem::replace(&mut loaded.pool, pool);
        loaded.former.push(before);
        true
    }

    /// Let go of pools that runs took sessions from before, and that have none any more.
    pub(super) fn forget_empty_pools(&self) {
        self.lock().former.retain(|pool| pool.len() > 0);
    }

    /// What sessions are made of; an error once it is unloaded.
    pub(super) fn model(&self) -> Result<Arc<dyn Model>, InferenceError> {
        self.lock().model.clone().ok_or_else(shutting_down)
    }

    /// A session of `pool` that nobody uses, made if there is none. The lane bounds how many there are.
    pub(super) fn take_session(&self, pool: &Pool) -> Result<Pooled, InferenceError> {
        pool.take().map_or_else(|| pool.make(&*self.model()?), Ok)
    }

    pub(super) fn pins(&self) -> usize {
        self.pins.load(Ordering::SeqCst)
    }

    /// For how long nobody has pinned it; none if somebody does.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let unpinned_at = *self.unpinned_at.lock().unwrap_or_else(PoisonError::into_inner);
        (self.pins() == 0).then(|| unpinned_at.elapsed())
    }

    fn note_unpinned(&self) {
        *self.unpinned_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Have the last pin free it; says whether there is none, so that the caller has to.
    pub(super) fn retire(&self) -> bool {
        self.retiring.store(true, Ordering::SeqCst);
        self.pins() == 0
    }

    /// Claim the freeing; only the first to ask gets it.
    pub(super) fn claim_freeing(&self) -> bool {
        !self.freeing.swap(true, Ordering::SeqCst)
    }

    /// Whether it is on its way out already.
    pub(super) fn is_freeing(&self) -> bool {
        self.freeing.load(Ordering::SeqCst)
    }

    /// The device is lost, and the model with it.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Give up the device's memory. Blocks.
    pub(super) fn unload(&self) {
        let mut loaded = self.lock();
        let former = std::mem::take(&mut loaded.former);
        let pool = std::mem::replace(&mut loaded.pool, Arc::new(Pool::new(THREADS)));
        let model = loaded.model.take();
        drop(loaded);
        // The sessions before their weights.
        drop((pool, former));
        drop(model);
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
