//! Changes of versions that are not active: previews, shadows, and the start, promotion and end of
//! canaries.

use super::change::{Change, records_of};
use super::record::{ActiveVersion, encode};
use super::{DeploymentKind, Registry, RegistryEntry, RegistryError};
use crate::canary::{CanaryShare, ShadowShare};
use std::sync::Arc;
use weir_datastore::Transaction;
use weir_types::api::Canary;
use weir_types::{Name, TenantId, Version};

/// The role of a new version that does not become active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InactiveRole {
    /// Gets a share of the calls, in place of an earlier canary.
    Canary {
        /// The share.
        share: CanaryShare,
        /// The time of the start, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// Gets copies of calls, in place of an earlier shadow.
    Shadow {
        /// The percentage of the calls.
        share: ShadowShare,
        /// The time of the start, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// Gets only the calls that name the version.
    Preview,
}

impl<K: DeploymentKind> Registry<K> {
    /// Adds a version beside the active one. The first version of a name becomes active instead.
    pub async fn deploy_beside(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        held: impl Send + 'static,
        make: impl Fn(Version) -> K::Record + Send + Sync + 'static,
        role: InactiveRole,
    ) -> Result<Arc<K::Deployment>, RegistryError> {
        let make = Arc::new(make);
        self.carry_through(tenant, name, held, move |change| {
            let make = make.clone();
            async move { change.deploy(&*make, Some(role)).await }
        })
        .await
    }

    /// Changes the share of the canary `version`, and restarts its trial.
    pub async fn set_share(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Version,
        (share, now_ms): (CanaryShare, u64),
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.set_share(version, share, now_ms)).await
    }

    /// Changes the percentage of the shadow `version`, and restarts its comparison.
    pub async fn set_shadow_share(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Version,
        (share, now_ms): (ShadowShare, u64),
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.set_shadow_share(version, share, now_ms))
            .await
    }

    /// Makes the canary active, or `version`. A canary and a shadow end in any case.
    pub async fn promote_to(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        match version {
            Some(version) => {
                self.carry_through(tenant, name, (), move |change| change.promote_to(version)).await
            }
            None => self.promote(tenant, name, None).await,
        }
    }

    /// Makes the canary active. `expected` fails the change if the name has another canary by now.
    pub async fn promote(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        expected: Option<Canary>,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.promote(expected)).await
    }

    /// Ends `canary`: all calls use the active version again. Fails if the name has another canary
    /// by now.
    pub async fn end_canary(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        canary: Canary,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.end_canary(canary)).await
    }

    /// The canaries of all tenants, with the active versions beside them.
    pub fn canaries(&self) -> Vec<(TenantId, Arc<RegistryEntry<K>>)> {
        self.entries_with(|head| head.canary.is_some())
    }

    /// The shadows of all tenants, with the active versions beside them.
    pub fn shadows(&self) -> Vec<(TenantId, Arc<RegistryEntry<K>>)> {
        self.entries_with(|head| head.shadow.is_some())
    }

    fn entries_with(
        &self,
        is_wanted: impl Fn(&ActiveVersion) -> bool,
    ) -> Vec<(TenantId, Arc<RegistryEntry<K>>)> {
        let tenants = self.tenants.read();
        let entries =
            tenants.iter().flat_map(|(tenant, names)| names.values().map(move |entry| (tenant, entry)));
        let wanted = entries.filter(|(_, entry)| is_wanted(&entry.head));
        wanted.map(|(tenant, entry)| (tenant.clone(), entry.clone())).collect()
    }
}

impl<K: DeploymentKind> Change<K> {
    /// The head after the deployment of version `next` beside `current`.
    pub(super) fn head_with(
        &self,
        current: Option<&RegistryEntry<K>>,
        record: &K::Record,
        role: Option<InactiveRole>,
    ) -> Result<ActiveVersion, RegistryError> {
        let version = super::VersionRecord::version(record);
        let next = version.next().ok_or_else(|| RegistryError::NoNextVersion(K::NOUN, self.name.clone()))?;
        let Some(entry) = current else {
            return Ok(ActiveVersion::only(version, next));
        };
        let head = ActiveVersion { next, ..entry.head.clone() };
        match role {
            None => {
                let previous = Some(head.active);
                Ok(ActiveVersion { active: version, previous, canary: None, shadow: None, ..head })
            }
            Some(InactiveRole::Preview) => Ok(head),
            Some(InactiveRole::Canary { share, now_ms }) => {
                self.check_beside_active(entry, record, K::check_canary)?;
                Ok(ActiveVersion { canary: Some(share.start(version, now_ms)), ..head })
            }
            Some(InactiveRole::Shadow { share, now_ms }) => {
                self.check_beside_active(entry, record, K::check_shadow)?;
                Ok(ActiveVersion { shadow: Some(share.start(version, now_ms)), ..head })
            }
        }
    }

    fn check_beside_active(
        &self,
        entry: &RegistryEntry<K>,
        record: &K::Record,
        check: impl Fn(&K::Record, &K::Record) -> Result<(), String>,
    ) -> Result<(), RegistryError> {
        let Some(active) = entry.active() else { return Ok(()) };
        check(K::record(active), record)
            .map_err(|why| RegistryError::UnfitVersion(K::NOUN, self.name.clone(), why))
    }

    async fn set_shadow_share(
        self,
        version: Version,
        share: ShadowShare,
        now_ms: u64,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let entry = self.require()?;
        let shadow = entry.head.shadow.filter(|shadow| shadow.version == version);
        shadow.ok_or_else(|| RegistryError::NoShadow(K::NOUN, self.name.clone()))?;
        let head = ActiveVersion { shadow: Some(share.start(version, now_ms)), ..entry.head.clone() };
        self.commit_head(&entry, head).await
    }

    async fn set_share(
        self,
        version: Version,
        share: CanaryShare,
        now_ms: u64,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let entry = self.require()?;
        entry.head.canary.filter(|canary| canary.version == version).ok_or_else(|| self.no_canary())?;
        let head = ActiveVersion { canary: Some(share.start(version, now_ms)), ..entry.head.clone() };
        self.commit_head(&entry, head).await
    }

    async fn promote(self, expected: Option<Canary>) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let entry = self.require()?;
        let canary = entry.head.canary.filter(|canary| expected.is_none_or(|expected| expected == *canary));
        let canary = canary.ok_or_else(|| self.no_canary())?;
        // An unreadable record has no version in memory.
        entry.require(canary.version)?;
        let head = ActiveVersion {
            active: canary.version,
            previous: Some(entry.head.active),
            canary: None,
            shadow: None,
            ..entry.head.clone()
        };
        self.commit_head(&entry, head).await
    }

    async fn promote_to(self, version: Version) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let entry = self.require()?;
        entry.require(version)?;
        let previous = match entry.head.active == version {
            true => entry.head.previous,
            false => Some(entry.head.active),
        };
        let head =
            ActiveVersion { active: version, previous, canary: None, shadow: None, ..entry.head.clone() };
        self.commit_head(&entry, head).await
    }

    async fn end_canary(self, canary: Canary) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let entry = self.require()?;
        if entry.head.canary != Some(canary) {
            return Err(self.no_canary());
        }
        self.commit_head(&entry, ActiveVersion { canary: None, ..entry.head.clone() }).await
    }

    /// Commits a change of the head alone.
    pub(super) async fn commit_head(
        self,
        entry: &Arc<RegistryEntry<K>>,
        head: ActiveVersion,
    ) -> Result<Arc<RegistryEntry<K>>, RegistryError> {
        let writes = Transaction::new().put(self.head_key()?, encode(&head));
        let changed = self.commit(Some(entry), writes, Some((head, records_of(Some(entry))))).await?;
        changed.ok_or(RegistryError::NotThere(K::NOUN, self.name))
    }

    fn no_canary(&self) -> RegistryError {
        RegistryError::NoCanary(K::NOUN, self.name.clone())
    }
}
