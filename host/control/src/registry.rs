//! The registry of versioned deployments, functions and workflows: durable in the datastore, served
//! from memory.
//!
//! Keys are `functions/{tenant}/{name}/head` (the active version, its canary, and the number of the
//! next version) and `functions/{tenant}/{name}/versions/{version}` (one immutable version); the
//! keys of workflows are below `workflows/`. A change is one transaction on both, fenced by the
//! head's revision, and becomes visible in memory only once it is durable. Calls access the
//! datastore only for names that this node does not know yet ([`Registry::refresh`]). An unreadable
//! record is skipped and reported; the node serves the others. In a cluster, every node follows the
//! changes of the other nodes. The differences between functions and workflows are in their
//! [`DeploymentKind`].

mod alias;
mod canary;
mod change;
mod entry;
mod follow;
mod function;
pub(crate) mod record;
#[cfg(test)]
mod tests;

use crate::aliases::AliasError;
pub use canary::InactiveRole;
pub use entry::{DeploymentKind, Noun, RegistryEntry};
pub use function::{
    ComponentChange, DeployedFunction, FunctionEntry, FunctionParts, FunctionRecord, Prepare,
};
use parking_lot::{Mutex, MutexGuard, RwLock};
pub use record::ActiveVersion;
pub use record::VersionRecord;
use record::{EntryContents, Parsed, parse};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Semaphore;
use weir_datastore::{Datastore, Entry, Key, Revision};
use weir_storage::{Changes, CutOff, Heard};
use weir_types::{Name, TenantId, Version};

/// The limit of versions per name.
const VERSIONS_MAX: usize = 1_000;

/// An error while reading or changing the registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The tenant has no deployment with this name.
    #[error("there is no {0} {1}")]
    NotThere(Noun, Name),
    /// The name is deployed, but not in the requested version.
    #[error("{noun} {name} has no version {version}; it has {have}")]
    NoVersion {
        /// The kind of deployment.
        noun: Noun,
        /// The deployed name.
        name: Name,
        /// The requested version.
        version: Version,
        /// The existing versions, separated by commas.
        have: String,
    },
    /// The deletion of the active version was requested.
    #[error(
        "version {version} of {name} is the active one; roll back to another first, or delete the {noun}"
    )]
    IsActive {
        /// The kind of deployment.
        noun: Noun,
        /// The deployed name.
        name: Name,
        /// The active version.
        version: Version,
    },
    /// The deletion of a canary was requested.
    #[error("version {version} of {name} is the canary; roll the {noun} back first: weir rollback {name}")]
    IsCanary {
        /// The kind of deployment.
        noun: Noun,
        /// The deployed name.
        name: Name,
        /// The canary.
        version: Version,
    },
    /// The deletion of a shadow was requested.
    #[error("version {version} of {name} is the shadow; end it first: weir rollback {name}")]
    IsShadow {
        /// The kind of deployment.
        noun: Noun,
        /// The deployed name.
        name: Name,
        /// The shadow.
        version: Version,
    },
    /// The name has no shadow.
    #[error(
        "{0} {1} has no shadow; deploy one with a percentage of the calls: weir deploy {1} --shadow PERCENT"
    )]
    NoShadow(Noun, Name),
    /// The name has no canary, or not the expected one.
    #[error("{0} {1} has no canary; deploy one with a share of the calls: weir deploy {1} --canary PERCENT")]
    NoCanary(Noun, Name),
    /// The version cannot share the calls of the active version, or get copies of them.
    #[error(
        "{0} {1} cannot have this canary or shadow beside its active version: {2}; deploy it without --canary and --shadow"
    )]
    UnfitVersion(Noun, Name, String),
    /// A rollback was requested, and no version precedes the active version.
    #[error("{0} {1} has no earlier version to roll back to")]
    NothingEarlier(Noun, Name),
    /// The name has reached the limit of versions.
    #[error("{0} {1} has {VERSIONS_MAX} versions; delete old ones first")]
    TooManyVersions(Noun, Name),
    /// The name has a version with the last number.
    #[error("{0} {1} has version {max}, the last number; delete the {0} and deploy it again", max = u32::MAX)]
    NoNextVersion(Noun, Name),
    /// An alias names no version, or was not changed.
    #[error(transparent)]
    Alias(#[from] AliasError),
    /// A concurrent change of the same name was first.
    #[error("another request changed {0} {1} at the same time; try again")]
    Conflict(Noun, Name),
    /// A record in the datastore cannot be parsed.
    #[error("the registry entry {key} cannot be read: {why}")]
    Damaged {
        /// The record's key.
        key: Key,
        /// The reason why the record cannot be parsed.
        why: String,
    },
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The change was not completed, because it panicked or the node stopped.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

type Tenants<K> = HashMap<TenantId, BTreeMap<Name, Arc<RegistryEntry<K>>>>;

/// The deployments of one kind, for all tenants.
pub struct Registry<K: DeploymentKind = FunctionParts> {
    datastore: Arc<dyn Datastore>,
    kind: K,
    tenants: RwLock<Tenants<K>>,
    /// Records that could not be read.
    damaged: Mutex<Vec<DamagedRecord>>,
    /// Deleted names with the revisions of their deletions, kept until no older events can arrive.
    deleted: Mutex<HashMap<(TenantId, Name), Revision>>,
    changes: Changes,
    /// Serialises changes on this node; the head's revision fences changes of other nodes.
    turn: Arc<Semaphore>,
    /// The revision of the datastore that memory reflects.
    heard: Heard,
}

/// A record that could not be read.
#[derive(Debug, Clone)]
struct DamagedRecord {
    key: Key,
    why: String,
}

/// The datastore's records of one name.
struct StoredName<R> {
    /// The head, if it can be read.
    head: Option<ActiveVersion>,
    head_revision: Option<Revision>,
    records: BTreeMap<Version, R>,
}

impl<R> Default for StoredName<R> {
    fn default() -> Self {
        Self { head: None, head_revision: None, records: BTreeMap::new() }
    }
}

/// The datastore's records by name.
type AllStored<R> = BTreeMap<(TenantId, Name), StoredName<R>>;

/// The state of a name after a change; `None` if the change removes the name.
type After<R> = Option<(ActiveVersion, BTreeMap<Version, R>)>;

impl<K: DeploymentKind> Registry<K> {
    /// Reads all deployments.
    pub async fn open(
        datastore: Arc<dyn Datastore>,
        kind: K,
        changes: Changes,
    ) -> Result<(Arc<Self>, Revision), RegistryError> {
        let registry = Self {
            datastore,
            kind,
            tenants: RwLock::default(),
            damaged: Mutex::default(),
            deleted: Mutex::default(),
            changes,
            turn: Arc::new(Semaphore::new(1)),
            heard: Heard::default(),
        };
        let revision = registry.read_all().await?;
        Ok((Arc::new(registry), revision))
    }

    /// Replaces memory by the state of the datastore. Returns the revision that was read.
    async fn read_all(&self) -> Result<Revision, RegistryError> {
        let (entries, revision) = self.datastore.read_all(&record::prefix::<K>()?).await?;
        let mut all = AllStored::new();
        let mut damaged = Vec::new();
        for entry in entries {
            if let Err(RegistryError::Damaged { key, why }) = take_in(&mut all, &entry) {
                tracing::error!(%key, why, "unreadable record ignored");
                damaged.push(DamagedRecord { key, why });
            }
        }
        *self.lock_damaged() = damaged;
        for (tenant, name) in self.names() {
            if !all.contains_key(&(tenant.clone(), name.clone())) {
                self.publish(&tenant, &name, revision, None);
            }
        }
        for ((tenant, name), stored) in all {
            self.publish_stored(&tenant, &name, stored);
        }
        Ok(revision)
    }

    /// Refreshes one name from the datastore. Returns whether the datastore has the name.
    pub async fn refresh(&self, tenant: &TenantId, name: &Name) -> Result<bool, RegistryError> {
        let (entries, revision) = self.datastore.read_all(&record::named::<K>(tenant, name)?).await?;
        let mut all = AllStored::new();
        for entry in entries {
            // A damaged record was reported when it was first read.
            let _ = take_in(&mut all, &entry);
        }
        let stored = all.remove(&(tenant.clone(), name.clone()));
        let is_stored = stored.is_some();
        match stored {
            Some(stored) => self.publish_stored(tenant, name, stored),
            None if self.get(tenant, name.as_str()).is_some() => {
                self.publish(tenant, name, revision, None);
            }
            // Names that clients make up leave no trace in memory.
            None => {}
        }
        Ok(is_stored)
    }

    fn publish_stored(&self, tenant: &TenantId, name: &Name, stored: StoredName<K::Record>) {
        let StoredName { head, head_revision, records } = stored;
        // Head and versions change in one transaction, so versions without a head cannot occur.
        let Some(revision) = head_revision else { return };
        let newest = records.keys().next_back().map_or(0, |newest| newest.0);
        // Replaces a damaged head: the next change rewrites it.
        let head = head.unwrap_or(ActiveVersion::only(Version(newest), Version(newest.saturating_add(1))));
        self.publish(tenant, name, revision, Some((head, records)));
    }

    fn names(&self) -> Vec<(TenantId, Name)> {
        let tenants = self.tenants.read();
        let names = tenants.iter().flat_map(|(tenant, names)| names.keys().map(move |name| (tenant, name)));
        names.map(|(tenant, name)| (tenant.clone(), name.clone())).collect()
    }

    /// The deployment of that name, if any. Every call takes this path.
    pub fn get(&self, tenant: &TenantId, name: &str) -> Option<Arc<RegistryEntry<K>>> {
        let tenants = self.tenants.read();
        tenants.get(tenant)?.get(name).cloned()
    }

    /// One version that another node knows. Reads the datastore if this node does not know the
    /// version yet.
    pub async fn find_version(
        &self,
        tenant: &TenantId,
        name: &str,
        version: Version,
    ) -> Option<Arc<K::Deployment>> {
        let known = || self.get(tenant, name)?.versions.get(&version).cloned();
        if let Some(known) = known() {
            return Some(known);
        }
        self.refresh(tenant, &Name::new(name).ok()?).await.ok()?;
        known()
    }

    /// The revision of the datastore that memory reflects.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// All deployments of `tenant`, by name.
    pub fn list(&self, tenant: &TenantId) -> Vec<Arc<RegistryEntry<K>>> {
        let tenants = self.tenants.read();
        tenants.get(tenant).map(|names| names.values().cloned().collect()).unwrap_or_default()
    }

    /// The entry that a deployment of `record` under a name would create, without publishing it.
    pub fn try_out(&self, tenant: &TenantId, name: &Name, record: K::Record) -> RegistryEntry<K> {
        let version = record.version();
        let head = ActiveVersion::only(version, version);
        RegistryEntry::new(
            &self.kind,
            (tenant, name),
            (head, Revision(0)),
            BTreeMap::from([(version, record)]),
            None,
        )
    }

    /// The unreadable records of `tenant`, with the reasons.
    pub fn damaged(&self, tenant: &TenantId) -> Vec<String> {
        let own = format!("{}/{tenant}/", K::ROOT);
        let damaged = self.lock_damaged();
        let own = damaged.iter().filter(|damaged| damaged.key.as_str().starts_with(&own));
        own.map(|DamagedRecord { key, why }| format!("{key}: {why}")).collect()
    }

    /// Publishes the state of a name as of `revision`, unless a newer state is already visible:
    /// changes may arrive here in another order than they were committed.
    fn publish(
        &self,
        tenant: &TenantId,
        name: &Name,
        revision: Revision,
        after: After<K::Record>,
    ) -> Option<Arc<RegistryEntry<K>>> {
        let mut tenants = self.tenants.write();
        let names = tenants.entry(tenant.clone()).or_default();
        let before = names.get(name).cloned();
        if let Some(before) = &before
            && before.revision > revision
        {
            return Some(before.clone());
        }
        if before.is_none() && !self.outlives_deletion(tenant, name, revision) {
            return None;
        }
        let after = after.map(|(head, records)| {
            Arc::new(RegistryEntry::new(
                &self.kind,
                (tenant, name),
                (head, revision),
                records,
                before.as_deref(),
            ))
        });
        match &after {
            Some(entry) => {
                K::heads_changed(&entry.shared, &entry.head);
                names.insert(name.clone(), entry.clone());
            }
            None => {
                names.remove(name);
                self.lock_deleted().insert((tenant.clone(), name.clone()), revision);
            }
        }
        self.kind.count(tenants.values().map(BTreeMap::len).sum());
        after
    }

    fn lock_damaged(&self) -> MutexGuard<'_, Vec<DamagedRecord>> {
        self.damaged.lock()
    }
}

fn take_in<R: VersionRecord>(all: &mut AllStored<R>, entry: &Entry) -> Result<(), RegistryError> {
    let Parsed { tenant, name, value } = parse(entry)?;
    let stored = all.entry((tenant, name)).or_default();
    match value {
        EntryContents::Head(head) => {
            stored.head_revision = Some(entry.modified_at);
            stored.head = Some(head?);
        }
        EntryContents::Version(record) => {
            let record: Box<R> = record?;
            stored.records.insert(record.version(), *record);
        }
    }
    Ok(())
}
