//! A name's deployments in memory, and the trait for the differences between functions and
//! workflows.

use super::RegistryError;
use super::record::{ActiveVersion, VersionRecord};
use crate::canary::Split;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use weir_datastore::Revision;
use weir_types::{Name, TenantId, Version};

/// A kind of versioned deployment.
pub trait DeploymentKind: Send + Sync + Sized + 'static {
    /// The noun for error messages.
    const NOUN: Noun;
    /// The first segment of its keys.
    const ROOT: &'static str;

    /// The datastore's record of a version.
    type Record: VersionRecord;
    /// A version in memory.
    type Deployment: Send + Sync + 'static;
    /// The state that all versions of a name share, kept across changes.
    type Shared: Clone + Send + Sync + 'static;

    /// Creates the shared state of a new name.
    fn share(&self, tenant: &TenantId, name: &Name) -> Self::Shared;

    /// Creates the in-memory form of a new version.
    fn deployment(
        &self,
        tenant: &TenantId,
        name: &Name,
        record: Self::Record,
        shared: &Self::Shared,
    ) -> Self::Deployment;

    /// The record of a version.
    fn record(deployment: &Self::Deployment) -> &Self::Record;

    /// Refuses a version that cannot share the calls of the active version, with the reason.
    fn check_canary(_active: &Self::Record, _canary: &Self::Record) -> Result<(), String> {
        Ok(())
    }

    /// Refuses a version that cannot run copies of calls of the active version, with the reason.
    fn check_shadow(_active: &Self::Record, _shadow: &Self::Record) -> Result<(), String> {
        Ok(())
    }

    /// Handles a change of the versions that calls use.
    fn heads_changed(_shared: &Self::Shared, _head: &ActiveVersion) {}

    /// Reports the current number of names.
    fn count(&self, names: usize);

    /// Handles a version that another node has deployed.
    fn heard_of(&self, _record: &Self::Record) {}

    /// Handles the removal of versions by another node.
    fn removed_elsewhere(&self) {}
}

/// The noun for a kind of deployment, in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noun {
    /// A function: a deployed component.
    Function,
    /// A workflow: a deployed document of steps.
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

/// The state of a name at one revision of the registry. A change creates a new entry; running calls
/// keep theirs.
pub struct RegistryEntry<K: DeploymentKind> {
    /// The name.
    pub name: Name,
    /// The active version, and the number of the next version.
    pub head: ActiveVersion,
    pub(crate) revision: Revision,
    /// All versions, by number.
    pub versions: BTreeMap<Version, Arc<K::Deployment>>,
    /// The state that all versions share.
    pub shared: K::Shared,
    /// The split of the calls, while there is a canary.
    split: Option<Arc<Split>>,
}

impl<K: DeploymentKind> RegistryEntry<K> {
    pub(super) fn new(
        kind: &K,
        (tenant, name): (&TenantId, &Name),
        (head, revision): (ActiveVersion, Revision),
        records: BTreeMap<Version, K::Record>,
        before: Option<&Self>,
    ) -> Self {
        let shared = before.map_or_else(|| kind.share(tenant, name), |before| before.shared.clone());
        let deployment = |(version, record): (Version, K::Record)| {
            let same = before.and_then(|before| before.versions.get(&version)).cloned();
            (version, same.unwrap_or_else(|| Arc::new(kind.deployment(tenant, name, record, &shared))))
        };
        let versions = records.into_iter().map(deployment).collect();
        let split = Split::after(head.canary, before.and_then(|before| before.split.as_ref()));
        Self { name: name.clone(), head, revision, versions, shared, split }
    }

    /// The revision of the datastore at which the name got this state.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The active version of the name.
    pub fn active(&self) -> Option<&Arc<K::Deployment>> {
        self.versions.get(&self.head.active)
    }

    /// Returns `version`, or an error that lists the existing versions.
    pub fn require(&self, version: Version) -> Result<&Arc<K::Deployment>, RegistryError> {
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

    /// The version that one call uses: the active version, or the canary. All calls with the same
    /// `key` use the same version while the split lasts.
    pub fn choose(&self, key: Option<&[u8]>) -> Option<&Arc<K::Deployment>> {
        let canary = self.split.as_ref().and_then(|split| split.choose(self.name.as_str(), key));
        canary.and_then(|canary| self.versions.get(&canary)).or_else(|| self.active())
    }

    /// The version that gets a share of the calls, if any.
    pub fn canary(&self) -> Option<&Arc<K::Deployment>> {
        self.versions.get(&self.head.canary?.version)
    }

    /// The version that gets copies of calls, if any.
    pub fn shadow(&self) -> Option<&Arc<K::Deployment>> {
        self.versions.get(&self.head.shadow?.version)
    }

    /// Whether calls without a version, or copies of calls, may use `version`.
    pub fn serves(&self, version: Version) -> bool {
        let ActiveVersion { active, canary, shadow, .. } = &self.head;
        *active == version
            || canary.is_some_and(|canary| canary.version == version)
            || shadow.is_some_and(|shadow| shadow.version == version)
    }
}
