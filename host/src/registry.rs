//! The functions that are deployed: durable in the datastore, served from memory.
//!
//! Keys are `functions/{tenant}/{name}/head` (which version the name points at, and which number comes next) and
//! `functions/{tenant}/{name}/versions/{version}` (one immutable version). A change is one transaction on both, fenced by the head's
//! revision, and is seen in memory only once it is durable. Calls never touch the datastore.

mod function;
mod record;

pub(crate) use function::{Deployment, FunctionEntry};
pub(crate) use record::{FunctionRecord, Head};

use crate::telemetry::Metrics;
use record::{head_key, parse, version_key};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Semaphore;
use weir_datastore::{Commit, Compare, Datastore, Key, Revision, Transaction};
use weir_types::{ContentHash, Name, TenantId, Version};

/// Versions that one name may have.
const VERSIONS_MAX: usize = 1_000;

/// Why the registry could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error("there is no function {0}")]
    NoFunction(Name),
    #[error("function {name} has no version {version}; it has {have}")]
    NoVersion { name: Name, version: Version, have: String },
    #[error(
        "version {version} of {name} is the active one; roll back to another first, or delete the function"
    )]
    IsActive { name: Name, version: Version },
    #[error("function {0} has no earlier version to go back to")]
    NothingEarlier(Name),
    #[error("function {0} has {VERSIONS_MAX} versions; delete old ones first")]
    TooManyVersions(Name),
    #[error("function {0} was changed by somebody else at the same time; try again")]
    Conflict(Name),
    #[error("the registry entry {key} cannot be read: {why}")]
    Damaged { key: Key, why: String },
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
}

type Tenants = HashMap<TenantId, BTreeMap<Name, Arc<FunctionEntry>>>;

/// The deployed functions of all tenants.
pub(crate) struct Registry {
    datastore: Arc<dyn Datastore>,
    metrics: Arc<Metrics>,
    log_lines_max: usize,
    tenants: RwLock<Tenants>,
    /// One change at a time on this node; the head's revision fences those of other nodes.
    turn: Semaphore,
}

impl Registry {
    /// Read everything that is deployed.
    pub(crate) async fn open(
        datastore: Arc<dyn Datastore>,
        metrics: Arc<Metrics>,
        log_lines_max: usize,
    ) -> Result<Self, RegistryError> {
        let registry =
            Self { datastore, metrics, log_lines_max, tenants: RwLock::default(), turn: Semaphore::new(1) };
        let (entries, _) = registry.datastore.read_all(&record::prefix()?).await?;
        let mut functions: BTreeMap<(TenantId, Name), (Option<(Head, Revision)>, Vec<FunctionRecord>)> =
            BTreeMap::new();
        for entry in entries {
            let parsed = parse(&entry)?;
            let function = functions.entry((parsed.tenant, parsed.name)).or_default();
            match parsed.value {
                record::Value::Head(head) => function.0 = Some((head, entry.modified_at)),
                record::Value::Version(record) => function.1.push(*record),
            }
        }
        for ((tenant, name), (head, records)) in functions {
            // Head and versions change in one transaction: one without the other cannot be.
            let Some((head, revision)) = head else { continue };
            let versions = records.into_iter().map(|record| (record.version, record)).collect();
            registry.publish(tenant, name, Some((head, revision, versions)));
        }
        Ok(registry)
    }

    /// The function, if it is deployed. The way of every call.
    pub(crate) fn get(&self, tenant: &TenantId, name: &str) -> Option<Arc<FunctionEntry>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.get(tenant)?.get(name).cloned()
    }

    /// All functions of `tenant`, by name.
    pub(crate) fn list(&self, tenant: &TenantId) -> Vec<Arc<FunctionEntry>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.get(tenant).map(|functions| functions.values().cloned().collect()).unwrap_or_default()
    }

    /// A version with this component, of any function of any tenant.
    pub(crate) fn find(&self, digest: ContentHash) -> Option<FunctionRecord> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let mut versions =
            tenants.values().flat_map(BTreeMap::values).flat_map(|entry| entry.versions.values());
        versions.find(|version| version.record.digest == digest).map(|version| version.record.clone())
    }

    /// The components that some version of some function refers to.
    pub(crate) fn digests(&self) -> std::collections::HashSet<ContentHash> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let entries = tenants.values().flat_map(BTreeMap::values);
        entries.flat_map(|entry| entry.versions.values().map(|version| version.record.digest)).collect()
    }

    /// Add a version and make the name point at it. Durable when it returns. `make` is told the number.
    pub(crate) async fn deploy(
        &self,
        tenant: &TenantId,
        name: &Name,
        make: impl FnOnce(Version) -> FunctionRecord,
    ) -> Result<Arc<Deployment>, RegistryError> {
        let _turn = self.turn.acquire().await;
        let current = self.get(tenant, name.as_str());
        let next = current.as_ref().map_or(Version(1), |entry| entry.head.next);
        if current.as_ref().is_some_and(|entry| entry.versions.len() >= VERSIONS_MAX) {
            return Err(RegistryError::TooManyVersions(name.clone()));
        }
        let record = make(next);
        let head = Head { active: next, next: Version(next.0 + 1) };
        let mut records = records_of(current.as_deref());
        let writes = Transaction::new()
            .put(head_key(tenant, name)?, head.encode())
            .put(version_key(tenant, name, next)?, record.encode());
        records.insert(next, record);
        let entry = self.change(tenant, name, current.as_deref(), writes, Some((head, records))).await?;
        entry
            .and_then(|entry| entry.versions.get(&next).cloned())
            .ok_or_else(|| RegistryError::Conflict(name.clone()))
    }

    /// Make the name point at `version`, or at the one before the active one.
    pub(crate) async fn roll_back(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<FunctionEntry>, RegistryError> {
        let _turn = self.turn.acquire().await;
        let entry = self.get(tenant, name.as_str()).ok_or_else(|| RegistryError::NoFunction(name.clone()))?;
        let target = match version {
            Some(version) => entry.require(version)?.record.version,
            None => {
                let earlier = entry.versions.range(..entry.head.active).next_back();
                *earlier.ok_or_else(|| RegistryError::NothingEarlier(name.clone()))?.0
            }
        };
        let head = Head { active: target, next: entry.head.next };
        let writes = Transaction::new().put(head_key(tenant, name)?, head.encode());
        let changed =
            self.change(tenant, name, Some(&entry), writes, Some((head, records_of(Some(&entry))))).await?;
        changed.ok_or_else(|| RegistryError::NoFunction(name.clone()))
    }

    /// Remove one version that is not active.
    pub(crate) async fn delete_version(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Version,
    ) -> Result<(), RegistryError> {
        let _turn = self.turn.acquire().await;
        let entry = self.get(tenant, name.as_str()).ok_or_else(|| RegistryError::NoFunction(name.clone()))?;
        entry.require(version)?;
        if entry.head.active == version {
            return Err(RegistryError::IsActive { name: name.clone(), version });
        }
        let mut records = records_of(Some(&entry));
        records.remove(&version);
        // The head is written too, so that its revision fences every change.
        let writes = Transaction::new()
            .put(head_key(tenant, name)?, entry.head.encode())
            .delete(version_key(tenant, name, version)?);
        self.change(tenant, name, Some(&entry), writes, Some((entry.head, records))).await?;
        Ok(())
    }

    /// Remove the function and all its versions. Invocations in flight finish.
    pub(crate) async fn delete(&self, tenant: &TenantId, name: &Name) -> Result<(), RegistryError> {
        let _turn = self.turn.acquire().await;
        // A transaction takes 128 writes: old versions go first, the head and the active version last and together.
        loop {
            let entry =
                self.get(tenant, name.as_str()).ok_or_else(|| RegistryError::NoFunction(name.clone()))?;
            let old: Vec<_> = entry
                .versions
                .keys()
                .copied()
                .filter(|version| *version != entry.head.active)
                .take(100)
                .collect();
            if old.is_empty() {
                let writes = Transaction::new().delete(head_key(tenant, name)?).delete(version_key(
                    tenant,
                    name,
                    entry.head.active,
                )?);
                self.change(tenant, name, Some(&entry), writes, None).await?;
                return Ok(());
            }
            let mut records = records_of(Some(&entry));
            let mut writes = Transaction::new().put(head_key(tenant, name)?, entry.head.encode());
            for version in old {
                records.remove(&version);
                writes = writes.delete(version_key(tenant, name, version)?);
            }
            self.change(tenant, name, Some(&entry), writes, Some((entry.head, records))).await?;
        }
    }

    /// Commit `writes` unless the function has changed since `current`, then show the new state to callers.
    async fn change(
        &self,
        tenant: &TenantId,
        name: &Name,
        current: Option<&FunctionEntry>,
        writes: Transaction,
        state: Option<(Head, BTreeMap<Version, FunctionRecord>)>,
    ) -> Result<Option<Arc<FunctionEntry>>, RegistryError> {
        let head = head_key(tenant, name)?;
        let fence = match current {
            Some(entry) => Compare::ModifiedAt(head, entry.revision),
            None => Compare::Absent(head),
        };
        match self.datastore.commit(writes.when(fence)).await? {
            Commit::Done(revision) => {
                let state = state.map(|(head, records)| (head, revision, records));
                Ok(self.publish(tenant.clone(), name.clone(), state))
            }
            Commit::Conflict => Err(RegistryError::Conflict(name.clone())),
        }
    }

    fn publish(
        &self,
        tenant: TenantId,
        name: Name,
        state: Option<(Head, Revision, BTreeMap<Version, FunctionRecord>)>,
    ) -> Option<Arc<FunctionEntry>> {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        let functions = tenants.entry(tenant.clone()).or_default();
        let before = functions.get(&name).cloned();
        // Two changes may commit in one order and arrive here in the other: the newer one stays.
        if let (Some(before), Some((_, revision, _))) = (&before, &state)
            && before.revision > *revision
        {
            return Some(before.clone());
        }
        let after = state.map(|(head, revision, records)| {
            Arc::new(FunctionEntry::new(&tenant, &name, head, revision, records, before.as_deref(), || {
                (self.metrics.function(&tenant, &name), self.log_lines_max)
            }))
        });
        match &after {
            Some(entry) => functions.insert(name, entry.clone()),
            None => functions.remove(&name),
        };
        self.metrics.functions.set(tenants.values().map(|functions| functions.len() as i64).sum());
        after
    }
}

fn records_of(entry: Option<&FunctionEntry>) -> BTreeMap<Version, FunctionRecord> {
    entry
        .map(|entry| {
            entry.versions.iter().map(|(version, deployment)| (*version, deployment.record.clone())).collect()
        })
        .unwrap_or_default()
}
