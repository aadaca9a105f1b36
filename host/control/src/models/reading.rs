//! Reads the records and files of models from the datastore and the blob folder, and removes files
//! that no record refers to.

use super::cold_starts::LoadedDevices;
use super::index::{DamagedModel, KnownModels, ModelVersions, StoredHead};
use super::placing::Refusals;
use super::record::{self, ModelRecord, head_of, id_of};
use super::trial::ModelTrial;
use super::{ModelEntry, ModelPushError, Models, ModelsError};
use crate::canary::ShadowSlot;
use futures::StreamExt;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use weir_datastore::{Entry, Revision};
use weir_inference::{BatchRules, ModelKey, ModelSource, Prepared};
use weir_types::{ContentHash, ModelId, Name, TenantId};

/// The number of models that are read concurrently when the node starts.
const READ_AT_ONCE: usize = 16;

/// The reason why a model could not be read.
struct Unreadable {
    why: String,
    may_heal: bool,
}

impl Models {
    /// Replaces the models in memory by the state of the datastore. Returns the revision that was
    /// read.
    pub(super) async fn read_all(&self) -> Result<Revision, ModelsError> {
        let (entries, revision) = self.datastore.read_all(&record::models()?).await?;
        // Only keys of models have this prefix.
        let models: Vec<_> = entries.iter().filter_map(|entry| Some((id_of(&entry.key)?, entry))).collect();
        self.take_in_heads(&entries, None, revision);
        let reading = futures::stream::iter(&models);
        reading.for_each_concurrent(READ_AT_ONCE, async |(id, entry)| self.take_in(id, entry).await).await;
        let there: HashSet<_> = models.into_iter().map(|(id, _)| id).collect();
        for id in self.ids_known().into_iter().filter(|id| !there.contains(id)) {
            self.deleted(&id, revision);
        }
        Ok(revision)
    }

    /// Refreshes the versions of one model from the datastore. Returns whether the datastore has the
    /// model.
    pub async fn refresh(&self, tenant: &TenantId, name: &Name) -> Result<bool, ModelsError> {
        let (entries, revision) = self.datastore.read_all(&record::named(tenant, name)?).await?;
        self.take_in_heads(&entries, Some((tenant, name)), revision);
        let stored: Vec<_> = entries.iter().filter_map(|entry| Some((id_of(&entry.key)?, entry))).collect();
        for (id, entry) in &stored {
            self.take_in(id, entry).await;
        }
        for version in self.versions(tenant, name) {
            let id = ModelId { tenant: tenant.clone(), name: name.clone(), version };
            if !stored.iter().any(|(other, _)| *other == id) {
                self.deleted(&id, revision);
            }
        }
        Ok(!stored.is_empty())
    }

    /// Registers the heads among `entries`, which are all of one model or of all models at
    /// `revision`. Heads come before versions: a canary that is read must not become active.
    fn take_in_heads(&self, entries: &[Entry], of: Option<(&TenantId, &Name)>, revision: Revision) {
        let mut there = HashSet::new();
        for entry in entries {
            if let Some((tenant, name)) = head_of(&entry.key) {
                self.take_in_head(&tenant, &name, entry);
                there.insert((tenant, name));
            }
        }
        let removed = |(tenant, name, versions): (&TenantId, &Name, &ModelVersions)| {
            let is_of = of.is_none_or(|of| of == (tenant, name));
            let key = (tenant.clone(), name.clone());
            (is_of && versions.head().revision.is_some() && !there.contains(&key)).then_some(key)
        };
        let removed: Vec<_> = self.read_known().models().filter_map(removed).collect();
        for (tenant, name) in removed {
            self.head_deleted(&tenant, &name, revision);
        }
    }

    /// Registers the stored head of a model, unless a newer one is already known.
    pub(super) fn take_in_head(&self, tenant: &TenantId, name: &Name, entry: &Entry) {
        if self.stored_head(tenant, name).revision.is_some_and(|known| known >= entry.modified_at) {
            return;
        }
        let head = serde_json::from_slice(&entry.value).inspect_err(|error| {
            tracing::error!(key = %entry.key, %error, "unreadable record ignored: the newest version is active");
        });
        self.set_head(tenant, name, StoredHead { revision: Some(entry.modified_at), head: head.ok() });
    }

    /// Handles the deletion of a head at `revision`.
    pub(super) fn head_deleted(&self, tenant: &TenantId, name: &Name, revision: Revision) {
        if self.stored_head(tenant, name).revision.is_some_and(|known| known <= revision) {
            self.set_head(tenant, name, StoredHead::default());
        }
    }

    pub(super) fn set_head(&self, tenant: &TenantId, name: &Name, head: StoredHead) {
        self.change_known(&mut self.write(), tenant, name, |versions| versions.set_head(head));
    }

    /// Registers the stored record of a version, unless a newer push of the version is already
    /// known.
    pub(super) async fn take_in(&self, id: &ModelId, entry: &Entry) {
        let is_known = || self.revision_of(id).is_some_and(|known| known >= entry.modified_at);
        if is_known() {
            return;
        }
        match self.read(entry).await {
            // This node's own push arrives twice: directly, and from the datastore.
            _ if is_known() => {}
            Ok((record, prepared)) => {
                let before = self.key_of(id);
                self.insert(id, entry.modified_at, (record, prepared), None);
                if let Some(before) = before {
                    self.let_go(&before);
                }
            }
            // A concurrent deletion may have removed the files before this read.
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

    /// Handles the deletion of a version at `revision`. Returns whether the version was known.
    pub(super) fn deleted(&self, id: &ModelId, revision: Revision) -> bool {
        if self.revision_of(id).is_none_or(|known| known <= revision)
            && let Some(key) = self.forget(id)
        {
            self.let_go(&key);
            return true;
        }
        false
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

    pub(super) fn insert(
        &self,
        id: &ModelId,
        revision: Revision,
        (record, prepared): (ModelRecord, Prepared),
        head: Option<StoredHead>,
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
        known.damaged.remove(id);
        let shared = known.sharing.add(id, &source.prepared, worker_bytes);
        let entry = self.change_known(&mut known, &tenant, &name, |versions| {
            let entry = Arc::new(ModelEntry {
                batch_items_max,
                record,
                shared,
                worker_bytes,
                source: Arc::new(source),
                served,
                meters,
                refusals: Refusals::default(),
                loaded_devices: LoadedDevices::default(),
                answers: OnceLock::new(),
                trial: versions.trial().clone(),
                shadow: versions.shadow().clone(),
            });
            versions.insert(entry.clone(), head);
            entry
        });
        drop(known);
        self.staging.note(id);
        self.prefetch_soon(&entry);
        entry
    }

    /// Removes a version. Returns the key of its push.
    pub(super) fn forget(&self, id: &ModelId) -> Option<ModelKey> {
        let mut known = self.write();
        known.damaged.remove(id);
        known.versions(&id.tenant, &id.name)?.entries().get(&id.version)?;
        let (entry, active) = self.change_known(&mut known, &id.tenant, &id.name, |versions| {
            (versions.remove(id.version), versions.active().cloned())
        });
        known.sharing.remove(id);
        drop(known);
        let entry = entry?;
        self.staging.note(id);
        self.prefetch_no_more(&entry);
        if let Some(active) = active {
            self.prefetch_soon(&active);
        }
        Some(entry.source.key.clone())
    }

    /// Changes the versions of one model in memory.
    fn change_known<T>(
        &self,
        known: &mut KnownModels,
        tenant: &TenantId,
        name: &Name,
        change: impl FnOnce(&mut ModelVersions) -> T,
    ) -> T {
        let models = known.tenants.entry(tenant.clone()).or_default();
        let new = || {
            let trial = ModelTrial::new(self.metrics.model_canary(tenant, name));
            ModelVersions::new(trial, ShadowSlot::new(self.metrics.model_shadow(tenant, name)))
        };
        let versions = models.entry(name.clone()).or_insert_with(new);
        let had_choices = versions.has_choices();
        let changed = change(versions);
        match (had_choices, versions.has_choices()) {
            (false, true) => _ = self.with_choices.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.with_choices.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        if versions.is_empty() {
            models.remove(name);
        }
        self.count(known);
        changed
    }

    fn count(&self, known: &KnownModels) {
        self.metrics.deployed.models.set(known.tenants.values().map(|models| models.len() as i64).sum());
    }

    /// Removes files that no version refers to. Does nothing while a damaged model makes the
    /// references incomplete.
    pub(super) async fn sweep(&self) -> Result<(), ModelsError> {
        if !self.read_known().damaged.is_empty() {
            tracing::warn!("unused model files are kept, because an unreadable model may refer to them");
            return Ok(());
        }
        Ok(self.store.blobs().sweep(|| self.files()).await.map_err(ModelPushError::Io)?)
    }

    /// Every file that some version refers to.
    pub(super) fn files(&self) -> HashSet<ContentHash> {
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
}
