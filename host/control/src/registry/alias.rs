//! Aliases of the versions of functions and workflows.

use super::change::Change;
use super::record::ActiveVersion;
use super::{DeploymentKind, Registry, RegistryEntry, RegistryError};
use crate::aliases::{AliasChange, AliasView};
use std::sync::Arc;
use weir_types::api::AliasTarget;
use weir_types::{Alias, Name, TenantId, Version, VersionRef};

impl<K: DeploymentKind> RegistryEntry<K> {
    /// The number of a version; `None` without a version. Fails if an alias names no version.
    pub fn resolve(&self, version: Option<&VersionRef>) -> Result<Option<Version>, RegistryError> {
        let canary = self.head.canary.map(|canary| canary.version);
        let view = AliasView { set: &self.head.aliases, active: Some(self.head.active), canary };
        Ok(view.resolve(self.name.as_str(), version)?)
    }
}

impl<K: DeploymentKind> Registry<K> {
    /// Changes an alias. Returns the version that it names then; `None` after its removal.
    pub async fn change_alias(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        alias: Alias,
        (to, now_ms): (AliasChange, u64),
    ) -> Result<Option<AliasTarget>, RegistryError> {
        self.carry_through(tenant, name, (), move |change| change.alias(alias.clone(), to.clone(), now_ms))
            .await
    }
}

impl<K: DeploymentKind> Change<K> {
    async fn alias(
        self,
        alias: Alias,
        to: AliasChange,
        now_ms: u64,
    ) -> Result<Option<AliasTarget>, RegistryError> {
        let entry = self.require()?;
        if let AliasChange::Set(version) = to {
            entry.require(version)?;
        }
        let exists = |version| entry.versions.contains_key(&version);
        let (aliases, target) = to.apply(self.name.as_str(), &alias, &entry.head.aliases, exists, now_ms)?;
        if aliases != entry.head.aliases {
            let head = ActiveVersion { aliases, ..entry.head.clone() };
            self.commit_head(&entry, head).await?;
        }
        Ok(target)
    }
}
