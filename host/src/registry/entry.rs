//! What goes by one name, in memory, and what functions and workflows differ in.

use super::RegistryError;
use super::record::{Head, Record};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use weir_datastore::Revision;
use weir_types::{Name, TenantId, Version};

/// A kind of thing that is deployed in versions.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// What one is called.
    const NOUN: Noun;
    /// The first segment of its keys.
    const ROOT: &'static str;

    /// What the datastore holds about a version.
    type Record: Record;
    /// A version in memory.
    type Deployment: Send + Sync + 'static;
    /// What the versions of a name have in common, from one change to the next.
    type Shared: Clone + Send + Sync + 'static;

    /// For a name that is new.
    fn share(&self, tenant: &TenantId, name: &Name) -> Self::Shared;

    /// A version that is new.
    fn deployment(
        &self,
        tenant: &TenantId,
        name: &Name,
        record: Self::Record,
        shared: &Self::Shared,
    ) -> Self::Deployment;

    /// The record of a version.
    fn record(deployment: &Self::Deployment) -> &Self::Record;

    /// There are so many names now.
    fn count(&self, names: usize);

    /// Another node has deployed a version.
    fn heard_of(&self, _record: &Self::Record) {}
}

/// What one of a kind is called, in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noun {
    Function,
    Workflow,
}

impl fmt::Display for Noun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Function => "function",
            Self::Workflow => "workflow",
        })
    }
}

/// One name as of one revision of the registry. Changes make a new entry; calls under way keep theirs.
pub(crate) struct Entry<K: Kind> {
    pub(crate) name: Name,
    pub(crate) head: Head,
    pub(crate) revision: Revision,
    pub(crate) versions: BTreeMap<Version, Arc<K::Deployment>>,
    pub(crate) shared: K::Shared,
}

impl<K: Kind> Entry<K> {
    pub(super) fn new(
        kind: &K,
        (tenant, name): (&TenantId, &Name),
        (head, revision): (Head, Revision),
        records: BTreeMap<Version, K::Record>,
        before: Option<&Self>,
    ) -> Self {
        let shared = before.map_or_else(|| kind.share(tenant, name), |before| before.shared.clone());
        let deployment = |(version, record): (Version, K::Record)| {
            let same = before.and_then(|before| before.versions.get(&version)).cloned();
            (version, same.unwrap_or_else(|| Arc::new(kind.deployment(tenant, name, record, &shared))))
        };
        let versions = records.into_iter().map(deployment).collect();
        Self { name: name.clone(), head, revision, versions, shared }
    }

    /// The version that the name points at.
    pub(crate) fn active(&self) -> Option<&Arc<K::Deployment>> {
        self.versions.get(&self.head.active)
    }

    /// `version`, or an error that lists those there are.
    pub(crate) fn require(&self, version: Version) -> Result<&Arc<K::Deployment>, RegistryError> {
        self.versions.get(&version).ok_or_else(|| {
            let have: Vec<_> = self.versions.keys().map(ToString::to_string).collect();
            RegistryError::NoVersion {
                noun: K::NOUN,
                name: self.name.clone(),
                version,
                have: have.join(", "),
            }
        })
    }
}
