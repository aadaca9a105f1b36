//! Pushes and deletes models: one transaction each, completed once started.

use super::compatibility::breaking_changes;
use super::index::StoredHead;
use super::record::{ModelRecord, head_key, model_key};
use super::store::DurableFiles;
use super::{ModelEntry, Models, ModelsError, VERSIONS_MAX, canary};
use crate::aliases::is_named;
use crate::registry::InactiveRole;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use weir_datastore::{Commit, Compare, Revision, Transaction};
use weir_inference::{BatchRules, Content, Prepared};
use weir_storage::blobs::Staged;
use weir_telemetry::logs::now_ms;
use weir_types::{ContentHash, DeviceChoice, ModelId, ModelManifest, Name, TenantId, Version};

/// Attempts of a push after concurrent changes by other nodes.
const CONFLICTS_MAX: usize = 5;

/// The number of versions removed per transaction, which takes at most 128 writes.
const REMOVED_AT_ONCE: usize = 100;

/// What a deletion removes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    /// All versions, and the head with the last of them.
    Model,
    /// Some versions. A conflict if the head has changed since this revision: another node may have
    /// given one of them an alias.
    Versions { head: Option<Revision> },
}

impl Models {
    /// Checks, optimises and stores an uploaded model. Durable on return. The flag is true if a
    /// version was created: pushing identical contents again is not an error, and repairs damaged
    /// files.
    pub async fn push(
        self: &Arc<Self>,
        request: PushRequest,
        upload: Staged,
    ) -> Result<(Arc<ModelEntry>, bool), ModelsError> {
        let PushRequest { tenant, name, version, mut manifest, content, may_change_signature, role } =
            request;
        self.refuse_other_kind(&tenant, &name, content)?;
        // Pushing a canary or shadow again changes its share, and a preview again changes nothing.
        let is_repeated = |role| self.same_content(&tenant, &name, role, (upload.digest, &manifest));
        let version = version.or_else(|| is_repeated(role?));
        if let Some(version) = version
            && let Ok(same) = self.get(&tenant, &name, Some(version))
            && same.record.digest == upload.digest
        {
            name_outputs(&mut manifest, &same.source.prepared)?;
        }
        let same = match version {
            Some(version) => self.same(&tenant, &name, version, upload.digest, &manifest)?,
            None => None,
        };
        if let (Some(same), Some(InactiveRole::Canary { share, now_ms })) = (&same, role) {
            self.set_share(&tenant, &name, same.record.version, (share, now_ms)).await?;
        }
        if let (Some(same), Some(InactiveRole::Shadow { share, now_ms })) = (&same, role) {
            self.set_shadow_share(&tenant, &name, same.record.version, (share, now_ms)).await?;
        }
        if let Some(same) = &same
            && self.store.is_intact(same.files()).await?
        {
            return Ok((same.clone(), false));
        }
        let digest = upload.digest;
        let model_bytes = upload.bytes;
        let role = role.filter(|_| same.is_none());
        let mut push =
            Push { tenant, name, version, digest, model_bytes, manifest, may_change_signature, role };
        let mut fresh = {
            let preparer = self.devices.preparer_of(content).ok_or(ModelsError::KernelGraphsOff)?;
            self.store.prepare(&push.tenant, upload, push.manifest.precision, preparer).await?
        };
        if let Some(same) = &same {
            fresh.stay_as(&same.source.prepared);
        }
        BatchRules::for_signature(&fresh.prepared.signature, &push.manifest.batching)?;
        name_outputs(&mut push.manifest, &fresh.prepared)?;
        may_run_somewhere(&fresh.prepared, push.manifest.device)?;
        // Checked here before the files are stored, and again with the lock.
        self.check_signature(&push, push.version, &fresh.prepared)?;
        let models = self.clone();
        let change = async move {
            // Before the lock: replicating the files to other nodes may take long, and other
            // changes must not wait for it.
            let kept = models.store.keep(fresh).await?;
            let _turn = models.turn(&push.name).await?;
            models.add_or_retry(push, kept).await
        };
        self.changes.carry_through(change).await?
    }

    /// Checks whether content of this kind may be pushed under this name.
    pub fn may_push(&self, tenant: &TenantId, name: &Name, content: Content) -> Result<(), ModelsError> {
        self.devices.preparer_of(content).ok_or(ModelsError::KernelGraphsOff)?;
        self.refuse_other_kind(tenant, name, content)
    }

    /// Pushes an earlier version again, as the newest one: version `to`, or the version that was
    /// active before. Ends a canary and a shadow. The caller ends a canary without a version to return to by
    /// [`end_canary`](Self::end_canary).
    pub async fn roll_back(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        to: Option<Version>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let previous = || self.roles(tenant, name).previous;
        let to = to.or_else(previous).ok_or_else(|| ModelsError::NothingBefore(name.clone()))?;
        let entry = self.get(tenant, name, Some(to))?;
        let ModelRecord { digest, model_bytes, manifest, prepared: hash, .. } = entry.record.clone();
        let push = Push {
            tenant: tenant.clone(),
            name: name.clone(),
            version: None,
            digest,
            model_bytes,
            manifest,
            // The owner names the version.
            may_change_signature: true,
            role: None,
        };
        let turn = self.turn(name).await?;
        let models = self.clone();
        let change = async move {
            let _turn = turn;
            let hold = || models.store.blobs().in_use().hold(entry.files());
            let prepared = Prepared::clone(&entry.source.prepared);
            let (entry, _) =
                models.add_or_retry(push, DurableFiles { prepared, hash, holds: [hold(), hold()] }).await?;
            Ok(entry)
        };
        self.changes.carry_through(change).await?
    }

    /// Removes one version, or all versions. Invocations that have opened a version may continue to
    /// use it.
    pub async fn delete(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<(), ModelsError> {
        self.ids(tenant, name, version)?;
        let turn = self.turn(name).await?;
        let models = self.clone();
        let tenant = tenant.clone();
        let name = name.clone();
        let change = async move {
            let _turn = turn;
            let mut conflicts = 0;
            loop {
                let head = models.stored_head(&tenant, &name).revision;
                let ids = models.ids(&tenant, &name, version)?;
                let part = match version {
                    Some(version) => {
                        models.may_delete(&tenant, &name, version)?;
                        Removed::Versions { head }
                    }
                    None => Removed::Model,
                };
                let removed = models.remove(ids, (&tenant, &name), part).await;
                match removed {
                    Err(ModelsError::Conflict(_)) if conflicts < CONFLICTS_MAX => conflicts += 1,
                    removed => return removed,
                }
                models.refresh(&tenant, &name).await?;
            }
        };
        self.changes.carry_through(change).await?
    }

    /// Removes the oldest versions above `keep`, except the newest one, the active one, the canary,
    /// `pushed`, versions with an alias, and those that `is_used` names or that invocations hold.
    /// Returns the removed versions. `keep` = 0 keeps all.
    pub async fn prune(
        self: &Arc<Self>,
        pushed: &ModelId,
        keep: usize,
        is_used: impl Fn(Version) -> bool + Send + 'static,
    ) -> Result<Vec<Version>, ModelsError> {
        let ModelId { tenant, name, version: pushed } = pushed.clone();
        if keep == 0 || self.versions(&tenant, &name).len() <= keep {
            return Ok(Vec::new());
        }
        let turn = self.turn(&name).await?;
        let models = self.clone();
        let change = async move {
            let _turn = turn;
            let head = models.stored_head(&tenant, &name).revision;
            let mut versions = models.versions(&tenant, &name);
            let roles = models.roles(&tenant, &name);
            let aliases = models.aliases(&tenant, &name);
            let excess = versions.len().saturating_sub(keep);
            versions.pop();
            let id = |version| ModelId { tenant: tenant.clone(), name: name.clone(), version };
            let is_unused = |version: &Version| {
                *version != pushed
                    && !roles.serves(*version)
                    && !is_named(&aliases, *version)
                    && !is_used(*version)
                    && !models.devices.is_any_pinned(&[id(*version)])
            };
            let removed: Vec<Version> = versions.into_iter().filter(is_unused).take(excess).collect();
            if !removed.is_empty() {
                let ids = removed.iter().map(|version| id(*version)).collect();
                models.remove(ids, (&tenant, &name), Removed::Versions { head }).await?;
            }
            Ok(removed)
        };
        self.changes.carry_through(change).await?
    }

    /// A name refers either to models or to kernel graphs.
    fn refuse_other_kind(&self, tenant: &TenantId, name: &Name, content: Content) -> Result<(), ModelsError> {
        match self.get(tenant, name, None) {
            Ok(entry) if entry.content() != content => {
                Err(ModelsError::OtherKind(name.clone(), what(entry.content())))
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn turn(&self, name: &Name) -> Result<OwnedSemaphorePermit, ModelsError> {
        self.turn.clone().acquire_owned().await.map_err(|_| ModelsError::Conflict(name.clone()))
    }

    /// Adds a version. Reads the model again after a conflict: another node has changed it, and this
    /// node has not heard of the change.
    async fn add_or_retry(
        &self,
        push: Push,
        kept: DurableFiles,
    ) -> Result<(Arc<ModelEntry>, bool), ModelsError> {
        for _ in 0..CONFLICTS_MAX {
            match self.add(&push, &kept).await {
                Err(ModelsError::Conflict(_)) => self.refresh(&push.tenant, &push.name).await?,
                added => return added,
            };
        }
        self.add(&push, &kept).await
    }

    async fn add(&self, push: &Push, kept: &DurableFiles) -> Result<(Arc<ModelEntry>, bool), ModelsError> {
        self.refuse_other_kind(&push.tenant, &push.name, kept.prepared.content())?;
        let have = self.all_versions(&push.tenant, &push.name);
        let stored = self.stored_head(&push.tenant, &push.name);
        let newest = have.iter().copied().chain(stored.head.as_ref().map(|head| head.newest)).max();
        let next = newest.unwrap_or(Version(0)).next();
        let version = push.version.or(next).ok_or_else(|| ModelsError::NoNextVersion(push.name.clone()))?;
        self.check_signature(push, Some(version), &kept.prepared)?;
        let Push { tenant, name, digest, model_bytes, manifest, role, .. } = push;
        let same = self.same(tenant, name, version, *digest, manifest)?;
        let head = self.head_for_push(tenant, name, (version, have.last().copied()), *role)?;
        if same.is_none() && have.len() >= VERSIONS_MAX {
            return Err(ModelsError::TooManyVersions(name.clone()));
        }
        let id = ModelId { tenant: tenant.clone(), name: name.clone(), version };
        // Unchanged; its files are repaired.
        if let Some(same) = same.as_ref().filter(|same| same.record.prepared == kept.hash) {
            return Ok((same.clone(), false));
        }
        let key = model_key(&id)?;
        let damaged = self.read_known().damaged.get(&id).map(|damaged| damaged.revision);
        let fence = match same.as_ref().map(|same| Revision(same.source.key.generation)).or(damaged) {
            Some(revision) => Compare::ModifiedAt(key.clone(), revision),
            None => Compare::Absent(key.clone()),
        };
        let record = ModelRecord {
            version,
            digest: *digest,
            model_bytes: *model_bytes,
            pushed_at_ms: now_ms(),
            manifest: manifest.clone(),
            prepared: kept.hash,
        };
        let mut writes = Transaction::new().when(fence).put(key, record.encode());
        if let Some(head) = &head {
            let key = head_key(&id.tenant, &id.name)?;
            writes = writes.when(canary::fence(&key, stored.revision)).put(key, head.encode());
        }
        match self.datastore.commit(writes).await? {
            Commit::Done(revision) => {
                let head = head.map(|head| StoredHead { revision: Some(revision), head: Some(head) });
                let entry = self.insert(&id, revision, (record, kept.prepared.clone()), head);
                if let Some(before) = &same {
                    self.let_go(&before.source.key);
                }
                Ok((entry, same.is_none()))
            }
            Commit::Conflict => Err(ModelsError::Conflict(id.name)),
        }
    }

    /// Refuses a push that would become the newest version if its inputs or outputs are
    /// incompatible with those of the active version, unless the push permits such a change.
    /// `version` is the version that the push requests; `None` means the next version.
    fn check_signature(
        &self,
        push: &Push,
        version: Option<Version>,
        prepared: &Prepared,
    ) -> Result<(), ModelsError> {
        let Ok(active) = self.get(&push.tenant, &push.name, None) else { return Ok(()) };
        let newest = self.versions(&push.tenant, &push.name).last().copied();
        if push.may_change_signature || version.is_some_and(|version| Some(version) <= newest) {
            return Ok(());
        }
        match breaking_changes(&active.source.prepared.signature, &prepared.signature) {
            None => Ok(()),
            Some(changes) => {
                let name = push.name.clone();
                Err(ModelsError::SignatureChanged { name, active: active.record.version, changes })
            }
        }
    }

    /// Removes versions of a model.
    async fn remove(
        &self,
        ids: Vec<ModelId>,
        (tenant, name): (&TenantId, &Name),
        part: Removed,
    ) -> Result<(), ModelsError> {
        let key = head_key(tenant, name)?;
        for batch in ids.chunks(REMOVED_AT_ONCE) {
            let mut writes = Transaction::new();
            // With the last versions: a crash before them must not activate a canary.
            let with_head = part == Removed::Model && batch.last() == ids.last();
            if with_head {
                writes = writes.delete(key.clone());
            }
            if let Removed::Versions { head } = part {
                writes = writes.when(canary::fence(&key, head));
            }
            for id in batch {
                writes = writes.delete(model_key(id)?);
            }
            if self.datastore.commit(writes).await? == Commit::Conflict {
                return Err(ModelsError::Conflict(name.clone()));
            }
            // New opens fail from here on. Unloading comes second, so that no load slips in
            // between.
            for key in batch.iter().filter_map(|id| self.forget(id)) {
                self.let_go(&key);
            }
            if with_head {
                self.set_head(tenant, name, StoredHead::default());
            }
            if let Err(error) = self.forget_profiles(batch).await {
                tracing::debug!(%error, "removing the profiles of deleted models failed; the next start removes them");
            }
        }
        self.sweep().await
    }

    /// The version, if it exists with these contents. Fails if it exists with other contents or
    /// settings.
    fn same(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Version,
        digest: ContentHash,
        manifest: &ModelManifest,
    ) -> Result<Option<Arc<ModelEntry>>, ModelsError> {
        match self.get(tenant, name, Some(version)) {
            Ok(same) if same.record.digest == digest && same.record.manifest == *manifest => Ok(Some(same)),
            Ok(_) => Err(ModelsError::Exists { name: name.clone(), version }),
            Err(_) => Ok(None),
        }
    }

    /// The versions of a model, including unreadable ones.
    pub(super) fn all_versions(&self, tenant: &TenantId, name: &Name) -> Vec<Version> {
        let mut versions = self.versions(tenant, name);
        let known = self.read_known();
        let damaged = known.damaged.keys().filter(|id| id.tenant == *tenant && id.name == *name);
        versions.extend(damaged.map(|id| id.version));
        drop(known);
        versions.sort_unstable();
        versions
    }

    /// The ids that a model's name refers to, with or without a version.
    fn ids(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Vec<ModelId>, ModelsError> {
        let mut versions = self.all_versions(tenant, name);
        versions.retain(|have| version.is_none_or(|version| *have == version));
        if versions.is_empty() {
            // The error says whether the model or the version is missing.
            self.get(tenant, name, version)?;
        }
        let id = |version| ModelId { tenant: tenant.clone(), name: name.clone(), version };
        Ok(versions.into_iter().map(id).collect())
    }
}

/// Names the outputs of the labels, and checks that the labels fit them.
pub(super) fn name_outputs(manifest: &mut ModelManifest, prepared: &Prepared) -> Result<(), ModelsError> {
    let labels = std::mem::take(&mut manifest.labels);
    manifest.labels = labels.for_outputs(&prepared.signature.outputs)?;
    Ok(())
}

fn what(content: Content) -> &'static str {
    match content {
        Content::Network => "a model",
        Content::KernelGraph => "a kernel graph",
    }
}

/// Checks whether some device could run the model where its owner allows it.
fn may_run_somewhere(prepared: &Prepared, choice: DeviceChoice) -> Result<(), ModelsError> {
    if !prepared.platforms().within(choice.platforms()).is_empty() {
        return Ok(());
    }
    let why = choice.platforms().iter().filter_map(|platform| prepared.why_not(platform)).collect::<Vec<_>>();
    let why =
        if why.is_empty() { "this node cannot prepare the model for it".to_owned() } else { why.join("; ") };
    Err(ModelsError::NotThere(choice, why))
}

/// A requested push.
pub struct PushRequest {
    /// The owner.
    pub tenant: TenantId,
    /// The model's name.
    pub name: Name,
    /// The version; `None` for the next.
    pub version: Option<Version>,
    /// The settings.
    pub manifest: ModelManifest,
    /// The kind of the upload.
    pub content: Content,
    /// Whether users of the active version may be unable to use the pushed one.
    pub may_change_signature: bool,
    /// The role of the version; `None`: it becomes active if it is the newest.
    pub role: Option<InactiveRole>,
}

/// The contents of a push.
struct Push {
    tenant: TenantId,
    name: Name,
    /// `None`: the next version.
    version: Option<Version>,
    digest: ContentHash,
    model_bytes: u64,
    manifest: ModelManifest,
    may_change_signature: bool,
    role: Option<InactiveRole>,
}
