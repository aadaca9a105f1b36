//! The registry of pushed models: durable in the datastore and the blob folder, loaded into device
//! memory when opened.
//!
//! Keys are `models/{tenant}/{name}/versions/{version}`, and `models/{tenant}/{name}/head` for a
//! model that has or had a canary or an alias. A version is immutable. Its files are the original upload, the
//! optimised graph and the weights. Each file is named by its hash and stored once, even if many
//! models share it. The files are durable before the key is written. A model whose record or files
//! are damaged is skipped and reported; the node serves the other models, and pushing the model
//! again repairs it. In a cluster, every node follows pushes and deletions on other nodes, and
//! fetches the files before the first load if there is room, else during the first load.

mod alias;
mod autosize;
mod canary;
mod change;
mod choices;
mod cold_starts;
mod compatibility;
mod config;
mod error;
mod follow;
pub(crate) mod head;
mod idle;
mod index;
mod loaded;
mod pinned;
mod pinning;
mod placing;
mod prefetch;
mod profiles;
mod reading;
pub(crate) mod record;
mod required;
mod sharing;
mod staging;
mod store;
#[cfg(test)]
mod tests;
mod trial;

pub use autosize::autosize;
pub use canary::{ModelCanary, ModelShadow};
pub use change::PushRequest;
pub use choices::ModelChoices;
pub use config::{BackendKind, Isolation, ModelsConfig};
pub use error::ModelsError;
pub use head::ModelRoles;
pub use idle::{KeepAlive, let_idle_go};
pub use loaded::{LoadedModel, ModelLoadError};
pub use pinned::{ModelPin, RanOn};
pub use prefetch::prefetch_models;
pub use profiles::keep_profiles;
pub use required::load_required;
pub use staging::watch_staging;
pub use store::ModelPushError;
pub use trial::{ModelTrial, call_code};

use crate::canary::ShadowSlot;
use crate::devices::{NodeDevice, NodeDevices};
use crate::response_cache::Scope;
use cold_starts::LoadedDevices;
use index::{DamagedModel, KnownModels};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use placing::Refusals;
use prefetch::PrefetchQueue;
use record::ModelRecord;
use sharing::SharedModelParts;
use staging::StagingWatch;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use store::ModelStore;
use tokio::sync::Semaphore;
use weir_datastore::{Datastore, Revision};
use weir_inference::{Content, ModelKey, ModelSource};
use weir_scheduler::DeviceKind;
use weir_storage::blobs::Blobs;
use weir_storage::{Changes, Heard};
use weir_telemetry::usage::ModelMeters;
use weir_telemetry::{Metrics, Served};
use weir_types::api::ModelVersion;
use weir_types::{ContentHash, ModelId, Name, Profile, RunningMean, TenantId, Version};

/// The limit of versions per model name.
const VERSIONS_MAX: usize = 1_000;

/// One version of a model, as loaded from its record.
pub struct ModelEntry {
    /// The datastore's record of the version.
    pub record: ModelRecord,
    /// The prepared model, as devices load it.
    pub source: Arc<ModelSource>,
    /// The statistics of its inferences.
    pub served: Served,
    /// The meters that count device usage of the model.
    pub meters: ModelMeters,
    /// The platforms that failed to load the model.
    pub refusals: Refusals,
    /// The devices that have loaded the model.
    pub loaded_devices: LoadedDevices,
    /// The weights that the model shares with other models of its tenant.
    pub shared: Arc<SharedModelParts>,
    /// The device memory of the tenant's worker process, if the model runs in one. All models of
    /// the tenant in that worker share this memory.
    pub worker_bytes: u64,
    /// The items that one run may take; 1 if requests are not batched.
    pub batch_items_max: u32,
    /// The response cache of the model's inferences; unset until the first use.
    pub answers: OnceLock<Arc<Scope>>,
    /// Counts the runs of all versions of the model while it has a canary.
    pub trial: Arc<ModelTrial>,
    /// Chooses the inferences of the model to copy while it has a shadow.
    pub shadow: Arc<ShadowSlot>,
}

/// The expected load and run times of an inference, where measured.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The mean load time on the slowest kind of device, from the slowest source; `None` if no load
    /// was measured.
    pub load_time_ns: Option<u64>,
    /// Run times by kind of device.
    pub run_times_ns: Vec<(DeviceKind, u64)>,
}

/// The models of all tenants.
pub struct Models {
    datastore: Arc<dyn Datastore>,
    store: ModelStore,
    devices: NodeDevices,
    metrics: Arc<Metrics>,
    known: RwLock<KnownModels>,
    staging: Arc<StagingWatch>,
    /// The models to fetch ahead of their first use; unset if the node fetches none.
    prefetching: OnceLock<Arc<PrefetchQueue>>,
    /// Numbers the models that guests load, so that their keys differ.
    loads: AtomicU64,
    /// The number of models with a canary or an alias.
    with_choices: AtomicUsize,
    changes: Changes,
    /// Serialises changes.
    turn: Arc<Semaphore>,
    /// The revision of the datastore that memory reflects.
    heard: Heard,
}

impl Models {
    /// Reads all pushed models and removes unreferenced files. Also returns the revision that was
    /// read.
    pub async fn open(
        datastore: Arc<dyn Datastore>,
        blobs: Blobs,
        devices: NodeDevices,
        metrics: Arc<Metrics>,
        changes: Changes,
    ) -> Result<(Arc<Self>, Revision), ModelsError> {
        let models = Self {
            datastore,
            store: ModelStore::new(blobs),
            devices,
            metrics,
            known: RwLock::default(),
            staging: Arc::default(),
            prefetching: OnceLock::new(),
            loads: AtomicU64::new(0),
            with_choices: AtomicUsize::new(0),
            changes,
            turn: Arc::new(Semaphore::new(1)),
            heard: Heard::default(),
        };
        let revision = models.read_all().await?;
        models.sweep().await?;
        models.restore_profiles().await?;
        Ok((Arc::new(models), revision))
    }

    /// The requested version; without one, the active version.
    pub fn get(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        self.read_known().get(tenant, name, version)
    }

    /// The numbers of a model's versions.
    pub fn versions(&self, tenant: &TenantId, name: &Name) -> Vec<Version> {
        let known = self.read_known();
        let versions = known.versions(tenant, name);
        versions.map(|versions| versions.entries().keys().copied().collect()).unwrap_or_default()
    }

    /// Like [`get`](Self::get), for one kind of content: an entry of another kind counts as
    /// missing.
    pub fn get_of(
        &self,
        content: Content,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let missing = || match content {
            Content::Network => ModelsError::NoModel(name.clone()),
            Content::KernelGraph => ModelsError::NoKernelGraph(name.clone()),
        };
        match self.get(tenant, name, version) {
            Ok(entry) if entry.content() == content => Ok(entry),
            Ok(_) | Err(ModelsError::NoModel(_)) => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// The active version of every model of `tenant`.
    pub fn list(&self, tenant: &TenantId) -> Vec<Arc<ModelEntry>> {
        let known = self.read_known();
        let models = known.tenants.get(tenant).into_iter().flat_map(BTreeMap::values);
        models.filter_map(|versions| versions.active().cloned()).collect()
    }

    /// Total size of the pushed files of all versions of the tenant's models.
    pub fn stored_bytes(&self, tenant: &TenantId) -> u64 {
        let known = self.read_known();
        let models = known.tenants.get(tenant).into_iter().flat_map(BTreeMap::values);
        models.flat_map(|versions| versions.entries().values()).map(|entry| entry.record.model_bytes).sum()
    }

    /// Describes `entry` as the API returns it.
    pub fn describe(&self, entry: &ModelEntry) -> ModelVersion {
        let ModelEntry { record, source, .. } = entry;
        ModelVersion {
            tenant: source.id().tenant.clone(),
            name: source.id().name.clone(),
            version: record.version,
            digest: record.digest,
            model_bytes: record.model_bytes,
            weight_bytes: source.prepared.weight_bytes,
            pushed_at_ms: record.pushed_at_ms,
            signature: source.prepared.signature.clone(),
            manifest: record.manifest.clone(),
            resident: self.devices.iter().any(|device| device.cache.is_resident(&source.key)),
            profile: self.profile(entry),
            devices: self.on_devices(entry),
        }
    }

    /// The measured costs on the first of the node's devices that has run the model.
    fn profile(&self, entry: &ModelEntry) -> Profile {
        let profiles = self.devices.iter().map(|device| device.cache.profiles().get(&entry.source.key));
        profiles.into_iter().find(|profile| *profile != Profile::default()).unwrap_or_default()
    }

    /// The devices that models run on.
    pub fn devices(&self) -> &NodeDevices {
        &self.devices
    }

    /// The models of `tenant` that could not be read, with the reason.
    pub fn damaged(&self, tenant: &TenantId) -> Vec<String> {
        let damaged = self.damaged_versions(tenant).into_iter();
        damaged.map(|(id, why)| format!("model {}:{}: {why}", id.name, id.version)).collect()
    }

    /// The versions of `tenant` that could not be read, with the reason.
    pub fn damaged_versions(&self, tenant: &TenantId) -> Vec<(ModelId, String)> {
        let known = self.read_known();
        let own = known.damaged.iter().filter(|(id, _)| id.tenant == *tenant);
        own.map(|(id, DamagedModel { why, .. })| (id.clone(), why.clone())).collect()
    }

    /// The devices that can run a model, by ordinal.
    pub fn devices_of(&self, entry: &ModelEntry) -> Vec<&NodeDevice> {
        let runs_on = entry.runs_on();
        let runs = |device: &&Arc<NodeDevice>| runs_on.contains(device.platform);
        self.devices.iter().filter(runs).map(|device| &**device).collect()
    }

    /// The expected load and run times of a stand-alone inference, from measurements.
    pub fn expected(&self, entry: &ModelEntry, batch: u32) -> Expected {
        let profiles = self.devices.profiles();
        let known = profiles.iter().map(|(kind, profiles)| (kind, profiles.get(&entry.source.key)));
        let known: Vec<_> = known.collect();
        let run = |profile: &Profile| {
            let larger = profile.run_time_ns.range(batch..).next();
            larger.or_else(|| profile.run_time_ns.last_key_value()).map(|(_, mean)| mean.rounded())
        };
        let runs = known.iter().filter_map(|(kind, profile)| Some(((&***kind).into(), run(profile)?)));
        let slowest = |a: &RunningMean, b: &RunningMean| a.mean.total_cmp(&b.mean);
        let loads = known.iter().flat_map(|(_, profile)| profile.load_time_ns.values().copied());
        let load_time_ns = loads.max_by(slowest).map(RunningMean::rounded);
        Expected { load_time_ns, run_times_ns: runs.collect() }
    }

    /// The revision of the datastore that memory reflects.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// The blobs with the models' files.
    pub fn blobs(&self) -> &Blobs {
        self.store.blobs()
    }

    /// Whether `key` is still the current push of its model version.
    fn is_current(&self, key: &ModelKey) -> bool {
        self.key_of(&key.id).is_some_and(|known| known == *key)
    }

    /// The key of the known push of a version.
    fn key_of(&self, ModelId { tenant, name, version }: &ModelId) -> Option<ModelKey> {
        let known = self.read_known();
        Some(known.versions(tenant, name)?.entries().get(version)?.source.key.clone())
    }

    /// The revision at which the known push of a version was written.
    fn revision_of(&self, id: &ModelId) -> Option<Revision> {
        self.key_of(id).map(|key| Revision(key.generation))
    }

    fn ids_known(&self) -> Vec<ModelId> {
        let known = self.read_known();
        known.entries().map(|entry| entry.source.id().clone()).chain(known.damaged.keys().cloned()).collect()
    }

    fn read_known(&self) -> RwLockReadGuard<'_, KnownModels> {
        self.known.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, KnownModels> {
        self.known.write()
    }
}

impl ModelEntry {
    /// The kind of content.
    pub fn content(&self) -> Content {
        self.source.prepared.content()
    }

    /// Every file that the version refers to.
    fn files(&self) -> Vec<ContentHash> {
        self.source.prepared.blobs().chain([self.record.digest, self.record.prepared]).collect()
    }
}
