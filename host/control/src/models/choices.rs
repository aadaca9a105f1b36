//! The versions of models that one call uses, while models have canaries or aliases.

use super::{ModelEntry, Models, ModelsError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_types::{ModelRef, Name, TenantId, Version, VersionRef};

/// The versions of the models that a call names without a version or by an alias. Each is chosen
/// once, on the node that received the call, so that a call uses one version of a model wherever it
/// runs: the node that runs it may not know the alias yet.
#[derive(Debug, Default)]
pub struct ModelChoices {
    /// The client's key, with which all its calls use the same version.
    key: Option<Box<[u8]>>,
    chosen: Mutex<BTreeMap<ModelRef, Version>>,
}

impl ModelChoices {
    /// The choices that another node has made.
    pub fn from_chosen(chosen: BTreeMap<ModelRef, Version>) -> Self {
        Self { key: None, chosen: Mutex::new(chosen) }
    }

    /// The versions that were chosen so far.
    pub fn chosen(&self) -> BTreeMap<ModelRef, Version> {
        self.chosen.lock().clone()
    }
}

impl Models {
    /// The choices of a call that this node received; `None` if no model has a canary or an alias, so
    /// that all calls use the active versions.
    pub fn choices(&self, key: Option<&[u8]>) -> Option<Arc<ModelChoices>> {
        let has_choices = self.with_choices.load(Ordering::Relaxed) > 0;
        has_choices.then(|| Arc::new(ModelChoices { key: key.map(Box::from), chosen: Mutex::default() }))
    }

    /// The version for one run: the requested one, or else the active version or the canary. All runs
    /// with the same `key` use the same version.
    pub fn for_run(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
        key: Option<&[u8]>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        self.read_known().find(tenant, name, version, |versions| versions.choose(name, key))
    }

    /// The version that `wanted` names for a call with `choices`. A chosen version that was removed is
    /// replaced by the version that `wanted` names now.
    pub fn for_call(
        &self,
        tenant: &TenantId,
        wanted: &ModelRef,
        choices: Option<&ModelChoices>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let ModelRef { name, version } = wanted;
        let now = || self.get(tenant, name, self.resolve(tenant, name, version.as_ref())?);
        let is_numbered = matches!(version, Some(VersionRef::Number(_)));
        let Some(choices) = choices.filter(|_| !is_numbered) else { return now() };
        let mut chosen = choices.chosen.lock();
        if let Some(version) = chosen.get(wanted) {
            return self.get(tenant, name, Some(*version)).or_else(|_| now());
        }
        let entry = match version {
            None => self.for_run(tenant, name, None, choices.key.as_deref())?,
            Some(_) => now()?,
        };
        chosen.insert(wanted.clone(), entry.record.version);
        Ok(entry)
    }
}
