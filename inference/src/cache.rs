//! Which models are in a device's memory, and how they get in and out.
//!
//! A model comes in when someone acquires it: once, however many ask. It stays while anyone holds a [`Pin`], and after that until
//! - an acquire of another model names it among its victims: which to name is the scheduler's decision, and what is pinned stays;
//! - [`ModelCache::unload`] is called: it then goes with its last pin, and who asks for it meanwhile waits and has it loaded anew.
//!
//! A device may be lost, with everything in its memory: what runs or waits ends with [`InferenceError::DeviceLost`], and so does whoever asks
//! for a model until the backend has the device again. What was pinned then stays lost: it is to be acquired anew. The models themselves are loaded again by
//! and by, behind what calls ask for.
//!
//! A model may be run before all of it is there: [`Model::is_arriving`](crate::Model::is_arriving). For who pins it, it is there; its load is over later.
//!
//! A model goes by its [`ModelKey`]: what is pushed under the id of a deleted model is another model, whoever still pins the old one.
//!
//! ```text
//!            acquire                loaded                unload, victim
//! (absent) ----------> Loading -----------------> Resident ------------> Unloading -----> (absent)
//!                         |                                        freed by the loader thread
//!                         +--- failed ---> (absent), and everyone who waits is told why
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
pub use resident::Pin;
pub use run::Run;
pub use setting::RunSetting;

use crate::backend::{Backend, ModelKey, ModelSource};
use crate::error::InferenceError;
use crate::footprint::{Footprint, Together};
use crate::profiles::Profiles;
use crate::threads::{DeviceThreads, Runs};
use reload::Reloads;
use residency::Residency;
use resident::Resident;
use run::ModelRun;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use weir_device::{Arena, Device};
use weir_types::{ModelId, TenantId};

/// How much a device holds and does at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Memory that resident models may take.
    pub capacity_bytes: u64,
    /// Runs at once, over all models; at least one.
    pub slots: usize,
    /// Runs that may wait for a slot.
    pub run_queue_len_max: usize,
}

/// The models of one device. Ends its threads, and with them every run, when it drops.
pub struct ModelCache {
    shared: Arc<Shared>,
    threads: DeviceThreads<ModelRun>,
}

/// One model in the device's memory, as the scheduler and the status see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentModel {
    /// Which model.
    pub id: ModelId,
    /// The memory it would take by itself; what it has in common with others that are there is counted for each of them.
    pub bytes: u64,
    /// How many pins keep it there.
    pub pins: usize,
    /// How long its load took; none while some of it is on its way.
    pub load_time: Option<Duration>,
}

struct Shared {
    config: CacheConfig,
    backend: Arc<dyn Backend>,
    arena: Arena,
    runs: Runs<ModelRun>,
    profiles: Profiles,
    health: watch::Sender<Health>,
    /// Counts loads that are over.
    loads: watch::Sender<u64>,
    /// Memory that models may take, as it was seen last.
    capacity: watch::Sender<u64>,
    state: Mutex<State>,
}

struct State {
    entries: HashMap<ModelKey, Entry>,
    residency: Residency,
    began: Instant,
    /// Counts acquisitions, to tell which model was used last.
    clock: u64,
    lanes: u64,
    /// The lanes of tenants some of whose models take turns.
    turns: HashMap<TenantId, u64>,
    /// Why the device is lost, while it is.
    lost: Option<Arc<str>>,
    /// What it is to have again after that.
    reloads: Reloads,
}

enum Entry {
    /// Once there, it goes at once if `unloading` is not empty.
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

/// What an acquire found.
enum Found {
    Pinned(Pin),
    Loading(oneshot::Receiver<Result<Pin, InferenceError>>),
    Unloading(oneshot::Receiver<()>),
}

impl ModelCache {
    /// Start the device's threads, with no model loaded. The arena is trimmed when models are unloaded; `profiles` are those of its kind of
    /// device.
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
        let (health, loads) = (watch::Sender::new(Health::Up), watch::Sender::new(0));
        let capacity = watch::Sender::new(backend.available_bytes(config.capacity_bytes));
        let state = State::new(backend.device()).into();
        let shared =
            Arc::new(Shared { config, backend, arena, runs, profiles, health, loads, capacity, state });
        let told = Arc::downgrade(&shared);
        shared.backend.on_loss(Box::new(move |error| {
            if let Some(shared) = told.upgrade() {
                shared.note_loss(error);
            }
        }));
        Ok(Self { shared, threads })
    }

    /// Pin a model, loading it first if it is not there.
    ///
    /// To make room, those of `victims` that nobody pins are unloaded, the first first and no more than it takes, if the model then fits; none
    /// of them if it does not, which is [`InferenceError::NoRoom`]. Where the model is there, or being loaded already, no victim is touched. A load goes on when
    /// those who wait for it give up; one that fails is told to all who wait, and tried anew by the next acquire.
    pub async fn acquire(
        &self,
        source: &Arc<ModelSource>,
        victims: &[ModelId],
    ) -> Result<Pin, InferenceError> {
        loop {
            match Shared::find_or_load(&self.shared, source, victims)? {
                Found::Pinned(pin) => return Ok(pin),
                Found::Loading(answer) => {
                    let gone = || Err(InferenceError::Unavailable("the load was given up".into()));
                    return answer.await.unwrap_or_else(|_| gone());
                }
                // However it ended, the model is not there any more.
                Found::Unloading(gone) => _ = gone.await,
            }
        }
    }

    /// Pin a model if it is there. Never waits.
    #[must_use]
    pub fn pin(&self, key: &ModelKey) -> Option<Pin> {
        let mut state = self.shared.lock();
        let now = state.tick();
        match state.entries.get_mut(key)? {
            Entry::Resident { resident, last_used } => {
                *last_used = now;
                Some(Pin::new(resident, &self.shared, None))
            }
            Entry::Loading { .. } | Entry::Unloading { .. } => None,
        }
    }

    /// Take a model out of the device's memory, once nobody pins it any more; what runs, finishes. None if it is not there. The future is
    /// ready once its memory is free; nothing depends on its being awaited.
    pub fn unload(&self, key: &ModelKey) -> Option<impl Future<Output = ()> + Send + use<>> {
        let gone = self.shared.retire(key)?;
        Some(async move { _ = gone.await })
    }

    /// The models in the device's memory, the one used longest ago first.
    #[must_use]
    pub fn resident(&self) -> Vec<ResidentModel> {
        let state = self.shared.lock();
        let resident = state.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Resident { resident, last_used } => {
                let model = ResidentModel {
                    id: key.id.clone(),
                    bytes: resident.footprint.total_bytes(),
                    pins: resident.pins(),
                    load_time: resident.load_time(),
                };
                Some((*last_used, model))
            }
            Entry::Loading { .. } | Entry::Unloading { .. } => None,
        });
        let mut resident: Vec<_> = resident.collect();
        drop(state);
        resident.sort_unstable_by_key(|(last_used, _)| *last_used);
        resident.into_iter().map(|(_, model)| model).collect()
    }

    /// The models that nobody has pinned for so long.
    #[must_use]
    pub fn idle(&self, at_least: Duration) -> Vec<ModelKey> {
        let state = self.shared.lock();
        let resident = state.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Resident { resident, .. } => Some((key, resident)),
            Entry::Loading { .. } | Entry::Unloading { .. } => None,
        });
        let idle = |resident: &Resident| resident.idle_for().is_some_and(|idle| idle >= at_least);
        resident.filter(|(_, resident)| idle(resident)).map(|(key, _)| key.clone()).collect()
    }

    /// Whether a model is in the device's memory.
    #[must_use]
    pub fn is_resident(&self, key: &ModelKey) -> bool {
        matches!(self.shared.lock().entries.get(key), Some(Entry::Resident { .. }))
    }

    /// Memory that models take, those on their way in and out included. What several have in common counts once.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let state = self.shared.lock();
        state.entries.values().map(Entry::footprint).collect::<Together>().bytes()
    }

    /// Have the meters of the models in the device's memory count the time there up to now. They do by themselves only when one comes or goes.
    pub fn meter_memory(&self) {
        let mut state = self.shared.lock();
        let now_ns = state.now_ns();
        state.residency.settle(now_ns);
    }

    /// Memory that models may take now: less than the settings say while the device has less.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes()
    }

    /// The same, now and from now on.
    #[must_use]
    pub fn capacity(&self) -> watch::Receiver<u64> {
        self.shared.capacity.subscribe()
    }

    /// Runs at once, over all models.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.config.slots
    }

    /// Runs that wait for a slot.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.threads.runs().queue_len()
    }

    /// What runs the models.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// What models have been measured to cost on this kind of device.
    #[must_use]
    pub fn profiles(&self) -> &Profiles {
        &self.shared.profiles
    }

    /// Whether the load of some model is not over: for a call or since the device is there again, and whether or not its runs may begin.
    #[must_use]
    pub fn is_any_loading(&self) -> bool {
        let is_loading = |entry: &Entry| match entry {
            Entry::Loading { .. } => true,
            Entry::Resident { resident, .. } => resident.load_time().is_none(),
            Entry::Unloading { .. } => false,
        };
        self.shared.lock().entries.values().any(is_loading)
    }

    /// Changes whenever the load of a model is over, well or not, for a call or since the device is there again.
    #[must_use]
    pub fn loads(&self) -> watch::Receiver<u64> {
        self.shared.loads.subscribe()
    }

    /// Whether the device is there, now and from now on.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }
}

impl Shared {
    /// Tell who watches that the load of a model is over.
    fn load_is_over(&self) {
        self.note_capacity();
        self.loads.send_modify(|loads| *loads += 1);
    }

    fn capacity_bytes(&self) -> u64 {
        self.backend.available_bytes(self.config.capacity_bytes)
    }

    /// A load or a run is over, by which the capacity may have changed: tell who watches it.
    fn note_capacity(&self) {
        let now_bytes = self.capacity_bytes();
        self.capacity.send_if_modified(|bytes| std::mem::replace(bytes, now_bytes) != now_bytes);
    }

    fn find_or_load(
        shared: &Arc<Self>,
        source: &Arc<ModelSource>,
        victims: &[ModelId],
    ) -> Result<Found, InferenceError> {
        let mut state = shared.lock();
        if let Some(why) = &state.lost {
            return Err(InferenceError::DeviceLost(Arc::clone(why)));
        }
        let now = state.tick();
        match state.entries.get_mut(&source.key) {
            Some(Entry::Resident { resident, last_used }) => {
                *last_used = now;
                Ok(Found::Pinned(Pin::new(resident, shared, None)))
            }
            Some(Entry::Loading { waiting, .. }) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                Ok(Found::Loading(receiver))
            }
            Some(Entry::Unloading { waiting, .. }) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                Ok(Found::Unloading(receiver))
            }
            None => load::begin(shared, &mut state, source, victims).map(Found::Loading),
        }
    }

    /// Have a model go with its last pin. What is returned is ready once it is gone, one way or another.
    fn retire(self: &Arc<Self>, key: &ModelKey) -> Option<oneshot::Receiver<()>> {
        let (sender, gone) = oneshot::channel();
        let mut state = self.lock();
        state.reloads.forget(key);
        let entry = state.entries.get_mut(key)?;
        match entry {
            Entry::Loading { unloading, .. } => unloading.push(sender),
            Entry::Unloading { waiting, .. } => waiting.push(sender),
            Entry::Resident { resident, .. } => {
                let resident = Arc::clone(resident);
                *entry = Entry::Unloading { resident: Arc::clone(&resident), waiting: vec![sender] };
                if resident.retire() {
                    self.free(&resident);
                }
            }
        }
        Some(gone)
    }
}

impl Shared {
    /// The same for this one of the model's stays, if it is not over.
    fn retire_resident(self: &Arc<Self>, resident: &Arc<Resident>) -> Option<oneshot::Receiver<()>> {
        let key = &resident.source.key;
        let is_current = |entry: &Entry| entry.resident().is_some_and(|there| Arc::ptr_eq(there, resident));
        let is_there = self.lock().entries.get(key).is_some_and(is_current);
        is_there.then(|| self.retire(key)).flatten()
    }
}

impl State {
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

    /// A model is in the device's memory from now on.
    fn has_come(&mut self, resident: &Resident) {
        let now_ns = self.now_ns();
        self.residency.enter(now_ns, &resident.source.key, &resident.footprint, &resident.source.meter);
    }

    /// A model is not there any more.
    fn has_gone(&mut self, key: &ModelKey) {
        let now_ns = self.now_ns();
        self.residency.leave(now_ns, key);
    }
}

impl Entry {
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
