//! Changes of canaries and shadows: the share, promotion and end. A push starts them (`change.rs`).

use super::ModelEntry;
use super::change::name_outputs;
use super::head::{ModelHead, ModelRoles};
use super::index::{ModelVersions, StoredHead};
use super::record::{head_key, model_key};
use super::{ModelTrial, Models, ModelsError};
use crate::aliases::check_unused;
use crate::canary::{CanaryShare, ShadowShare, ShadowSlot};
use crate::registry::InactiveRole;
use std::sync::Arc;
use weir_datastore::{Commit, Compare, Key, Revision, Transaction};
use weir_types::api::{Aliases, Canary, Shadow};
use weir_types::{ContentHash, ModelId, ModelManifest, Name, TenantId, Version};

/// The number of retries of a change that conflicts with another node's change.
const CONFLICTS_MAX: usize = 5;

/// A change of the head of a model.
pub(super) struct HeadChange<T> {
    /// The head to write; `None`: the head stays the same.
    pub(super) head: Option<ModelHead>,
    /// A version that has to exist.
    pub(super) needs: Option<Version>,
    pub(super) result: T,
}

/// A model with a canary.
pub struct ModelCanary {
    /// The owner.
    pub tenant: TenantId,
    /// The model's name.
    pub name: Name,
    /// The active version.
    pub active: Version,
    /// The canary beside it.
    pub canary: Canary,
    /// The runs of both versions on this node.
    pub trial: Arc<ModelTrial>,
}

impl ModelCanary {
    fn new(tenant: &TenantId, name: &Name, versions: &ModelVersions) -> Option<Self> {
        let ModelRoles { active, canary, .. } = versions.roles();
        let active = active?;
        let canary = canary?;
        Some(Self {
            tenant: tenant.clone(),
            name: name.clone(),
            active,
            canary,
            trial: versions.trial().clone(),
        })
    }
}

/// A model with a shadow.
pub struct ModelShadow {
    /// The owner.
    pub tenant: TenantId,
    /// The model's name.
    pub name: Name,
    /// The active version.
    pub active: Version,
    /// The shadow beside it.
    pub shadow: Shadow,
    /// The copies on this node.
    pub slot: Arc<ShadowSlot>,
}

impl ModelShadow {
    fn new(tenant: &TenantId, name: &Name, versions: &ModelVersions) -> Option<Self> {
        let ModelRoles { active, shadow, .. } = versions.roles();
        Some(Self {
            tenant: tenant.clone(),
            name: name.clone(),
            active: active?,
            shadow: shadow?,
            slot: versions.shadow().clone(),
        })
    }
}

impl Models {
    /// The shadows of all tenants, with the active versions beside them.
    pub fn shadows(&self) -> Vec<ModelShadow> {
        let known = self.read_known();
        known
            .models()
            .filter_map(|(tenant, name, versions)| ModelShadow::new(tenant, name, versions))
            .collect()
    }

    /// The shadow of one model, if it has one.
    pub fn shadow(&self, tenant: &TenantId, name: &Name) -> Option<ModelShadow> {
        ModelShadow::new(tenant, name, self.read_known().versions(tenant, name)?)
    }

    /// Ends the shadow of a model.
    pub async fn end_shadow(self: &Arc<Self>, tenant: &TenantId, name: &Name) -> Result<(), ModelsError> {
        self.change_shadow(tenant, name, |_, head| ModelHead { shadow: None, ..head }, None).await
    }

    /// Copies this percentage of the inferences to the shadow `version`, and restarts its comparison
    /// if it had another.
    pub(super) async fn set_shadow_share(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Version,
        (share, now_ms): (ShadowShare, u64),
    ) -> Result<(), ModelsError> {
        match self.roles(tenant, name).shadow.filter(|shadow| shadow.version == version) {
            None => return Err(ModelsError::NotNewer { name: name.clone(), version }),
            Some(shadow) if share.is_of(shadow) => return Ok(()),
            Some(_) => {}
        }
        let set = move |current: Shadow, head| {
            let shadow = Some(share.start(current.version, now_ms));
            ModelHead { shadow, ..head }
        };
        self.change_shadow(tenant, name, set, Some(version)).await
    }

    /// Changes the head of a model with a shadow, which has to be `version` if that is given.
    async fn change_shadow(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        change: impl Fn(Shadow, ModelHead) -> ModelHead + Send + 'static,
        version: Option<Version>,
    ) -> Result<(), ModelsError> {
        let of = name.clone();
        self.change_head(tenant, name, move |roles, head| {
            let shadow =
                roles.shadow.filter(|shadow| version.is_none_or(|version| version == shadow.version));
            let shadow = shadow.ok_or_else(|| ModelsError::NoShadow(of.clone()))?;
            Ok(HeadChange { head: Some(change(shadow, head)), needs: None, result: () })
        })
        .await
    }

    /// The versions of a model with a role.
    pub fn roles(&self, tenant: &TenantId, name: &Name) -> ModelRoles {
        self.read_known().versions(tenant, name).map(ModelVersions::roles).unwrap_or_default()
    }

    /// The canaries of all tenants, with the active versions beside them.
    pub fn canaries(&self) -> Vec<ModelCanary> {
        let known = self.read_known();
        known
            .models()
            .filter_map(|(tenant, name, versions)| ModelCanary::new(tenant, name, versions))
            .collect()
    }

    /// The canary of one model, if it has one.
    pub fn canary(&self, tenant: &TenantId, name: &Name) -> Option<ModelCanary> {
        ModelCanary::new(tenant, name, self.read_known().versions(tenant, name)?)
    }

    /// Makes the canary active. `expected` fails the change if the model has another canary by now.
    /// Returns the canary that was promoted.
    pub async fn promote(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        expected: Option<Canary>,
    ) -> Result<Canary, ModelsError> {
        let models = self.clone();
        let owner = tenant.clone();
        let of = name.clone();
        self.change_canary(tenant, name, move |canary, head| {
            if expected.is_some_and(|expected| expected != canary) {
                return Err(ModelsError::NoCanary(of.clone()));
            }
            // A version that this node cannot read must not become active.
            models.get(&owner, &of, Some(canary.version))?;
            let previous = Some(head.active);
            Ok(ModelHead { active: canary.version, previous, canary: None, shadow: None, ..head })
        })
        .await
    }

    /// Makes `version` active. A canary and a shadow end in any case.
    pub async fn promote_to(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Version,
    ) -> Result<(), ModelsError> {
        // The head records the newest version, and a push on another node may not be known here yet:
        // that version would stay active.
        self.refresh(tenant, name).await?;
        let models = self.clone();
        let owner = tenant.clone();
        let of = name.clone();
        self.change_head(tenant, name, move |roles, head| {
            models.get(&owner, &of, Some(version))?;
            let newest = models.all_versions(&owner, &of).last().copied().unwrap_or(version);
            let newest = newest.max(head.newest);
            let previous = if roles.active == Some(version) { roles.previous } else { roles.active };
            let head = ModelHead { active: version, newest, previous, canary: None, shadow: None, ..head };
            Ok(HeadChange { head: Some(head), needs: Some(version), result: () })
        })
        .await
    }

    /// Ends `canary`: all runs use the active version again. Fails if the model has another canary by
    /// now.
    pub async fn end_canary(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        canary: Canary,
    ) -> Result<(), ModelsError> {
        let of = name.clone();
        let end = move |current: Canary, head| {
            if current != canary {
                return Err(ModelsError::NoCanary(of.clone()));
            }
            Ok(ModelHead { canary: None, ..head })
        };
        self.change_canary(tenant, name, end).await.map(drop)
    }

    /// Gives the canary `version` this share, and restarts its trial if it had another.
    pub(super) async fn set_share(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        version: Version,
        (share, now_ms): (CanaryShare, u64),
    ) -> Result<(), ModelsError> {
        let roles = self.roles(tenant, name);
        match roles.canary.filter(|canary| canary.version == version) {
            None => return Err(ModelsError::NotNewer { name: name.clone(), version }),
            Some(canary) if share.is_of(canary) => return Ok(()),
            Some(_) => {}
        }
        let of = name.clone();
        let set = move |current: Canary, head| {
            if current.version != version {
                return Err(ModelsError::NoCanary(of.clone()));
            }
            Ok(ModelHead { canary: Some(share.start(version, now_ms)), ..head })
        };
        self.change_canary(tenant, name, set).await.map(drop)
    }

    /// The existing version that a push of these contents and settings with `role` would repeat: the
    /// canary, the shadow, or for a preview the newest equal version.
    pub(super) fn same_content(
        &self,
        tenant: &TenantId,
        name: &Name,
        role: InactiveRole,
        (digest, manifest): (ContentHash, &ModelManifest),
    ) -> Option<Version> {
        let is_same = |version: &Version| {
            let Ok(entry) = self.get(tenant, name, Some(*version)) else { return false };
            let mut manifest = manifest.clone();
            let is_named = name_outputs(&mut manifest, &entry.source.prepared).is_ok();
            is_named && entry.record.digest == digest && entry.record.manifest == manifest
        };
        match role {
            InactiveRole::Canary { .. } => {
                self.roles(tenant, name).canary.map(|canary| canary.version).filter(is_same)
            }
            InactiveRole::Shadow { .. } => {
                self.roles(tenant, name).shadow.map(|shadow| shadow.version).filter(is_same)
            }
            InactiveRole::Preview => self.versions(tenant, name).into_iter().rev().find(is_same),
        }
    }

    /// Changes the head of a model with a canary. Returns the canary before the change.
    async fn change_canary(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        change: impl Fn(Canary, ModelHead) -> Result<ModelHead, ModelsError> + Send + 'static,
    ) -> Result<Canary, ModelsError> {
        let of = name.clone();
        self.change_head(tenant, name, move |roles, head| {
            // Without a head, there is no canary.
            let canary = roles.canary.ok_or_else(|| ModelsError::NoCanary(of.clone()))?;
            Ok(HeadChange { head: Some(change(canary, head)?), needs: None, result: canary })
        })
        .await
    }

    /// Changes the head of a model in one transaction. A model without a head gets one. After a
    /// conflict with another node's change, applies `change` to the new state.
    pub(super) async fn change_head<T: Send + 'static>(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        change: impl Fn(ModelRoles, ModelHead) -> Result<HeadChange<T>, ModelsError> + Send + 'static,
    ) -> Result<T, ModelsError> {
        let turn = self.turn(name).await?;
        let models = self.clone();
        let tenant = tenant.clone();
        let name = name.clone();
        let changing = async move {
            let _turn = turn;
            let mut conflicts = 0;
            loop {
                // Before the rest: a change of another node that arrives meanwhile is a conflict.
                let stored = models.stored_head(&tenant, &name);
                let roles = models.roles(&tenant, &name);
                let head = match stored.head {
                    Some(head) => head,
                    None => models.first_head(&tenant, &name, roles)?,
                };
                let HeadChange { head, needs, result } = change(roles, head)?;
                let Some(head) = head else { return Ok(result) };
                match models.commit_head(&tenant, &name, (stored.revision, needs), head).await {
                    Err(ModelsError::Conflict(_)) if conflicts < CONFLICTS_MAX => conflicts += 1,
                    committed => return committed.map(|()| result),
                }
                models.refresh(&tenant, &name).await?;
            }
        };
        self.changes.carry_through(changing).await?
    }

    /// The head of a model without one: the newest version stays active.
    fn first_head(
        &self,
        tenant: &TenantId,
        name: &Name,
        ModelRoles { active, previous, .. }: ModelRoles,
    ) -> Result<ModelHead, ModelsError> {
        let active = active.ok_or_else(|| ModelsError::NoModel(name.clone()))?;
        // An unreadable version may be newer. Its repair must not make it the active version.
        let newest = self.all_versions(tenant, name).last().copied().unwrap_or(active);
        Ok(ModelHead { active, newest, previous, canary: None, shadow: None, aliases: Aliases::new() })
    }

    /// Writes a head unless it has changed since the revision `before`. Fails if the version `needs`
    /// does not exist any more.
    async fn commit_head(
        &self,
        tenant: &TenantId,
        name: &Name,
        (before, needs): (Option<Revision>, Option<Version>),
        head: ModelHead,
    ) -> Result<(), ModelsError> {
        let key = head_key(tenant, name)?;
        let mut writes = Transaction::new().when(fence(&key, before)).put(key, head.encode());
        if let Some(version) = needs {
            let id = ModelId { tenant: tenant.clone(), name: name.clone(), version };
            writes = writes.when(Compare::Exists(model_key(&id)?));
        }
        match self.datastore.commit(writes).await? {
            Commit::Done(revision) => {
                self.set_head(tenant, name, StoredHead { revision: Some(revision), head: Some(head) });
                Ok(())
            }
            Commit::Conflict => Err(ModelsError::Conflict(name.clone())),
        }
    }

    /// The head that a push of `version` writes, if any. `newest` is the newest version so far.
    pub(super) fn head_for_push(
        &self,
        tenant: &TenantId,
        name: &Name,
        (version, newest): (Version, Option<Version>),
        role: Option<InactiveRole>,
    ) -> Result<Option<ModelHead>, ModelsError> {
        let stored = self.stored_head(tenant, name).head;
        let is_newest = newest.is_none_or(|newest| version > newest);
        let is_known = stored.as_ref().is_some_and(|head| version <= head.newest);
        let Some(role) = role else {
            // The head knows a higher version, which was deleted.
            let head = stored.filter(|head| is_newest && version <= head.newest);
            return Ok(head.map(|head| ModelHead {
                newest: Version(version.0.saturating_sub(1)),
                canary: None,
                shadow: None,
                ..head
            }));
        };
        let ModelRoles { active, previous, mut canary, mut shadow } = self.roles(tenant, name);
        match role {
            // The version does not become active in any case.
            InactiveRole::Preview if !is_newest || is_known => return Ok(None),
            InactiveRole::Preview => {}
            InactiveRole::Canary { .. } | InactiveRole::Shadow { .. } if !is_newest || is_known => {
                return Err(ModelsError::NotNewer { name: name.clone(), version });
            }
            InactiveRole::Canary { share, now_ms } => canary = Some(share.start(version, now_ms)),
            InactiveRole::Shadow { share, now_ms } => shadow = Some(share.start(version, now_ms)),
        }
        // The first version gets all runs.
        let Some(active) = active else { return Ok(None) };
        let aliases = stored.map(|head| head.aliases).unwrap_or_default();
        Ok(Some(ModelHead { active, newest: version, previous, canary, shadow, aliases }))
    }

    /// Checks whether a version may be deleted. The last active version, a canary, a shadow, the active
    /// version beside them, and a version with an alias may not.
    pub(super) fn may_delete(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Version,
    ) -> Result<(), ModelsError> {
        let known = self.read_known();
        let Some(versions) = known.versions(tenant, name) else { return Ok(()) };
        versions.aliases().map_or(Ok(()), |aliases| check_unused(name.as_str(), aliases, version))?;
        let roles = versions.roles();
        if (roles.canary.is_some() || roles.shadow.is_some()) && roles.serves(version) {
            return Err(ModelsError::InTrial { name: name.clone(), version });
        }
        let mut rest = versions.entries().clone();
        rest.remove(&version);
        let is_left = rest.is_empty() || versions.roles_of(&rest).active.is_some();
        if is_left { Ok(()) } else { Err(ModelsError::LastActive { name: name.clone(), version }) }
    }

    /// The revision of the registry that has the version and its role.
    pub fn revision(&self, entry: &ModelEntry) -> Revision {
        let ModelId { tenant, name, .. } = entry.source.id();
        let head = self.stored_head(tenant, name).revision;
        head.unwrap_or_default().max(Revision(entry.source.key.generation))
    }

    pub(super) fn stored_head(&self, tenant: &TenantId, name: &Name) -> StoredHead {
        self.read_known().versions(tenant, name).map(ModelVersions::head).cloned().unwrap_or_default()
    }
}

/// The condition that a head was not changed since it was read at `revision`.
pub(super) fn fence(key: &Key, revision: Option<Revision>) -> Compare {
    match revision {
        Some(revision) => Compare::ModifiedAt(key.clone(), revision),
        None => Compare::Absent(key.clone()),
    }
}
