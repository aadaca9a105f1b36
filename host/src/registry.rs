//! The functions that are deployed: durable in the datastore, served from memory.
//!
//! Keys are `functions/{tenant}/{name}/head` (which version the name points at, and which number comes next) and
//! `functions/{tenant}/{name}/versions/{version}` (one immutable version). A change is one transaction on both, fenced by the head's
//! revision, and is seen in memory only once it is durable. Calls never touch the datastore. A record that cannot be read is left alone
//! and reported; the node serves the others. In a cluster, every node follows what the others change.

mod change;
mod follow;
mod function;
mod record;
#[cfg(test)]
mod tests;

pub(crate) use follow::Prepare;
pub(crate) use function::{Deployment, FunctionEntry};
pub(crate) use record::{FunctionRecord, Head};

use crate::changes::{Changes, CutOff};
use crate::telemetry::Metrics;
use crate::telemetry::logs::Logs;
use record::{Parsed, Value, parse};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::Semaphore;
use weir_datastore::{Datastore, Entry, Key, Revision};
use weir_types::{ContentHash, FunctionId, Name, TenantId, Version};

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
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

type Tenants = HashMap<TenantId, BTreeMap<Name, Arc<FunctionEntry>>>;

/// The deployed functions of all tenants.
pub(crate) struct Registry {
    datastore: Arc<dyn Datastore>,
    metrics: Arc<Metrics>,
    logs: Arc<Logs>,
    tenants: RwLock<Tenants>,
    /// Records that could not be read.
    damaged: Mutex<Vec<Damaged>>,
    /// Functions that were deleted, and as of when, until no older news of them can come.
    deleted: Mutex<HashMap<(TenantId, Name), Revision>>,
    changes: Changes,
    /// One change at a time on this node; the head's revision fences those of other nodes.
    turn: Arc<Semaphore>,
}

/// A record that could not be read.
#[derive(Debug, Clone)]
struct Damaged {
    key: Key,
    why: String,
}

/// What the datastore holds about one function.
#[derive(Default)]
struct Stored {
    /// The head, if it can be read.
    head: Option<Head>,
    head_revision: Option<Revision>,
    records: BTreeMap<Version, FunctionRecord>,
}

/// A function as a change leaves it; none where the change removes it.
type After = Option<(Head, BTreeMap<Version, FunctionRecord>)>;

impl Registry {
    /// Read everything that is deployed.
    pub(crate) async fn open(
        datastore: Arc<dyn Datastore>,
        metrics: Arc<Metrics>,
        changes: Changes,
        logs: Arc<Logs>,
    ) -> Result<(Arc<Self>, Revision), RegistryError> {
        let registry = Self {
            datastore,
            metrics,
            logs,
            tenants: RwLock::default(),
            damaged: Mutex::default(),
            deleted: Mutex::default(),
            changes,
            turn: Arc::new(Semaphore::new(1)),
        };
        let revision = registry.read_all().await?;
        Ok((Arc::new(registry), revision))
    }

    /// Make memory what the datastore is now, and tell as of which revision that is.
    async fn read_all(&self) -> Result<Revision, RegistryError> {
        let (entries, revision) = self.datastore.read_all(&record::prefix()?).await?;
        let (mut functions, mut damaged) = (BTreeMap::new(), Vec::new());
        for entry in entries {
            if let Err(RegistryError::Damaged { key, why }) = take_in(&mut functions, &entry) {
                tracing::error!(%key, why, "a function's record cannot be read: it is left alone");
                damaged.push(Damaged { key, why });
            }
        }
        *self.lock_damaged() = damaged;
        for (tenant, name) in self.names() {
            if !functions.contains_key(&(tenant.clone(), name.clone())) {
                self.publish(&tenant, &name, revision, None);
            }
        }
        for ((tenant, name), stored) in functions {
            self.publish_stored(&tenant, &name, stored);
        }
        Ok(revision)
    }

    /// Make memory what the datastore is now for one function.
    async fn refresh(&self, tenant: &TenantId, name: &Name) -> Result<(), RegistryError> {
        let (entries, revision) = self.datastore.read_all(&record::function(tenant, name)?).await?;
        let mut functions = BTreeMap::new();
        for entry in entries {
            // What is damaged was reported by whoever read it first.
            let _ = take_in(&mut functions, &entry);
        }
        match functions.remove(&(tenant.clone(), name.clone())) {
            Some(stored) => self.publish_stored(tenant, name, stored),
            None => _ = self.publish(tenant, name, revision, None),
        }
        Ok(())
    }

    fn publish_stored(&self, tenant: &TenantId, name: &Name, stored: Stored) {
        let Stored { head, head_revision, records } = stored;
        // Head and versions change in one transaction: one without the other cannot be.
        let Some(revision) = head_revision else { return };
        let newest = records.keys().next_back().map_or(0, |newest| newest.0);
        // In the place of a head that cannot be read: the next change writes it anew.
        let head = head.unwrap_or(Head { active: Version(newest), next: Version(newest + 1) });
        self.publish(tenant, name, revision, Some((head, records)));
    }

    fn names(&self) -> Vec<(TenantId, Name)> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let names =
            tenants.iter().flat_map(|(tenant, functions)| functions.keys().map(move |name| (tenant, name)));
        names.map(|(tenant, name)| (tenant.clone(), name.clone())).collect()
    }

    /// The function, if it is deployed. The way of every call.
    pub(crate) fn get(&self, tenant: &TenantId, name: &str) -> Option<Arc<FunctionEntry>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.get(tenant)?.get(name).cloned()
    }

    /// Whether `deployment` is the version that its function's name points at.
    pub(crate) fn is_active(&self, deployment: &Arc<Deployment>) -> bool {
        let FunctionId { tenant, name, .. } = &deployment.id;
        let entry = self.get(tenant, name.as_str());
        entry.is_some_and(|entry| entry.active().is_some_and(|active| Arc::ptr_eq(active, deployment)))
    }

    /// One version of a function that another node knows, which may be news to this one.
    pub(crate) async fn find_version(
        &self,
        tenant: &TenantId,
        name: &str,
        version: Version,
    ) -> Option<Arc<Deployment>> {
        let known = || self.get(tenant, name)?.versions.get(&version).cloned();
        if let Some(known) = known() {
            return Some(known);
        }
        self.refresh(tenant, &Name::new(name).ok()?).await.ok()?;
        known()
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

    /// What of `tenant` could not be read, and why.
    pub(crate) fn damaged(&self, tenant: &TenantId) -> Vec<String> {
        let own = format!("functions/{tenant}/");
        let damaged = self.lock_damaged();
        let own = damaged.iter().filter(|damaged| damaged.key.as_str().starts_with(&own));
        own.map(|Damaged { key, why }| format!("{key}: {why}")).collect()
    }

    /// Whether [`digests`](Self::digests) is complete: a record that cannot be read refers to a component that nobody knows.
    pub(crate) fn is_whole(&self) -> bool {
        self.lock_damaged().is_empty()
    }

    /// The components that some version of some function refers to.
    pub(crate) fn digests(&self) -> HashSet<ContentHash> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let entries = tenants.values().flat_map(BTreeMap::values);
        entries.flat_map(|entry| entry.versions.values().map(|version| version.record.digest)).collect()
    }

    /// Show callers what a function has been since `revision`, unless they see something newer already: changes may commit in one order
    /// and arrive here in another.
    fn publish(
        &self,
        tenant: &TenantId,
        name: &Name,
        revision: Revision,
        after: After,
    ) -> Option<Arc<FunctionEntry>> {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        let functions = tenants.entry(tenant.clone()).or_default();
        let before = functions.get(name).cloned();
        if let Some(before) = &before
            && before.revision > revision
        {
            return Some(before.clone());
        }
        if before.is_none() && !self.outlives_deletion(tenant, name, revision) {
            return None;
        }
        let after = after.map(|(head, records)| {
            Arc::new(FunctionEntry::new(tenant, name, head, revision, records, before.as_deref(), || {
                let metrics = self.metrics.function(tenant, name);
                (metrics.clone(), self.logs.open(metrics))
            }))
        });
        match &after {
            Some(entry) => _ = functions.insert(name.clone(), entry.clone()),
            None => {
                functions.remove(name);
                self.lock_deleted().insert((tenant.clone(), name.clone()), revision);
            }
        }
        self.metrics.functions.set(tenants.values().map(|functions| functions.len() as i64).sum());
        after
    }

    fn lock_damaged(&self) -> MutexGuard<'_, Vec<Damaged>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take_in(functions: &mut BTreeMap<(TenantId, Name), Stored>, entry: &Entry) -> Result<(), RegistryError> {
    let Parsed { tenant, name, value } = parse(entry)?;
    let stored = functions.entry((tenant, name)).or_default();
    match value {
        Value::Head(head) => {
            stored.head_revision = Some(entry.modified_at);
            stored.head = Some(head?);
        }
        Value::Version(record) => {
            let record = record?;
            stored.records.insert(record.version, *record);
        }
    }
    Ok(())
}
