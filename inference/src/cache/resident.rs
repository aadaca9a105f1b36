//! One model in the device's memory, and the guard that keeps it there.

use super::Shared;
use super::run::Run;
use crate::backend::{Model, ModelKey, ModelSource, Session};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::request::RunRequest;
use crate::threads::{Lane, shutting_down};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_types::{ModelId, Signature};

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
    loaded: Mutex<Loaded>,
}

/// What takes up the device's memory. Fields drop in order: the sessions before their weights.
#[derive(Default)]
struct Loaded {
    idle: Vec<Box<dyn Session>>,
    model: Option<Arc<dyn Model>>,
}

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

    /// How long the load took that this pin had to wait for; none where the model was there already.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        self.load_time
    }

    /// Start a run. It is in line for the device when this returns; dropping the future withdraws or stops it.
    ///
    /// What is wrong with the request is found before it gets in line, and is the future's answer like any other error.
    pub fn run(&self, request: RunRequest) -> Run {
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
    /// A model that has just been loaded, with its first session.
    pub(super) fn new(
        source: Arc<ModelSource>,
        lane: Lane,
        model: Box<dyn Model>,
        first: Box<dyn Session>,
    ) -> Self {
        let footprint = model.footprint();
        let loaded = Mutex::new(Loaded { idle: vec![first], model: Some(model.into()) });
        let (pins, retiring, freeing, lost) = Default::default();
        let unpinned_at = Mutex::new(Instant::now());
        Self { source, lane, footprint, pins, unpinned_at, retiring, freeing, lost, loaded }
    }

    /// A session that nobody uses, made if there is none. The lane bounds how many there are.
    pub(super) fn take_session(&self) -> Result<Box<dyn Session>, InferenceError> {
        let mut loaded = self.lock();
        if let Some(session) = loaded.idle.pop() {
            return Ok(session);
        }
        let model = loaded.model.clone().ok_or_else(shutting_down)?;
        drop(loaded);
        model.session()
    }

    /// Bring a session back for the next run.
    pub(super) fn put_session(&self, session: Box<dyn Session>) {
        self.lock().idle.push(session);
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
        let loaded = std::mem::take(&mut *self.lock());
        drop(loaded);
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
