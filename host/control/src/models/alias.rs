//! Aliases of the versions of models.

use super::canary::HeadChange;
use super::head::ModelHead;
use super::index::ModelVersions;
use super::{Models, ModelsError};
use crate::aliases::{AliasChange, AliasView};
use std::sync::Arc;
use weir_types::api::{AliasTarget, Aliases};
use weir_types::{Alias, Name, TenantId, Version, VersionRef};

impl Models {
    /// The number of a version; `None` without a version. Fails if an alias names no version.
    pub fn resolve(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<&VersionRef>,
    ) -> Result<Option<Version>, ModelsError> {
        if !matches!(version, Some(VersionRef::Alias(_))) {
            return Ok(version.and_then(VersionRef::number));
        }
        let known = self.read_known();
        let versions = known.versions(tenant, name).filter(|versions| !versions.entries().is_empty());
        let versions = versions.ok_or_else(|| ModelsError::NoModel(name.clone()))?;
        let roles = versions.roles();
        let none = Aliases::new();
        let set = versions.aliases().unwrap_or(&none);
        let view = AliasView { set, active: roles.active, canary: roles.canary.map(|canary| canary.version) };
        Ok(view.resolve(name.as_str(), version)?)
    }

    /// The aliases of a model that were set.
    pub fn aliases(&self, tenant: &TenantId, name: &Name) -> Aliases {
        let known = self.read_known();
        known.versions(tenant, name).and_then(ModelVersions::aliases).cloned().unwrap_or_default()
    }

    /// Changes an alias. Returns the version that it names then; `None` after its removal.
    pub async fn change_alias(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        alias: Alias,
        (to, now_ms): (AliasChange, u64),
    ) -> Result<Option<AliasTarget>, ModelsError> {
        let models = self.clone();
        let owner = tenant.clone();
        let of = name.clone();
        self.change_head(tenant, name, move |_, head| {
            if let AliasChange::Set(version) = to {
                models.get(&owner, &of, Some(version))?;
            }
            let exists = |version| models.get(&owner, &of, Some(version)).is_ok();
            let (aliases, result) = to.apply(of.as_str(), &alias, &head.aliases, exists, now_ms)?;
            let is_changed = aliases != head.aliases;
            let head = is_changed.then_some(ModelHead { aliases, ..head });
            Ok(HeadChange { head, needs: result.map(|target| target.version), result })
        })
        .await
    }
}
