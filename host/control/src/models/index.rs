//! The models of all tenants as known to this node, including unreadable ones.

use super::sharing::Sharing;
use super::{ModelEntry, ModelsError};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_datastore::Revision;
use weir_types::{ModelId, Name, TenantId, Version};

pub(super) type Versions = BTreeMap<Version, Arc<ModelEntry>>;

/// The models of all tenants as known to this node.
#[derive(Default)]
pub(super) struct KnownModels {
    pub(super) tenants: HashMap<TenantId, BTreeMap<Name, Versions>>,
    /// Models that could not be read.
    pub(super) damaged: BTreeMap<ModelId, DamagedModel>,
    pub(super) sharing: Sharing,
}

/// A model that could not be read.
pub(super) struct DamagedModel {
    pub(super) revision: Revision,
    pub(super) why: String,
    /// Whether a retry may help: the blob store may provide the files later.
    pub(super) may_heal: bool,
}

impl KnownModels {
    /// The requested version; without one, the newest. An error if the version is missing or
    /// damaged.
    pub(super) fn get(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let versions = self.versions(tenant, name);
        let entry = versions.and_then(|versions| match version {
            None => versions.values().next_back(),
            Some(version) => versions.get(&version),
        });
        if let Some(entry) = entry {
            return Ok(entry.clone());
        }
        let is_asked = |id: &ModelId| {
            (&id.tenant, &id.name) == (tenant, name) && version.is_none_or(|version| id.version == version)
        };
        if let Some((id, damaged)) = self.damaged.iter().rev().find(|(id, _)| is_asked(id)) {
            return Err(ModelsError::Damaged { id: id.clone(), why: damaged.why.clone() });
        }
        Err(match (versions, version) {
            (Some(versions), Some(version)) => {
                let have: Vec<_> = versions.keys().map(ToString::to_string).collect();
                ModelsError::NoVersion { name: name.clone(), version, have: have.join(", ") }
            }
            _ => ModelsError::NoModel(name.clone()),
        })
    }

    /// The versions of a model.
    pub(super) fn versions(&self, tenant: &TenantId, name: &Name) -> Option<&Versions> {
        self.tenants.get(tenant)?.get(name)
    }

    /// Every version of every model.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<ModelEntry>> {
        self.tenants.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values)
    }
}
