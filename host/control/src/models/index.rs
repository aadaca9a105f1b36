//! The models of all tenants as known to this node, including unreadable ones.

use super::head::{ModelHead, ModelRoles};
use super::sharing::Sharing;
use super::trial::ModelTrial;
use super::{ModelEntry, ModelsError};
use crate::canary::{ShadowSlot, Split};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_datastore::Revision;
use weir_types::api::Aliases;
use weir_types::{ModelId, Name, TenantId, Version};

/// The models of all tenants as known to this node.
#[derive(Default)]
pub(super) struct KnownModels {
    pub(super) tenants: HashMap<TenantId, BTreeMap<Name, ModelVersions>>,
    /// Models that could not be read.
    pub(super) damaged: BTreeMap<ModelId, DamagedModel>,
    pub(super) sharing: Sharing,
}

/// The versions of one model, with their roles. May have a head before this node has read a version.
pub(super) struct ModelVersions {
    entries: BTreeMap<Version, Arc<ModelEntry>>,
    head: StoredHead,
    roles: ModelRoles,
    /// The split of the runs, while there is a canary.
    split: Option<Arc<Split>>,
    trial: Arc<ModelTrial>,
    /// Chooses the inferences to copy, while there is a shadow.
    shadow: Arc<ShadowSlot>,
}

/// The datastore's record of the active version.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredHead {
    /// `None`: there is no record.
    pub(super) revision: Option<Revision>,
    /// `None`: there is no record, or it cannot be read.
    pub(super) head: Option<ModelHead>,
}

/// A model that could not be read.
pub(super) struct DamagedModel {
    pub(super) revision: Revision,
    pub(super) why: String,
    /// Whether a retry may help: the blob store may provide the files later.
    pub(super) may_heal: bool,
}

impl ModelVersions {
    pub(super) fn new(trial: ModelTrial, shadow: ShadowSlot) -> Self {
        Self {
            entries: BTreeMap::new(),
            head: StoredHead::default(),
            roles: ModelRoles::default(),
            split: None,
            trial: Arc::new(trial),
            shadow: Arc::new(shadow),
        }
    }

    /// All versions, by number.
    pub(super) fn entries(&self) -> &BTreeMap<Version, Arc<ModelEntry>> {
        &self.entries
    }

    pub(super) fn head(&self) -> &StoredHead {
        &self.head
    }

    /// The aliases that were set.
    pub(super) fn aliases(&self) -> Option<&Aliases> {
        self.head.head.as_ref().map(|head| &head.aliases)
    }

    pub(super) fn roles(&self) -> ModelRoles {
        self.roles
    }

    /// Whether calls choose among versions: by a canary or by aliases.
    pub(super) fn has_choices(&self) -> bool {
        self.roles.canary.is_some() || self.aliases().is_some_and(|aliases| !aliases.is_empty())
    }

    /// The roles of the versions if these were all.
    pub(super) fn roles_of(&self, entries: &BTreeMap<Version, Arc<ModelEntry>>) -> ModelRoles {
        ModelRoles::new(entries, self.head.head.as_ref())
    }

    pub(super) fn trial(&self) -> &Arc<ModelTrial> {
        &self.trial
    }

    pub(super) fn shadow(&self) -> &Arc<ShadowSlot> {
        &self.shadow
    }

    /// Whether there is neither a version nor a head.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.head.revision.is_none()
    }

    /// The version that runs use if they name none.
    pub(super) fn active(&self) -> Option<&Arc<ModelEntry>> {
        self.entries.get(&self.roles.active?)
    }

    /// The version for one run or call: the active version, or the canary.
    pub(super) fn choose(&self, name: &Name, key: Option<&[u8]>) -> Option<&Arc<ModelEntry>> {
        let canary = self.split.as_ref().and_then(|split| split.choose(name.as_str(), key));
        canary.and_then(|canary| self.entries.get(&canary)).or_else(|| self.active())
    }

    /// Adds or replaces a version, with the head that was written with it.
    pub(super) fn insert(&mut self, entry: Arc<ModelEntry>, head: Option<StoredHead>) {
        if let Some(head) = head {
            self.head = head;
        }
        self.entries.insert(entry.record.version, entry);
        self.update();
    }

    pub(super) fn remove(&mut self, version: Version) -> Option<Arc<ModelEntry>> {
        let removed = self.entries.remove(&version);
        self.update();
        removed
    }

    pub(super) fn set_head(&mut self, head: StoredHead) {
        self.head = head;
        self.update();
    }

    fn update(&mut self) {
        self.roles = self.roles_of(&self.entries);
        self.split = Split::after(self.roles.canary, self.split.as_ref());
        self.trial.set(self.roles);
        let shadow = self.roles.shadow.filter(|_| self.roles.active.is_some());
        self.shadow.set(shadow, self.roles.active.unwrap_or(Version(0)));
    }
}

impl KnownModels {
    /// The requested version; without one, the active version. An error if the version is missing or
    /// damaged.
    pub(super) fn get(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        self.find(tenant, name, version, ModelVersions::active)
    }

    /// Like [`get`](Self::get), but without a version, `choose` chooses one.
    pub(super) fn find(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
        choose: impl FnOnce(&ModelVersions) -> Option<&Arc<ModelEntry>>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let versions = self.versions(tenant, name);
        let entry = versions.and_then(|versions| match version {
            None => choose(versions),
            Some(version) => versions.entries.get(&version),
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
        let have: Vec<_> = versions
            .into_iter()
            .flat_map(|versions| versions.entries.keys().map(ToString::to_string))
            .collect();
        Err(match version {
            _ if have.is_empty() => ModelsError::NoModel(name.clone()),
            None => ModelsError::NoActive(name.clone()),
            Some(version) => ModelsError::NoVersion { name: name.clone(), version, have: have.join(", ") },
        })
    }

    /// The versions of a model.
    pub(super) fn versions(&self, tenant: &TenantId, name: &Name) -> Option<&ModelVersions> {
        self.tenants.get(tenant)?.get(name)
    }

    /// The models of all tenants.
    pub(super) fn models(&self) -> impl Iterator<Item = (&TenantId, &Name, &ModelVersions)> {
        let tenants = self.tenants.iter();
        tenants
            .flat_map(|(tenant, models)| models.iter().map(move |(name, versions)| (tenant, name, versions)))
    }

    /// Every version of every model.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<ModelEntry>> {
        self.models().flat_map(|(_, _, versions)| versions.entries.values())
    }
}
