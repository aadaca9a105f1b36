//! Changes of deployments: one transaction each, completed once started.

use super::canary::InactiveRole;
use super::record::{ActiveVersion, encode, head_key, version_key};
use super::{After, DeploymentKind, Registry, RegistryEntry, RegistryError, VERSIONS_MAX};
use crate::aliases::{check_unused, is_named};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use weir_datastore::{Commit, Compare, Key, Transaction};
use weir_types::api::Aliases;
use weir_types::{Name, TenantId, Version};

/// The number of versions removed per transaction, which takes at most 128 writes.
const REMOVED_AT_ONCE: usize = 100;

/// The number of retries of a change that conflicts with another node's change.
const CONFLICTS_MAX: usize = 5;

impl<K: DeploymentKind> Registry<K> {
    /// Adds a version and makes it active. Durable on return. `make` creates the record from the
    /// version number. `held` protects the files that the version refers to until its record
    /// exists.
    pub async fn deploy(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        held: impl Send + 'static,
        make: impl Fn(Version) -> K::Record + Send + Sync + 'static,
    ) -> Result<Arc<K::Deployment>, RegistryError> {
        let make = Arc::new(make);
        self.carry_through(tenant, name, held, move |change| {
            let make = make.clone();
            async move { change.deploy(&*make, None).await }
        })
        .await
    }

    /// Makes `version` active; `None`: ends the canary; without a canary, ends the shadow; without
    /// either, activates the previous version. If `None` ends a canary, the shadow continues; otherwise,
    /// both end.
    pub async fn roll_back(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.roll_back(version)).await
    }

    /// Removes one version that is not active.
    pub async fn delete_version(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Version,
    ) -> Result<(), RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.delete_version(version)).await
    }

    /// Removes the oldest versions above `keep` that are not active, have no alias, and for which `is_used` is
    /// false. Returns the removed versions. `keep` = 0 keeps all.
    pub async fn prune(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        keep: usize,
        is_used: impl Fn(&K::Deployment) -> bool + Send + Sync + 'static,
    ) -> Result<Vec<Version>, RegistryError> {
        let has_excess = || Some(self.get(tenant, name.as_str())?.versions.len() > keep);
        if keep == 0 || has_excess() != Some(true) {
            return Ok(Vec::new());
        }
        let is_used = Arc::new(is_used);
        self.carry_through(tenant, name, (), move |change| {
            let is_used = is_used.clone();
            async move { change.prune(keep, &*is_used).await }
        })
        .await
    }

    /// Removes the name and all its versions. Running invocations finish.
    pub async fn delete(self: &Arc<Self>, tenant: &TenantId, name: &Name) -> Result<(), RegistryError> {
        self.carry_through(tenant, name, (), Change::delete).await
    }

    /// Waits for the lock, which the client may abort, and then applies a change, which the client
    /// cannot abort. After a conflict with another node's change, applies the change again to the
    /// new state. Drops `held` at the end.
    pub(super) async fn carry_through<T, Made>(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        held: impl Send + 'static,
        make: impl Fn(Change<K>) -> Made + Send + 'static,
    ) -> Result<T, RegistryError>
    where
        T: Send + 'static,
        Made: Future<Output = Result<T, RegistryError>> + Send + 'static,
    {
        let Ok(turn) = self.turn.clone().acquire_owned().await else {
            return Err(RegistryError::Conflict(K::NOUN, name.clone()));
        };
        let registry = self.clone();
        let tenant = tenant.clone();
        let name = name.clone();
        let change = async move {
            let _held = (turn, held);
            let mut conflicts = 0;
            loop {
                let change =
                    Change { registry: registry.clone(), tenant: tenant.clone(), name: name.clone() };
                match make(change).await {
                    Err(RegistryError::Conflict(..)) if conflicts < CONFLICTS_MAX => conflicts += 1,
                    made => return made,
                }
                registry.refresh(&tenant, &name).await?;
            }
        };
        self.changes.carry_through(change).await?
    }
}

/// One change of one name, under the lock.
pub(super) struct Change<K: DeploymentKind> {
    registry: Arc<Registry<K>>,
    tenant: TenantId,
    pub(super) name: Name,
}

impl<K: DeploymentKind> Change<K> {
    pub(super) async fn deploy(
        self,
        make: &(impl Fn(Version) -> K::Record + ?Sized),
        role: Option<InactiveRole>,
    ) -> Result<Arc<K::Deployment>, RegistryError> {
        let current = self.current();
        let next = current.as_ref().map_or(Version(1), |entry| entry.head.next);
        if current.as_ref().is_some_and(|entry| entry.versions.len() >= VERSIONS_MAX) {
            return Err(RegistryError::TooManyVersions(K::NOUN, self.name));
        }
        let record = make(next);
        let head = self.head_with(current.as_deref(), &record, role)?;
        let mut records = records_of(current.as_deref());
        let writes = Transaction::new()
            .put(self.head_key()?, head.encode())
            .put(self.version_key(next)?, encode(&record));
        records.insert(next, record);
        let entry = self.commit(current.as_deref(), writes, Some((head, records))).await?;
        entry
            .and_then(|entry| entry.versions.get(&next).cloned())
            .ok_or(RegistryError::Conflict(K::NOUN, self.name))
    }

    async fn roll_back(self, version: Option<Version>) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let entry = self.require()?;
        let target = match version {
            Some(version) => {
                entry.require(version)?;
                version
            }
            None if entry.head.canary.is_some() || entry.head.shadow.is_some() => entry.head.active,
            None => {
                let previous = entry.head.previous.filter(|previous| entry.versions.contains_key(previous));
                let earlier =
                    || entry.versions.range(..entry.head.active).next_back().map(|(version, _)| *version);
                previous
                    .or_else(earlier)
                    .ok_or_else(|| RegistryError::NothingEarlier(K::NOUN, self.name.clone()))?
            }
        };
        // A rollback that only ends a canary leaves the version to roll back to next.
        let previous = entry.head.previous.filter(|_| target == entry.head.active);
        let ends_only_canary = version.is_none() && entry.head.canary.is_some();
        let shadow = entry.head.shadow.filter(|_| ends_only_canary);
        let head = ActiveVersion { active: target, previous, canary: None, shadow, ..entry.head.clone() };
        self.commit_head(&entry, head).await
    }

    async fn delete_version(self, version: Version) -> Result<(), RegistryError> {
        let entry = self.require()?;
        let key = self.version_key(version)?;
        if !self.damaged().contains(&key) {
            entry.require(version)?;
        }
        if entry.head.active == version {
            return Err(RegistryError::IsActive { noun: K::NOUN, name: self.name, version });
        }
        if entry.head.shadow.is_some_and(|shadow| shadow.version == version) {
            return Err(RegistryError::IsShadow { noun: K::NOUN, name: self.name, version });
        }
        if entry.serves(version) {
            return Err(RegistryError::IsCanary { noun: K::NOUN, name: self.name, version });
        }
        check_unused(self.name.as_str(), &entry.head.aliases, version)?;
        let mut records = records_of(Some(&entry));
        records.remove(&version);
        // The head is written too, so that its revision fences every change.
        let writes = Transaction::new().put(self.head_key()?, entry.head.encode()).delete(key);
        self.commit(Some(&entry), writes, Some((entry.head.clone(), records))).await?;
        Ok(())
    }

    async fn prune(
        self,
        keep: usize,
        is_used: &(impl Fn(&K::Deployment) -> bool + ?Sized),
    ) -> Result<Vec<Version>, RegistryError> {
        let entry = self.require()?;
        let excess = entry.versions.len().saturating_sub(keep).min(REMOVED_AT_ONCE);
        let is_unused = |version: Version, deployment: &K::Deployment| {
            !entry.serves(version) && !is_named(&entry.head.aliases, version) && !is_used(deployment)
        };
        let unused = entry.versions.iter().filter(|(version, deployment)| is_unused(**version, deployment));
        let removed: Vec<Version> = unused.map(|(version, _)| *version).take(excess).collect();
        if removed.is_empty() {
            return Ok(removed);
        }
        let mut records = records_of(Some(&entry));
        let mut writes = Transaction::new().put(self.head_key()?, entry.head.encode());
        for version in &removed {
            records.remove(version);
            writes = writes.delete(self.version_key(*version)?);
        }
        self.commit(Some(&entry), writes, Some((entry.head.clone(), records))).await?;
        Ok(removed)
    }

    /// Removes inactive versions first, and the head and the active version last, in one
    /// transaction.
    async fn delete(self) -> Result<(), RegistryError> {
        loop {
            let entry = self.require()?;
            let is_old = |version: &Version| *version != entry.head.active;
            let old: Vec<_> = entry.versions.keys().copied().filter(is_old).take(REMOVED_AT_ONCE).collect();
            if old.is_empty() {
                let active = self.version_key(entry.head.active)?;
                let mut writes = Transaction::new().delete(self.head_key()?);
                for key in self.damaged().into_iter().filter(|key| *key != active) {
                    writes = writes.delete(key);
                }
                let writes = writes.delete(active);
                self.commit(Some(&entry), writes, None).await?;
                return Ok(());
            }
            let mut records = records_of(Some(&entry));
            // A crash before the last transaction must not leave a head that names missing versions.
            let head =
                ActiveVersion { canary: None, shadow: None, aliases: Aliases::new(), ..entry.head.clone() };
            let mut writes = Transaction::new().put(self.head_key()?, head.encode());
            for version in old {
                records.remove(&version);
                writes = writes.delete(self.version_key(version)?);
            }
            self.commit(Some(&entry), writes, Some((head, records))).await?;
        }
    }

    /// Commits `writes` unless the name has changed since `current`, then publishes the new state.
    pub(super) async fn commit(
        &self,
        current: Option<&RegistryEntry<K>>,
        writes: Transaction,
        after: After<K::Record>,
    ) -> Result<Option<Arc<RegistryEntry<K>>>, RegistryError> {
        let fence = match current {
            Some(entry) => Compare::ModifiedAt(self.head_key()?, entry.revision),
            None => Compare::Absent(self.head_key()?),
        };
        let written: HashSet<Key> = writes.writes.iter().map(|write| write.key().clone()).collect();
        match self.registry.datastore.commit(writes.when(fence)).await? {
            Commit::Done(revision) => {
                self.registry.lock_damaged().retain(|damaged| !written.contains(&damaged.key));
                Ok(self.registry.publish(&self.tenant, &self.name, revision, after))
            }
            Commit::Conflict => Err(RegistryError::Conflict(K::NOUN, self.name.clone())),
        }
    }

    fn current(&self) -> Option<Arc<RegistryEntry<K>>> {
        self.registry.get(&self.tenant, self.name.as_str())
    }

    pub(super) fn require(&self) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        self.current().ok_or_else(|| RegistryError::NotThere(K::NOUN, self.name.clone()))
    }

    /// The keys of unreadable versions, as many as fit into the last transaction.
    fn damaged(&self) -> Vec<Key> {
        let own = format!("{}/{}/{}/versions/", K::ROOT, self.tenant, self.name);
        let damaged = self.registry.lock_damaged();
        let keys = damaged.iter().map(|damaged| &damaged.key).filter(|key| key.as_str().starts_with(&own));
        keys.take(REMOVED_AT_ONCE).cloned().collect()
    }

    pub(super) fn head_key(&self) -> Result<Key, RegistryError> {
        head_key::<K>(&self.tenant, &self.name)
    }

    fn version_key(&self, version: Version) -> Result<Key, RegistryError> {
        version_key::<K>(&self.tenant, &self.name, version)
    }
}

pub(super) fn records_of<K: DeploymentKind>(
    entry: Option<&RegistryEntry<K>>,
) -> BTreeMap<Version, K::Record> {
    let versions = entry.into_iter().flat_map(|entry| &entry.versions);
    versions.map(|(version, deployment)| (*version, K::record(deployment).clone())).collect()
}
