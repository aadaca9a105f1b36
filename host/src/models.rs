//! The models that are pushed: durable in the datastore and the blob folder, brought into device memory when opened.
//!
//! Keys are `models/{tenant}/{name}/versions/{version}`. A version never changes. Its files (the upload as it came, the optimised graph,
//! the weights, each named by its hash and kept once however many models share it) are durable before the key is.

mod access;
mod record;
mod store;

pub(crate) use access::{ModelAccess, OpenError, Opened};
pub(crate) use store::PushError;

use crate::blobs::{Blobs, Staged};
use crate::registry::Deployment;
use crate::telemetry::Metrics;
use crate::telemetry::logs::now_ms;
use record::{ModelRecord, parse, version_key};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use store::Store;
use weir_datastore::{Commit, Compare, Datastore, Transaction};
use weir_inference::{ModelCache, ModelSource, Prepared};
use weir_scheduler::ModelDemand;
use weir_types::api::{DeviceStatus, ModelVersion};
use weir_types::{ContentHash, ModelId, ModelManifest, Name, TenantId, Version};

/// Versions that one name may have.
const VERSIONS_MAX: usize = 1_000;

/// Why the registry of models could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelsError {
    #[error("there is no model {0}; `weir models list` lists them")]
    NoModel(Name),
    #[error("model {name} has no version {version}; it has {have}")]
    NoVersion { name: Name, version: Version, have: String },
    #[error(
        "version {version} of model {name} exists with other contents; versions never change, push another number"
    )]
    Exists { name: Name, version: Version },
    #[error("model {0} has {VERSIONS_MAX} versions; delete old ones first")]
    TooManyVersions(Name),
    #[error("model {0} was changed by somebody else at the same time; try again")]
    Conflict(Name),
    #[error("the registry entry {key} cannot be read: {why}")]
    Damaged { key: String, why: String },
    #[error(transparent)]
    Push(#[from] PushError),
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
}

/// One version of a model, in memory.
pub(crate) struct ModelEntry {
    pub(crate) record: ModelRecord,
    pub(crate) source: Arc<ModelSource>,
}

type Versions = BTreeMap<Version, Arc<ModelEntry>>;
type Tenants = HashMap<TenantId, BTreeMap<Name, Versions>>;

/// The models of all tenants.
pub(crate) struct Models {
    datastore: Arc<dyn Datastore>,
    store: Store,
    cache: ModelCache,
    metrics: Arc<Metrics>,
    tenants: RwLock<Tenants>,
}

impl Models {
    /// Read everything that was pushed, and remove files that nothing refers to.
    pub(crate) async fn open(
        datastore: Arc<dyn Datastore>,
        blobs: Blobs,
        cache: ModelCache,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ModelsError> {
        let models = Self { datastore, store: Store::new(blobs), cache, metrics, tenants: RwLock::default() };
        let (entries, _) = models.datastore.read_all(&record::prefix()?).await?;
        for entry in entries {
            let (id, record) = parse(&entry)?;
            let prepared = models.store.read_prepared(record.prepared).await?;
            models.insert(id, record, prepared);
        }
        models.sweep().await?;
        Ok(models)
    }

    /// The newest version, or the one asked for.
    pub(crate) fn get(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let versions = tenants.get(tenant).and_then(|models| models.get(name));
        let versions = versions.ok_or_else(|| ModelsError::NoModel(name.clone()))?;
        let entry = match version {
            None => versions.values().next_back(),
            Some(version) => versions.get(&version),
        };
        entry.cloned().ok_or_else(|| {
            let have: Vec<_> = versions.keys().map(ToString::to_string).collect();
            let version = version.unwrap_or(Version(0));
            ModelsError::NoVersion { name: name.clone(), version, have: have.join(", ") }
        })
    }

    /// The numbers of a model's versions.
    pub(crate) fn versions(&self, tenant: &TenantId, name: &Name) -> Vec<Version> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let versions = tenants.get(tenant).and_then(|models| models.get(name));
        versions.map(|versions| versions.keys().copied().collect()).unwrap_or_default()
    }

    /// The newest version of every model of `tenant`.
    pub(crate) fn list(&self, tenant: &TenantId) -> Vec<Arc<ModelEntry>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let models = tenants.get(tenant).into_iter().flat_map(BTreeMap::values);
        models.filter_map(|versions| versions.values().next_back().cloned()).collect()
    }

    /// Check, optimise and keep an uploaded model. Durable when it returns. The flag tells whether a version was made: pushing the same
    /// once more is not an error.
    pub(crate) async fn push(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
        upload: Staged,
        manifest: ModelManifest,
    ) -> Result<(Arc<ModelEntry>, bool), ModelsError> {
        let have = self.versions(tenant, name);
        let version = version.unwrap_or_else(|| Version(have.last().map_or(0, |newest| newest.0) + 1));
        if let Ok(same) = self.get(tenant, name, Some(version)) {
            if same.record.digest == upload.digest && same.record.manifest == manifest {
                return Ok((same, false));
            }
            return Err(ModelsError::Exists { name: name.clone(), version });
        }
        if have.len() >= VERSIONS_MAX {
            return Err(ModelsError::TooManyVersions(name.clone()));
        }
        let (digest, model_bytes) = (upload.digest, upload.bytes);
        let (prepared, hash, _adding) = self.store.prepare(upload, &**self.cache.backend()).await?;
        let record =
            ModelRecord { version, digest, model_bytes, pushed_at_ms: now_ms(), manifest, prepared: hash };
        let key = version_key(tenant, name, version)?;
        let writes = Transaction::new().when(Compare::Absent(key.clone())).put(key, record.encode());
        match self.datastore.commit(writes).await? {
            Commit::Done(_) => {
                let id = ModelId { tenant: tenant.clone(), name: name.clone(), version };
                Ok((self.insert(id, record, prepared), true))
            }
            Commit::Conflict => Err(ModelsError::Conflict(name.clone())),
        }
    }

    /// Remove a version, or all of them. Runs under way finish.
    pub(crate) async fn delete(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<(), ModelsError> {
        self.get(tenant, name, version)?;
        let versions = version.map_or_else(|| self.versions(tenant, name), |version| vec![version]);
        for batch in versions.chunks(100) {
            let mut writes = Transaction::new();
            for version in batch {
                writes = writes.delete(version_key(tenant, name, *version)?);
            }
            self.datastore.commit(writes).await?;
            for version in batch {
                self.forget(tenant, name, *version);
                self.cache
                    .unload(&ModelId { tenant: tenant.clone(), name: name.clone(), version: *version })
                    .await;
            }
        }
        self.sweep().await
    }

    /// `entry` as the API shows it.
    pub(crate) fn describe(&self, entry: &ModelEntry) -> ModelVersion {
        let ModelEntry { record, source } = entry;
        ModelVersion {
            tenant: source.id.tenant.clone(),
            name: source.id.name.clone(),
            version: record.version,
            digest: record.digest,
            model_bytes: record.model_bytes,
            weight_bytes: source.prepared.weight_bytes,
            pushed_at_ms: record.pushed_at_ms,
            signature: source.prepared.signature.clone(),
            manifest: record.manifest.clone(),
            resident: self.cache.resident().iter().any(|model| model.id == source.id),
            profile: self.cache.profile(&source.id),
        }
    }

    /// The device, with what `tenant` may know about it.
    pub(crate) fn device_status(&self, tenant: &TenantId) -> DeviceStatus {
        let resident = self.cache.resident();
        let own = resident.iter().filter(|model| model.id.tenant == *tenant);
        DeviceStatus {
            name: "cpu".to_owned(),
            backend: self.cache.backend().name().to_owned(),
            slots: u32::try_from(self.cache.slots()).unwrap_or(u32::MAX),
            capacity_bytes: self.cache.capacity_bytes(),
            used_bytes: self.cache.used_bytes(),
            resident: own.map(|model| format!("{}:{}", model.id.name, model.id.version)).collect(),
        }
    }

    /// The device's memory for models, in bytes, and its slots.
    pub(crate) fn device_capacity(&self) -> (u64, u32) {
        (self.cache.capacity_bytes(), u32::try_from(self.cache.slots()).unwrap_or(u32::MAX))
    }

    /// The models that a call of `deployment` may open, as the scheduler sees them. One that is not pushed demands nothing: opening it
    /// fails.
    pub(crate) fn demands(&self, deployment: &Deployment) -> Vec<ModelDemand> {
        let granted = deployment.manifest.models.iter();
        let entries =
            granted.filter_map(|model| self.get(&deployment.id.tenant, &model.name, model.version).ok());
        entries
            .map(|entry| {
                let (model, bytes) = (entry.source.id.clone(), entry.source.prepared.resident_bytes);
                ModelDemand { model, bytes, load_time_ns: None }
            })
            .collect()
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.cache.used_bytes()
    }

    pub(crate) fn blobs(&self) -> &Blobs {
        self.store.blobs()
    }

    fn insert(&self, id: ModelId, record: ModelRecord, prepared: Prepared) -> Arc<ModelEntry> {
        let source = ModelSource {
            id: id.clone(),
            prepared: Arc::new(prepared),
            blobs: self.store.blobs().folder().to_owned(),
            slots: record.manifest.slots,
        };
        let entry = Arc::new(ModelEntry { record, source: Arc::new(source) });
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        let versions = tenants.entry(id.tenant).or_default().entry(id.name).or_default();
        versions.insert(id.version, entry.clone());
        self.count(&tenants);
        entry
    }

    fn forget(&self, tenant: &TenantId, name: &Name, version: Version) {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(models) = tenants.get_mut(tenant)
            && let Some(versions) = models.get_mut(name)
        {
            versions.remove(&version);
            if versions.is_empty() {
                models.remove(name);
            }
        }
        self.count(&tenants);
    }

    fn count(&self, tenants: &Tenants) {
        self.metrics.models.set(tenants.values().map(|models| models.len() as i64).sum());
    }

    /// Remove files that no version refers to any more.
    async fn sweep(&self) -> Result<(), ModelsError> {
        Ok(self.store.blobs().sweep(|| self.files()).await.map_err(PushError::Io)?)
    }

    /// Every file that some version refers to.
    fn files(&self) -> HashSet<ContentHash> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let entries = tenants.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        entries
            .flat_map(|entry| {
                let own = [entry.record.digest, entry.record.prepared];
                entry.source.prepared.blobs().chain(own).collect::<Vec<_>>()
            })
            .collect()
    }
}

impl ModelsError {
    /// Prefixes cannot fail to be keys: names are valid segments.
    pub(super) fn key(error: weir_datastore::KeyError) -> Self {
        Self::Datastore(weir_datastore::Error::Unavailable { source: Arc::new(error) })
    }
}
