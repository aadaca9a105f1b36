//! The versions of models that one call uses, while models have canaries.

use super::{ModelEntry, Models, ModelsError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_types::{Name, TenantId, Version};

/// The versions of the models that a call names without a version. Each is chosen once, on the node
/// that received the call, so that a call uses one version of a model wherever it runs.
#[derive(Debug, Default)]
pub struct ModelChoices {
    /// The client's key, with which all its calls use the same version.
    key: Option<Box<[u8]>>,
    chosen: Mutex<BTreeMap<Name, Version>>,
}

impl ModelChoices {
    /// The choices that another node has made.
    pub fn from_chosen(chosen: BTreeMap<Name, Version>) -> Self {
        Self { key: None, chosen: Mutex::new(chosen) }
    }

    /// The versions that were chosen so far.
    pub fn chosen(&self) -> BTreeMap<Name, Version> {
        self.chosen.lock().clone()
    }
}

impl Models {
    /// The choices of a call that this node received; `None` if no model has a canary, so that all
    /// calls use the active versions.
    pub fn choices(&self, key: Option<&[u8]>) -> Option<Arc<ModelChoices>> {
        let has_canaries = self.canaries.load(std::sync::atomic::Ordering::Relaxed) > 0;
        has_canaries.then(|| Arc::new(ModelChoices { key: key.map(Box::from), chosen: Mutex::default() }))
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

    /// The version for a call with `choices`. A chosen version that was removed is replaced by the
    /// active version.
    pub fn for_call(
        &self,
        tenant: &TenantId,
        name: &Name,
        version: Option<Version>,
        choices: Option<&ModelChoices>,
    ) -> Result<Arc<ModelEntry>, ModelsError> {
        let Some(choices) = choices.filter(|_| version.is_none()) else {
            return self.get(tenant, name, version);
        };
        let mut chosen = choices.chosen.lock();
        if let Some(version) = chosen.get(name) {
            return self.get(tenant, name, Some(*version)).or_else(|_| self.get(tenant, name, None));
        }
        let entry = self.for_run(tenant, name, None, choices.key.as_deref())?;
        chosen.insert(name.clone(), entry.record.version);
        Ok(entry)
    }
}
