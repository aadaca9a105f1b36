//! The registry of pushed models: durable in the datastore and the blob folder, loaded into device
//! memory when opened.
//!
//! Keys are `models/{tenant}/{name}/versions/{version}`. A version is immutable. Its files are the
//! original upload, the optimised graph and the weights. Each file is named by its hash and stored
//! once, even if many models share it. The files are durable before the key is written. A model
//! whose record or files are damaged is skipped and reported; the node serves the other models, and
//! pushing the model again repairs it. In a cluster, every node follows pushes and deletions on
//! other nodes, and fetches files when a model is first loaded.

mod autosize;
mod change;
mod compatibility;
mod config;
mod follow;
mod idle;
mod known;
mod loaded;
mod pinned;
mod pinning;
mod placing;
mod profiles;
mod record;
mod sharing;
mod store;
#[cfg(test)]
mod tests;

pub use autosize::autosize;
pub use change::PushRequest;
pub use config::{BackendKind, Isolation, ModelsConfig};
pub use idle::{KeepAlive, let_idle_go};
pub use loaded::{LoadedModel, ModelLoadError};
pub use pinned::{ModelPin, RanOn};
pub use profiles::keep_profiles;
pub use store::ModelPushError;

use crate::devices::{NodeDevice, NodeDevices};
use crate::response_cache::Scope;
use futures::StreamExt;
use known::{DamagedModel, KnownModels};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use placing::Refusals;
use record::{ModelRecord, id_of};
use sharing::SharedModelParts;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use store::ModelStore;
use tokio::sync::Semaphore;
use weir_datastore::{Datastore, Entry, Revision};
use weir_inference::{BatchRules, Content, ModelKey, ModelSource, Prepared};
use weir_scheduler::DeviceKind;
use weir_storage::blobs::Blobs;
use weir_storage::{Changes, CutOff};
use weir_telemetry::usage::ModelMeters;
use weir_telemetry::{Metrics, Served};
use weir_types::Ordinal;
use weir_types::api::ModelVersion;
use weir_types::{ContentHash, DeviceChoice, ModelId, Name, Profile, RunningMean, TenantId, Version};

/// The limit of versions per model name.
const VERSIONS_MAX: usize = 1_000;

/// An error while reading or changing the registry of models.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The tenant has no model with this name.
    #[error("there is no model {0}; `weir models list` lists them")]
    NoModel(Name),
    /// The model exists, but not in the requested version.
    #[error("model {name} has no version {version}; it has {have}")]
    NoVersion {
        /// The model's name.
        name: Name,
        /// The requested version.
        version: Version,
        /// The existing versions, separated by commas.
        have: String,
    },
    /// A push of an existing version has different content or settings.
    #[error(
        "version {version} of model {name} exists with another file or other settings; versions never change, push another number"
    )]
    Exists {
        /// The model's name.
        name: Name,
        /// The existing version.
        version: Version,
    },
    /// The version's record or files are damaged.
    #[error("model {}:{} cannot be read on this node: {why}; push it again, or delete it", id.name, id.version)]
    Damaged {
        /// The damaged version.
        id: ModelId,
        /// The reason why the version cannot be read.
        why: String,
    },
    /// The push changes inputs or outputs of the newest version.
    #[error("the push changes inputs or outputs of {name}:{newest}: {changes}")]
    SignatureChanged {
        /// The model's name.
        name: Name,
        /// The newest version.
        newest: Version,
        /// The differences.
        changes: String,
    },
    /// The name has reached the limit of versions.
    #[error("model {0} has {VERSIONS_MAX} versions; delete old ones first")]
    TooManyVersions(Name),
    /// A concurrent change of the same model was first.
    #[error("another request changed model {0} at the same time; try again")]
    Conflict(Name),
    /// The name belongs to the other kind of content, a model or a kernel graph.
    #[error("{1} with the name {0} exists; choose another name, or remove it first")]
    OtherKind(Name, &'static str),
    /// The tenant has no kernel graph with this name.
    #[error("there is no kernel graph {0}; `weir kernel-graphs` lists them")]
    NoKernelGraph(Name),
    /// The node does not accept kernel graphs.
    #[error(
        "kernel graphs are disabled on this node, because they run users' code on a device; the operator enables them with `[node.kernel_graphs] enabled = true` in weir.toml"
    )]
    KernelGraphsOff,
    /// A rollback was requested, and the name has no version before its newest.
    #[error("{0} has no version before its newest to roll back to")]
    NothingBefore(Name),
    /// No device that the manifest allows can run the model.
    #[error("the model cannot run on device = \"{0}\": {1}")]
    NotThere(DeviceChoice, String),
    /// The model was not prepared, stored or read.
    #[error(transparent)]
    Push(#[from] ModelPushError),
    /// The autosize settings in the manifest are invalid.
    #[error(transparent)]
    Autosize(#[from] weir_types::AutosizeError),
    /// The batching settings in the manifest are invalid.
    #[error(transparent)]
    Batching(#[from] weir_types::BatchingError),
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The change was not completed, because it panicked or the node stopped.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

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
    /// The weights that the model shares with other models of its tenant.
    pub shared: Arc<SharedModelParts>,
    /// The device memory of the tenant's worker process, if the model runs in one. All models of
    /// the tenant in that worker share this memory.
    pub worker_bytes: u64,
    /// The items that one run may take; 1 if requests are not batched.
    pub batch_items_max: u32,
    /// The response cache of the model's inferences; unset until the first use.
    pub answers: OnceLock<Arc<Scope>>,
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

/// The number of models that are read concurrently when the node starts.
const READ_AT_ONCE: usize = 16;

/// The reason why a model could not be read.
struct Unreadable {
    why: String,
    may_heal: bool,
}

/// The models of all tenants.
pub struct Models {
    datastore: Arc<dyn Datastore>,
    store: ModelStore,
    devices: NodeDevices,
    metrics: Arc<Metrics>,
    known: RwLock<KnownModels>,
    /// Numbers the models that guests load, so that their keys differ.
    loads: AtomicU64,
    changes: Changes,
    /// Serialises changes.
    turn: Arc<Semaphore>,
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
            loads: AtomicU64::new(0),
            changes,
            turn: Arc::new(Semaphore::new(1)),
        };
        let revision = models.read_all().await?;
        models.sweep().await?;
        models.restore_profiles().await?;
        Ok((Arc::new(models), revision))
    }

    /// Replaces the models in memory by the state of the datastore. Returns the revision that was
    /// read.
    async fn read_all(&self) -> Result<Revision, ModelsError> {
        let (entries, revision) = self.datastore.read_all(&record::models()?).await?;
        // Only keys of models have this prefix.
        let models: Vec<_> = entries.iter().filter_map(|entry| Some((id_of(&entry.key)?, entry))).collect();
        let reading = futures::stream::iter(&models);
        reading.for_each_concurrent(READ_AT_ONCE, async |(id, entry)| self.take_in(id, entry).await).await;
        let there: HashSet<_> = models.into_iter().map(|(id, _)| id).collect();
        for id in self.ids_known().into_iter().filter(|id| !there.contains(id)) {
            self.deleted(&id, revision);
        }
        Ok(revision)
    }

    /// Registers a version as the datastore has it, unless a newer push of it is already known.
    async fn take_in(&self, id: &ModelId, entry: &Entry) {
        let is_known = || self.revision_of(id).is_some_and(|known| known >= entry.modified_at);
        if is_known() {
            return;
        }
        match self.read(entry).await {
            // This node's own push arrives twice: directly, and from the datastore.
            _ if is_known() => {}
            Ok((record, prepared)) => {
                let before = self.key_of(id);
                self.insert(id, entry.modified_at, record, prepared);
                if let Some(before) = before {
                    self.let_go(&before);
                }
            }
            // Deletion removes the files, and may be faster than this.
            Err(_) if self.is_superseded(entry).await => {}
            Err(Unreadable { why, may_heal }) => {
                tracing::error!(model = %id, why, may_heal, "a model cannot be read: push it again, or delete it");
                let damaged = DamagedModel { revision: entry.modified_at, why, may_heal };
                self.write().damaged.insert(id.clone(), damaged);
            }
        }
    }

    /// Whether a record was deleted or replaced since it was read. False if the datastore does not
    /// answer.
    async fn is_superseded(&self, entry: &Entry) -> bool {
        let current = self.datastore.get(&entry.key).await;
        current.is_ok_and(|current| current.is_none_or(|current| current.modified_at != entry.modified_at))
    }

    /// Handles the deletion of a version at `revision`.
    fn deleted(&self, id: &ModelId, revision: Revision) {
        if self.revision_of(id).is_none_or(|known| known <= revision)
            && let Some(key) = self.forget(id)
        {
            self.let_go(&key);
        }
    }

    /// The requested version; without one, the newest.
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
        known.versions(tenant, name).map(|versions| versions.keys().copied().collect()).unwrap_or_default()
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

    /// The newest version of every model of `tenant`.
    pub fn list(&self, tenant: &TenantId) -> Vec<Arc<ModelEntry>> {
        let known = self.read_known();
        let models = known.tenants.get(tenant).into_iter().flat_map(BTreeMap::values);
        models.filter_map(|versions| versions.values().next_back().cloned()).collect()
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

    fn device_name(&self, ordinal: Ordinal) -> Arc<str> {
        self.devices.get(ordinal).unwrap_or(self.devices.first()).name.clone()
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
        self.devices.iter().filter(|device| runs_on.contains(device.platform)).collect()
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
        Some(known.versions(tenant, name)?.get(version)?.source.key.clone())
    }

    /// The revision at which the known push of a version was written.
    fn revision_of(&self, id: &ModelId) -> Option<Revision> {
        self.key_of(id).map(|key| Revision(key.generation))
    }

    fn ids_known(&self) -> Vec<ModelId> {
        let known = self.read_known();
        known.entries().map(|entry| entry.source.id().clone()).chain(known.damaged.keys().cloned()).collect()
    }

    /// Parses the record in `entry` and reads the file with its preparation result.
    async fn read(&self, entry: &Entry) -> Result<(ModelRecord, Prepared), Unreadable> {
        let record: ModelRecord = serde_json::from_slice(&entry.value)
            .map_err(|error| Unreadable { why: format!("invalid record: {error}"), may_heal: false })?;
        let prepared = self
            .store
            .read_prepared(record.prepared)
            .await
            .map_err(|error| Unreadable { why: error.to_string(), may_heal: self.blobs().is_shared() })?;
        Ok((record, prepared))
    }

    fn insert(
        &self,
        id: &ModelId,
        revision: Revision,
        record: ModelRecord,
        prepared: Prepared,
    ) -> Arc<ModelEntry> {
        let ModelId { tenant, name, version } = id.clone();
        let meters = self.metrics.usage.model(id);
        let source = ModelSource {
            // A revision belongs to one commit, so it is unique to a push.
            key: ModelKey { id: id.clone(), generation: revision.0 },
            prepared: Arc::new(prepared),
            blobs: self.store.blobs().folder().to_owned(),
            slots: record.manifest.slots,
            batching: record.manifest.batching.clone(),
            meter: meters.own().clone(),
        };
        let served = self.metrics.served(&tenant, &name, version);
        let worker_bytes = self.devices.worker_bytes(source.prepared.content());
        let batching = BatchRules::for_signature(&source.prepared.signature, &source.batching);
        let batch_items_max = batching.ok().flatten().map_or(1, |_| source.batching.size_max());
        let mut known = self.write();
        let entry = Arc::new(ModelEntry {
            batch_items_max,
            record,
            shared: known.sharing.add(id, &source.prepared, worker_bytes),
            worker_bytes,
            source: Arc::new(source),
            served,
            meters,
            refusals: Refusals::default(),
            answers: OnceLock::new(),
        });
        known.damaged.remove(id);
        known.tenants.entry(tenant).or_default().entry(name).or_default().insert(version, entry.clone());
        self.count(&known);
        entry
    }

    /// Removes a version. Returns the key of its push.
    fn forget(&self, id: &ModelId) -> Option<ModelKey> {
        let mut known = self.write();
        known.damaged.remove(id);
        let models = known.tenants.get_mut(&id.tenant)?;
        let versions = models.get_mut(&id.name)?;
        let entry = versions.remove(&id.version)?;
        if versions.is_empty() {
            models.remove(&id.name);
        }
        known.sharing.remove(id);
        self.count(&known);
        Some(entry.source.key.clone())
    }

    fn count(&self, known: &KnownModels) {
        self.metrics.deployed.models.set(known.tenants.values().map(|models| models.len() as i64).sum());
    }

    /// Removes files that no version refers to. Does nothing while a damaged model makes the
    /// references incomplete.
    async fn sweep(&self) -> Result<(), ModelsError> {
        if !self.read_known().damaged.is_empty() {
            tracing::warn!("unused model files are kept, because an unreadable model may refer to them");
            return Ok(());
        }
        Ok(self.store.blobs().sweep(|| self.files()).await.map_err(ModelPushError::Io)?)
    }

    /// Every file that some version refers to.
    fn files(&self) -> HashSet<ContentHash> {
        let known = self.read_known();
        known.entries().flat_map(|entry| entry.files()).collect()
    }

    /// The files that the datastore's current records refer to; `None` if those of some record
    /// cannot be determined.
    pub async fn referred(&self) -> Result<Option<HashSet<ContentHash>>, ModelsError> {
        let (entries, _) = self.datastore.read_all(&record::models()?).await?;
        let mut files = HashSet::new();
        for entry in entries {
            let known =
                id_of(&entry.key).and_then(|id| self.get(&id.tenant, &id.name, Some(id.version)).ok());
            if let Some(known) = known.filter(|known| known.source.key.generation == entry.modified_at.0) {
                files.extend(known.files());
                continue;
            }
            let Ok((record, prepared)) = self.read(&entry).await else { return Ok(None) };
            files.extend(prepared.blobs().chain([record.digest, record.prepared]));
        }
        Ok(Some(files))
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
