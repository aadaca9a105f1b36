//! A model in the device's memory, and the pin that keeps it there.

use super::CacheShared;
use super::pool::{Pool, Pooled};
use super::run::PendingRun;
use crate::backend::{Backend, Model, ModelKey, ModelSource};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::meter::Meter;
use crate::request::RunRequest;
use crate::staging::FileBytes;
use crate::threads::{Lane, shutting_down};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_types::{Measured, ModelId, Signature};

/// Keeps a model in the device's memory until it drops, and runs the model. Cheap to clone.
pub struct Pin {
    resident: Arc<Resident>,
    shared: Arc<CacheShared>,
    load_time: Option<Duration>,
}

/// A model in the device's memory. Owned by the cache's entry and by its pins.
pub(super) struct Resident {
    pub(super) source: Arc<ModelSource>,
    pub(super) lane: Lane,
    pub(super) footprint: Footprint,
    /// Raised from zero only under the cache's lock, where eviction reads it.
    pins: AtomicUsize,
    /// Time when the last pin dropped.
    unpinned_at: Mutex<Instant>,
    /// Set when the model must be freed once it has no pins.
    retiring: AtomicBool,
    /// Set by the thread that queues the model to be freed.
    freeing: AtomicBool,
    /// Set when the model is lost with its device.
    lost: AtomicBool,
    /// Device memory of one more session.
    pub(super) session_bytes: u64,
    /// Requests since the load.
    asked: AtomicU64,
    /// Where the load reads the weights from.
    pub(super) origin: Origin,
    /// Set when the load completes.
    load: OnceLock<FinishedLoad>,
    loaded: Mutex<ResidentMemory>,
}

/// A load that has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedLoad {
    /// Duration of the load.
    pub time: Duration,
    /// Where the weights came from.
    pub from: FileBytes,
}

/// The storage tiers of a model's weights just before its load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    files: FileBytes,
    /// Bytes that earlier loads on the device copied from the pinned cache.
    pinned_hit_bytes: u64,
}

impl Origin {
    /// Looks up the files that a load of the model would read. Blocks.
    pub(super) fn look(backend: &dyn Backend, source: &ModelSource) -> Self {
        let files = FileBytes::look(backend.form(&source.prepared), &source.blobs);
        Self { files, pinned_hit_bytes: pinned_hit_bytes(backend) }
    }

    /// Where the weights came from. Called at the end of the load, before the next load on the
    /// device begins.
    pub(super) fn after_load(&self, backend: &dyn Backend) -> FileBytes {
        let mut from = self.files;
        from.add_pinned(pinned_hit_bytes(backend).saturating_sub(self.pinned_hit_bytes));
        from
    }
}

fn pinned_hit_bytes(backend: &dyn Backend) -> u64 {
    backend.pinned_cache().map_or(0, |figures| figures.hit_bytes)
}

/// The objects that hold device memory. Fields drop in declaration order, so the sessions drop
/// before the weights that they use.
struct ResidentMemory {
    /// The sessions that runs use.
    pool: Arc<Pool>,
    /// Pools that runs used earlier, until their sessions are retired.
    former: Vec<Arc<Pool>>,
    model: Option<Arc<dyn Model>>,
}

/// Default threads of a run.
const THREADS: u32 = 1;

impl Pin {
    /// The caller holds the cache's lock, or another pin of the same model.
    pub(super) fn new(
        resident: &Arc<Resident>,
        shared: &Arc<CacheShared>,
        load_time: Option<Duration>,
    ) -> Self {
        resident.pins.fetch_add(1, Ordering::AcqRel);
        Self { resident: resident.clone(), shared: shared.clone(), load_time }
    }

    /// Id of the pinned model.
    #[must_use]
    pub fn id(&self) -> &ModelId {
        self.resident.source.id()
    }

    /// Key of the pinned model.
    #[must_use]
    pub fn key(&self) -> &ModelKey {
        &self.resident.source.key
    }

    /// Inputs and outputs of the model.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.resident.source.prepared.signature
    }

    /// The meter of the pinned model, which counts runs whose request has no meter.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.resident.source.meter
    }

    /// Whether the model was lost with its device. The model is not reloaded before all pins of the
    /// lost instance have dropped.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.resident.is_lost()
    }

    /// Time that this pin waited for a load, until runs could begin; `None` if the model was
    /// already resident.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        self.load_time
    }

    /// Name of the storage tier that most of the weights were loaded from, as in profiles.
    #[must_use]
    pub fn load_tier(&self) -> &'static str {
        self.resident.load().map_or(self.resident.origin.files, |load| load.from).most()
    }

    /// Device memory of one more session.
    #[must_use]
    pub fn session_bytes(&self) -> u64 {
        self.resident.session_bytes
    }

    /// Stores the measurements of the model in several configurations, replacing earlier ones.
    pub fn set_measured(&self, measured: Vec<Measured>) {
        self.shared.profiles.set_measured(self.key(), measured);
    }

    /// Starts a run. The run is queued when this function returns; dropping the future withdraws or
    /// stops it.
    ///
    /// An invalid request is detected before it is queued; its error is returned by the future,
    /// like all other errors.
    pub fn run(&self, request: RunRequest) -> PendingRun {
        self.resident.asked.fetch_add(1, Ordering::Relaxed);
        PendingRun::start(self.clone(), request)
    }

    pub(super) fn resident(&self) -> &Resident {
        &self.resident
    }

    pub(super) fn shared(&self) -> &Arc<CacheShared> {
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
        // This code decrements `pins` and then reads `retiring`; `Resident::retire` writes
        // `retiring` and then reads `pins`. At least one of them therefore sees both changes.
        if self.resident.pins.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        if self.resident.retiring.load(Ordering::SeqCst) {
            self.shared.free(&self.resident);
        }
        self.shared.unpinned.notify_waiters();
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({})", self.id())
    }
}

impl Resident {
    /// Creates a model that has just been loaded, with its first session, so that the first run
    /// does not wait for one. Blocks.
    pub(super) fn new(
        source: Arc<ModelSource>,
        lane: Lane,
        origin: Origin,
        model: Box<dyn Model>,
    ) -> Result<Self, InferenceError> {
        let footprint = model.footprint();
        let session_bytes = model.session_bytes();
        let pool = Arc::new(Pool::new(THREADS));
        pool.put(pool.make(&*model)?);
        let loaded = Mutex::new(ResidentMemory { pool, former: Vec::new(), model: Some(model.into()) });
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
            origin,
            load: OnceLock::new(),
            loaded,
        })
    }

    /// Requests since the load, including failed requests.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Records that all weights have arrived.
    pub(super) fn has_arrived(&self, load: FinishedLoad) {
        // Set once, because each instance is loaded once.
        let _ = self.load.set(load);
    }

    /// The load; `None` while weights are still arriving.
    pub(super) fn load(&self) -> Option<FinishedLoad> {
        self.load.get().copied()
    }

    /// The sessions that runs use now.
    pub(super) fn pool(&self) -> Arc<Pool> {
        self.loaded.lock().pool.clone()
    }

    /// The current pool, and the pools that runs used earlier.
    pub(super) fn pools(&self) -> (Arc<Pool>, Vec<Arc<Pool>>) {
        let loaded = self.loaded.lock();
        (loaded.pool.clone(), loaded.former.clone())
    }

    /// Makes runs use the sessions of `pool`. Returns `false` if they already do, or if the model
    /// is unloaded.
    pub(super) fn switch_to(&self, pool: Arc<Pool>) -> bool {
        let mut loaded = self.loaded.lock();
        if Arc::ptr_eq(&loaded.pool, &pool) || loaded.model.is_none() {
            return false;
        }
        loaded.former.retain(|former| !Arc::ptr_eq(former, &pool));
        let before = std::mem::replace(&mut loaded.pool, pool);
        loaded.former.push(before);
        true
    }

    /// Drops earlier pools that have no sessions left.
    pub(super) fn forget_empty_pools(&self) {
        self.loaded.lock().former.retain(|pool| pool.len() > 0);
    }

    /// The model that sessions are created from; an error after the unload.
    pub(super) fn model(&self) -> Result<Arc<dyn Model>, InferenceError> {
        self.loaded.lock().model.clone().ok_or_else(shutting_down)
    }

    /// An idle session of `pool`, or a new one. The lane limits the number of sessions.
    pub(super) fn take_session(&self, pool: &Pool) -> Result<Pooled, InferenceError> {
        pool.take().map_or_else(|| pool.make(&*self.model()?), Ok)
    }

    pub(super) fn pins(&self) -> usize {
        self.pins.load(Ordering::SeqCst)
    }

    /// Time since the last pin dropped; `None` while the model is pinned.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let unpinned_at = *self.unpinned_at.lock();
        (self.pins() == 0).then(|| unpinned_at.elapsed())
    }

    fn note_unpinned(&self) {
        *self.unpinned_at.lock() = Instant::now();
    }

    /// Lets the last pin free the model. Returns whether there is no pin, so that the caller must
    /// free it.
    pub(super) fn retire(&self) -> bool {
        self.retiring.store(true, Ordering::SeqCst);
        self.pins() == 0
    }

    /// Claims the freeing; only the first caller succeeds.
    pub(super) fn claim_freeing(&self) -> bool {
        !self.freeing.swap(true, Ordering::SeqCst)
    }

    /// Whether the model is already being freed.
    pub(super) fn is_freeing(&self) -> bool {
        self.freeing.load(Ordering::SeqCst)
    }

    /// Marks the model as lost with its device.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Frees the device's memory. Blocks.
    pub(super) fn unload(&self) {
        let mut loaded = self.loaded.lock();
        let former = std::mem::take(&mut loaded.former);
        let pool = std::mem::replace(&mut loaded.pool, Arc::new(Pool::new(THREADS)));
        let model = loaded.model.take();
        drop(loaded);
        // The sessions before their weights.
        drop((pool, former));
        drop(model);
    }
}
