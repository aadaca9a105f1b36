//! What the datastore holds about models.

use super::ModelsError;
use serde::{Deserialize, Serialize};
use weir_datastore::{Entry, Key, Prefix};
use weir_types::{ContentHash, ModelId, ModelManifest, Name, TenantId, Version};

/// One version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelRecord {
    pub(crate) version: Version,
    /// The file as uploaded.
    pub(crate) digest: ContentHash,
    pub(crate) model_bytes: u64,
    pub(crate) pushed_at_ms: u64,
    pub(crate) manifest: ModelManifest,
    /// The file with what preparing it found; too large for the datastore where there are thousands of weights.
    pub(crate) prepared: ContentHash,
}

impl ModelRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        // A plain struct of strings and numbers: writing it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

pub(super) fn prefix() -> Result<Prefix, ModelsError> {
    Prefix::new("models/").map_err(ModelsError::key)
}

pub(super) fn version_key(tenant: &TenantId, name: &Name, version: Version) -> Result<Key, ModelsError> {
    Key::new(&format!("models/{tenant}/{name}/versions/{version}")).map_err(ModelsError::key)
}

pub(super) fn parse(entry: &Entry) -> Result<(ModelId, ModelRecord), ModelsError> {
    let damaged = |why: &dyn std::fmt::Display| ModelsError::Damaged {
        key: entry.key.to_string(),
        why: why.to_string(),
    };
    let path: Vec<_> = entry.key.as_str().split('/').collect();
    let [_, tenant, name, "versions", _] = path[..] else {
        return Err(damaged(&"its key is not that of a model's version"));
    };
    let record: ModelRecord = serde_json::from_slice(&entry.value).map_err(|error| damaged(&error))?;
    let id = ModelId {
        tenant: TenantId::new(tenant).map_err(|error| damaged(&error))?,
        name: Name::new(name).map_err(|error| damaged(&error))?,
        version: record.version,
    };
    Ok((id, record))
}
