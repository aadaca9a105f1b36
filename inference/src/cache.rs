//! Model cache of one device: loading, residency and eviction of models.
//!
//! The first acquire of a model loads it; concurrent acquires share that load. The model stays
//! resident while a [`Pin`] exists, and afterwards until
//! - an acquire of another model names it among its victims: the scheduler chooses the victims, and
//!   pinned models are never evicted;
//! - or [`ModelCache::unload`] is called: the model is then freed with its last pin, and an acquire
//!   in the meantime waits and loads it again.
//!
//! A device can be lost, with everything in its memory. Running and waiting requests then end with
//! [`InferenceError::DeviceLost`], and so does every acquire until the backend has recovered the
//! device. A pin of a lost model stays lost; callers must acquire the model again. The cache also
//! reloads the lost models in the background, after the loads that calls request.
//!
//! A model can run before all of its weights have arrived: see
//! [`Model::is_arriving`](crate::Model::is_arriving). It can be pinned as soon as its weights start
//! arriving; the load completes later.
//!
//! A model is identified by its [`ModelKey`]: a push under the id of a deleted model is a different
//! model, even while the old one is still pinned.
//! ```text
//!            acquire                loaded                unload, victim
//! (absent) ----------> Loading -----------------> Resident ------------> Unloading -----> (absent)
//!                         |                                        freed by the loader thread
//!                         +--- failed ---> (absent), and every waiting caller receives the error
//! ```

mod arrival;
mod load;
mod loss;
mod pool;
mod probe;
mod reload;
mod residency;
mod resident;
mod run;
mod setting;
pub use loss::Health;
pub use probe::Probe;
pub use resident::{FinishedLoad, Pin};
pub use run::PendingRun;
pub use setting::RunSetting;

use crate::backend::{Backend, ModelKey, ModelSource};
use crate::error::InferenceError;
use crate::footprint::{CombinedSize, Footprint};
use crate::profiles::Profiles;
use crate::threads::{DeviceThreads, Runs};
use parking_lot::Mutex;
use reload::Reloads;
use residency::Residency;
use resident::Resident;
use run::ModelRun;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot, watch};
use weir_device::{Arena, Device};
use weir_types::{ModelId, TenantId};

/// Limits of a device's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Memory that resident models may take.
    pub capacity_bytes: u64,
    /// Concurrent runs of all models; at least one.
    pub slots: usize,
    /// Runs that may wait for a run slot.
    pub run_queue_len_max: usize,
}

/// The models of one device. Dropping the cache ends its threads and all runs.
pub struct ModelCache {
    shared: Arc<CacheShared>,
    threads: DeviceThreads<ModelRun>,
}

/// A resident model, as the scheduler and the status see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentModel {
    /// Id of the model.
    pub id: ModelId,
    /// Memory that the model would take alone. Memory shared by several resident models counts for
    /// each of them.
    pub bytes: u64,
    /// Number of pins on the model.
    pub pins: usize,
    /// The load; `None` while weights are still arriving.
    pub load: Option<FinishedLoad>,
}

struct CacheShared {
    config: CacheConfig,
    backend: Arc<dyn Backend>,
    arena: Arena,
    runs: Runs<ModelRun>,
    profiles: Profiles,
    health: watch::Sender<Health>,
    /// Counts finished loads.
    loads: watch::Sender<u64>,
    /// Notified when the last pin of a model drops.
    unpinned: Notify,
    /// Memory that models may take, as last observed.
    capacity: watch::Sender<u64>,
    state: Mutex<CacheState>,
}

struct CacheState {
    entries: HashMap<ModelKey, CacheEntry>,
    residency: Residency,
    began: Instant,
    /// Counts acquires, to order models by their last use.
    clock: u64,
    lanes: u64,
    /// Lanes of tenants whose models take turns.
    turns: HashMap<TenantId, u64>,
    /// Why the device is lost, while it is.
    lost: Option<Arc<str>>,
    /// Models to reload after the recovery.
    reloads: Reloads,
}

enum CacheEntry {
    /// If `unloading` is not empty, the model is unloaded as soon as it is loaded.
    Loading {
        footprint: Footprint,
        waiting: Vec<oneshot::Sender<Result<Pin, InferenceError>>>,
        unloading: Vec<oneshot::Sender<()>>,
    },
    Resident {
        resident: Arc<Resident>,
        last_used: u64,
    },
    Unloading {
        resident: Arc<Resident>,
        waiting: Vec<oneshot::Sender<()>>,
    },
}

/// State of a model at an acquire.
enum CacheLookup {
    Pinned(Pin),
    Loading(oneshot::Receiver<Result<Pin, InferenceError>>),
    Unloading(oneshot::Receiver<()>),
}

impl ModelCache {
    /// Starts the device's threads, with no model loaded. Unloading models trims `arena`;
    /// `profiles` are those of the device's kind.
    pub fn start(
        config: CacheConfig,
        backend: Arc<dyn Backend>,
        arena: Arena,
        profiles: Profiles,
    ) -> std::io::Result<Self> {
        let slots = config.slots.max(1);
        let threads =
            DeviceThreads::start(&format!("weir-{}", backend.device()), slots, config.run_queue_len_max)?;
        let config = CacheConfig { slots, ..config };
        let runs = threads.runs().clone();
        let health = watch::Sender::new(Health::Up);
        let loads = watch::Sender::new(0);
        let capacity = watch::Sender::new(backend.available_bytes(config.capacity_bytes));
        let state = CacheState::new(backend.device()).into();
        let shared = Arc::new(CacheShared {
            config,
            backend,
            arena,
            runs,
            profiles,
            health,
            loads,
            unpinned: Notify::new(),
            capacity,
            state,
        });
        let told = Arc::downgrade(&shared);
        shared.backend.on_loss(Box::new(move |error| {
            if let Some(shared) = told.upgrade() {
                shared.note_loss(error);
            }
        }));
        Ok(Self { shared, threads })
    }

    /// Pins a model, and loads it first if necessary.
    ///
    /// To make room, the cache evicts unpinned models among `victims`, in order and only as many as
    /// needed. If the model would still not fit, the cache evicts none and returns
    /// [`InferenceError::NoRoom`]. If the model is resident or already loading, no victim is
    /// evicted. A load continues when its waiting callers give up. A failed load returns its error
    /// to all waiting callers; the next acquire tries again.
    pub async fn acquire(
        &self,
        source: &Arc<ModelSource>,
        victims: &[ModelId],
    ) -> Result<Pin, InferenceError> {
        loop {
            match CacheShared::find_or_load(&self.shared, source, victims)? {
                CacheLookup::Pinned(pin) => return Ok(pin),
                CacheLookup::Loading(answer) => {
                    let gone = || Err(InferenceError::Unavailable("the load was given up".into()));
                    return answer.await.unwrap_or_else(|_| gone());
                }
                // Whatever the outcome, the old model has been removed.
                CacheLookup::Unloading(gone) => _ = gone.await,
            }
        }
    }

    /// Pins a model if it is resident. Never waits.
    #[must_use]
    pub fn pin(&self, key: &ModelKey) -> Option<Pin> {
        let mut state = self.shared.state.lock();
        let now = state.tick();
        match state.entries.get_mut(key)? {
            CacheEntry::Resident { resident, last_used } => {
                *last_used = now;
                Some(Pin::new(resident, &self.shared, None))
            }
            CacheEntry::Loading { .. } | CacheEntry::Unloading { .. } => None,
        }
    }

    /// Unloads a model once its last pin drops; current runs finish. `None` if the model is not in
    /// memory. The future resolves when the memory is free; the unload happens even if the future
    /// is not awaited.
    pub fn unload(&self, key: &ModelKey) -> Option<impl Future<Output = ()> + Send + use<>> {
        let gone = self.shared.retire(key)?;
        Some(async move { _ = gone.await })
    }

    /// Resident models, the least recently used first.
    #[must_use]
    pub fn resident(&self) -> Vec<ResidentModel> {
        let state = self.shared.state.lock();
        let resident = state.entries.iter().filter_map(|(key, entry)| match entry {
            CacheEntry::Resident { resident, last_used } => {
                let model = ResidentModel {
                    id: key.id.clone(),
                    bytes: resident.footprint.total_bytes(),
                    pins: resident.pins(),
                    load: resident.load(),
                };
                Some((*last_used, model))
            }
            CacheEntry::Loading { .. } | CacheEntry::Unloading { .. } => None,
        });
        let mut resident: Vec<_> = resident.collect();
        drop(state);
        resident.sort_unstable_by_key(|(last_used, _)| *last_used);
        resident.into_iter().map(|(_, model)| model).collect()
    }

    /// Models that are not pinned, with the time since their last pin dropped.
    #[must_use]
    pub fn idle(&self) -> Vec<(ModelKey, Duration)> {
        let state = self.shared.state.lock();
        let idle = state.entries.iter().filter_map(|(key, entry)| match entry {
            CacheEntry::Resident { resident, .. } => Some((key.clone(), resident.idle_for()?)),
            CacheEntry::Loading { .. } | CacheEntry::Unloading { .. } => None,
        });
        idle.collect()
    }

    /// Whether a model is resident.
    #[must_use]
    pub fn is_resident(&self, key: &ModelKey) -> bool {
        matches!(self.shared.state.lock().entries.get(key), Some(CacheEntry::Resident { .. }))
    }

    /// Memory that models take, including models that are being loaded or unloaded. Shared memory
    /// counts once.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let state = self.shared.state.lock();
        state.entries.values().map(CacheEntry::footprint).collect::<CombinedSize>().bytes()
    }

    /// Bytes that each resident model is charged for now, sorted by model: parts that several models
    /// share are divided among them, and models with the same id are added up.
    #[must_use]
    pub fn charged_bytes(&self) -> BTreeMap<ModelId, u64> {
        let mut charged = BTreeMap::new();
        for (key, bytes) in self.shared.state.lock().residency.charged() {
            *charged.entry(key.id.clone()).or_default() += bytes;
        }
        charged
    }

    /// Brings the memory meters of the resident models up to date. Otherwise they are updated only
    /// when a model enters or leaves the memory.
    pub fn meter_memory(&self) {
        let mut state = self.shared.state.lock();
        let now_ns = state.now_ns();
        state.residency.settle(now_ns);
    }

    /// Memory that models may take now: less than configured while the device has less.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes()
    }

    /// Watches [`ModelCache::capacity_bytes`].
    #[must_use]
    pub fn capacity(&self) -> watch::Receiver<u64> {
        self.shared.capacity.subscribe()
    }

    /// Concurrent runs of all models.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.config.slots
    }

    /// Runs that wait for a run slot.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.threads.runs().queue_len()
    }

    /// The backend that runs the models.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// Measured costs of models on this kind of device.
    #[must_use]
    pub fn profiles(&self) -> &Profiles {
        &self.shared.profiles
    }

    /// Whether some load has not completed. Includes reloads after a device loss, and loads whose
    /// model already accepts runs.
    #[must_use]
    pub fn is_any_loading(&self) -> bool {
        let is_loading = |entry: &CacheEntry| match entry {
            CacheEntry::Loading { .. } => true,
            CacheEntry::Resident { resident, .. } => resident.load().is_none(),
            CacheEntry::Unloading { .. } => false,
        };
        self.shared.state.lock().entries.values().any(is_loading)
    }

    /// Whether one of these models has pins.
    #[must_use]
    pub fn is_any_pinned(&self, models: &[ModelId]) -> bool {
        let state = self.shared.state.lock();
        let mut entries = state.entries.iter().filter(|(key, _)| models.contains(&key.id));
        entries.any(|(_, entry)| entry.resident().is_some_and(|resident| resident.pins() > 0))
    }

    /// Completes when the last pin of a model drops after this call.
    pub fn unpinned(&self) -> Notified<'_> {
        self.shared.unpinned.notified()
    }

    /// Changes whenever a load ends, successfully or not. Includes reloads after a device loss.
    #[must_use]
    pub fn loads(&self) -> watch::Receiver<u64> {
        self.shared.loads.subscribe()
    }

    /// Watches whether the device is up.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }
}

impl CacheShared {
    /// Notifies watchers that a load has ended.
    fn load_is_over(&self) {
        self.note_capacity();
        self.loads.send_modify(|loads| *loads += 1);
    }

    fn capacity_bytes(&self) -> u64 {
        self.backend.available_bytes(self.config.capacity_bytes)
    }

    /// Notifies watchers of the capacity, which may have changed with a load or a run.
    fn note_capacity(&self) {
        let now_bytes = self.capacity_bytes();
        self.capacity.send_if_modified(|bytes| std::mem::replace(bytes, now_bytes) != now_bytes);
    }

    fn find_or_load(
        shared: &Arc<Self>,
        source: &Arc<ModelSource>,
        victims: &[ModelId],
    ) -> Result<CacheLookup, InferenceError> {
        let mut state = shared.state.lock();
        if let Some(why) = &state.lost {
            return Err(InferenceError::DeviceLost(why.clone()));
        }
        let now = state.tick();
        match state.entries.get_mut(&source.key) {
            Some(CacheEntry::Resident { resident, last_used }) => {
                *last_used = now;
                Ok(CacheLookup::Pinned(Pin::new(resident, shared, None)))
            }
            Some(CacheEntry::Loading { waiting, .. }) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                Ok(CacheLookup::Loading(receiver))
            }
            Some(CacheEntry::Unloading { waiting, .. }) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                Ok(CacheLookup::Unloading(receiver))
            }
            None => load::begin(shared, &mut state, source, victims).map(CacheLookup::Loading),
        }
    }

    /// Unloads a model when its last pin is dropped. The receiver is ready once the model is
    /// unloaded, whatever the cause.
    fn retire(self: &Arc<Self>, key: &ModelKey) -> Option<oneshot::Receiver<()>> {
        let (sender, gone) = oneshot::channel();
        let mut state = self.state.lock();
        state.reloads.forget(key);
        let entry = state.entries.get_mut(key)?;
        match entry {
            CacheEntry::Loading { unloading, .. } => unloading.push(sender),
            CacheEntry::Unloading { waiting, .. } => waiting.push(sender),
            CacheEntry::Resident { resident, .. } => {
                let resident = resident.clone();
                *entry = CacheEntry::Unloading { resident: resident.clone(), waiting: vec![sender] };
                if resident.retire() {
                    self.free(&resident);
                }
            }
        }
        Some(gone)
    }
}

impl CacheShared {
    /// Unloads this instance of a model, if it is still resident.
    fn retire_resident(self: &Arc<Self>, resident: &Arc<Resident>) -> Option<oneshot::Receiver<()>> {
        let key = &resident.source.key;
        let is_current =
            |entry: &CacheEntry| entry.resident().is_some_and(|there| Arc::ptr_eq(there, resident));
        let is_there = self.state.lock().entries.get(key).is_some_and(is_current);
        is_there.then(|| self.retire(key)).flatten()
    }
}

impl CacheState {
    fn new(device: Device) -> Self {
        Self {
            entries: HashMap::new(),
            residency: Residency::new(device),
            began: Instant::now(),
            clock: 0,
            lanes: 0,
            turns: HashMap::new(),
            lost: None,
            reloads: Reloads::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Starts charging for a model that entered the device's memory.
    fn has_come(&mut self, resident: &Resident) {
        let now_ns = self.now_ns();
        self.residency.enter(now_ns, &resident.source.key, &resident.footprint, &resident.source.meter);
    }

    /// Stops charging for a model that left the device's memory.
    fn has_gone(&mut self, key: &ModelKey) {
        let now_ns = self.now_ns();
        self.residency.leave(now_ns, key);
    }
}

impl CacheEntry {
    fn footprint(&self) -> &Footprint {
        match self {
            Self::Loading { footprint, .. } => footprint,
            Self::Resident { resident, .. } | Self::Unloading { resident, .. } => &resident.footprint,
        }
    }

    fn resident(&self) -> Option<&Arc<Resident>> {
        match self {
            Self::Resident { resident, .. } => Some(resident),
            Self::Loading { .. } | Self::Unloading { .. } => None,
        }
    }
}
