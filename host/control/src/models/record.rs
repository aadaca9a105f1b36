//! The datastore's records about models.

use super::ModelsError;
use super::head::ModelHead;
use serde::{Deserialize, Serialize};
use weir_datastore::{Key, KeyError, Prefix};
use weir_types::{ContentHash, ModelId, ModelManifest, Name, Profile, TenantId, Version};

/// One version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    pub version: Version,
    /// The uploaded file.
    pub digest: ContentHash,
    pub model_bytes: u64,
    pub pushed_at_ms: u64,
    pub manifest: ModelManifest,
    /// The file with the preparation result. Not in the record itself: with thousands of weights,
    /// it would be too large for the datastore.
    pub prepared: ContentHash,
}

/// A measured profile, kept across restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProfileRecord {
    /// The push of the model that was measured.
    pub(super) generation: u64,
    /// The kind of device.
    pub(super) kind: String,
    pub(super) profile: Profile,
}

impl ModelRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

impl ModelHead {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

impl ProfileRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

fn encode(record: &impl Serialize) -> Vec<u8> {
    // Structs of strings and numbers: serialising them cannot fail.
    serde_json::to_vec(record).unwrap_or_default()
}

pub(super) fn models() -> Result<Prefix, ModelsError> {
    Prefix::new("models/").map_err(impossible)
}

/// The prefix of all records of one model.
pub(super) fn named(tenant: &TenantId, name: &Name) -> Result<Prefix, ModelsError> {
    Prefix::new(&format!("models/{tenant}/{name}/")).map_err(impossible)
}

pub(crate) fn head_key(tenant: &TenantId, name: &Name) -> Result<Key, ModelsError> {
    Key::new(&format!("models/{tenant}/{name}/head")).map_err(impossible)
}

pub(super) fn profiles() -> Result<Prefix, ModelsError> {
    Prefix::new("profiles/").map_err(impossible)
}

pub(crate) fn model_key(id: &ModelId) -> Result<Key, ModelsError> {
    key("models", id)
}

pub(super) fn profile_key(id: &ModelId, kind: &str) -> Result<Key, ModelsError> {
    // Names of GPUs contain spaces. Two names that map to the same key only overwrite each other's
    // measurements.
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let kind: String = kind.chars().map(plain).collect();
    Key::new(&format!("{}/{kind}", key("profiles", id)?.as_str())).map_err(impossible)
}

/// The prefix of a model's profiles, on all kinds of devices.
pub(super) fn profiles_of(id: &ModelId) -> Result<Prefix, ModelsError> {
    Prefix::new(&format!("{}/", key("profiles", id)?.as_str())).map_err(impossible)
}

fn key(root: &str, ModelId { tenant, name, version }: &ModelId) -> Result<Key, ModelsError> {
    Key::new(&format!("{root}/{tenant}/{name}/versions/{version}")).map_err(impossible)
}

/// Names are valid key segments.
fn impossible(error: KeyError) -> ModelsError {
    ModelsError::Datastore(weir_datastore::Error::Unavailable { source: std::sync::Arc::new(error) })
}

/// The model of a profile's key; `None` for other keys.
pub(crate) fn profile_of(key: &Key) -> Option<ModelId> {
    let (model, _kind) = key.as_str().rsplit_once('/')?;
    id_of(&Key::new(model).ok()?)
}

/// The model of a key; `None` for other keys.
pub(crate) fn id_of(key: &Key) -> Option<ModelId> {
    let path: Vec<_> = key.as_str().split('/').collect();
    let [_, tenant, name, "versions", version] = path[..] else { return None };
    let version = Version(version.parse().ok()?);
    Some(ModelId { tenant: TenantId::new(tenant).ok()?, name: Name::new(name).ok()?, version })
}

/// The model of a head's key; `None` for other keys.
pub(crate) fn head_of(key: &Key) -> Option<(TenantId, Name)> {
    let path: Vec<_> = key.as_str().split('/').collect();
    let [_, tenant, name, "head"] = path[..] else { return None };
    Some((TenantId::new(tenant).ok()?, Name::new(name).ok()?))
}
