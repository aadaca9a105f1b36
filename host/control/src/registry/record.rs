//! The datastore's records about deployments.

use super::{DeploymentKind, RegistryError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_datastore::{Entry, Key, KeyError, Prefix};
use weir_types::api::{Aliases, Canary, Shadow};
use weir_types::{Name, TenantId, Version};

/// The versions of a name that calls use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveVersion {
    /// The version that the name resolves to.
    pub active: Version,
    /// The number of the next version: numbers are never reused.
    pub next: Version,
    /// The version that was active before, to roll back to. It may be removed by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Version>,
    /// The version that gets a share of the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The version that gets copies of calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// Other names of versions.
    #[serde(default, skip_serializing_if = "Aliases::is_empty")]
    pub aliases: Aliases,
}

/// The record of one version.
pub trait VersionRecord: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The number of the version.
    fn version(&self) -> Version;
}

/// A parsed entry below [`prefix`].
pub(super) struct Parsed<R> {
    pub(super) tenant: TenantId,
    pub(super) name: Name,
    pub(super) value: EntryContents<R>,
}

/// The contents of an entry, if they can be read.
pub(super) enum EntryContents<R> {
    Head(Result<ActiveVersion, RegistryError>),
    Version(Result<Box<R>, RegistryError>),
}

impl ActiveVersion {
    /// The head of a name of which only one version is known.
    pub(super) fn only(active: Version, next: Version) -> Self {
        Self { active, next, previous: None, canary: None, shadow: None, aliases: Aliases::new() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Structs of strings and numbers: serialising them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn prefix<K: DeploymentKind>() -> Result<Prefix, RegistryError> {
    Prefix::new(&format!("{}/", K::ROOT)).map_err(impossible)
}

/// The prefix of all keys of one name.
pub(super) fn named<K: DeploymentKind>(tenant: &TenantId, name: &Name) -> Result<Prefix, RegistryError> {
    Prefix::new(&format!("{}/{tenant}/{name}/", K::ROOT)).map_err(impossible)
}

pub(crate) fn head_key<K: DeploymentKind>(tenant: &TenantId, name: &Name) -> Result<Key, RegistryError> {
    Key::new(&format!("{}/{tenant}/{name}/head", K::ROOT)).map_err(impossible)
}

pub(crate) fn version_key<K: DeploymentKind>(
    tenant: &TenantId,
    name: &Name,
    version: Version,
) -> Result<Key, RegistryError> {
    Key::new(&format!("{}/{tenant}/{name}/versions/{version}", K::ROOT)).map_err(impossible)
}

/// Names are valid key segments.
fn impossible(error: KeyError) -> RegistryError {
    RegistryError::Datastore(weir_datastore::Error::Unavailable { source: std::sync::Arc::new(error) })
}

pub(super) fn parse<R: VersionRecord>(entry: &Entry) -> Result<Parsed<R>, RegistryError> {
    let RecordKey { tenant, name, of } = place(&entry.key)?;
    let value = match of {
        Of::Head => EntryContents::Head(decode(entry)),
        Of::Version(_) => EntryContents::Version(decode(entry).map(Box::new)),
    };
    Ok(Parsed { tenant, name, value })
}

/// The meaning of a key below [`prefix`].
pub(super) struct RecordKey {
    pub(super) tenant: TenantId,
    pub(super) name: Name,
    pub(super) of: Of,
}

pub(super) enum Of {
    Head,
    /// The version, if the segment is a number.
    Version(Option<Version>),
}

pub(super) fn place(key: &Key) -> Result<RecordKey, RegistryError> {
    let damaged = |why: String| RegistryError::Damaged { key: key.clone(), why };
    let mut path = key.as_str().split('/').skip(1);
    let mut segment = || path.next().ok_or_else(|| damaged("its key is too short".to_owned()));
    let tenant = TenantId::new(segment()?).map_err(|error| damaged(error.to_string()))?;
    let name = Name::new(segment()?).map_err(|error| damaged(error.to_string()))?;
    let of = match segment()? {
        "head" => Of::Head,
        "versions" => Of::Version(path.next().and_then(|version| version.parse().ok()).map(Version)),
        other => return Err(damaged(format!("its key has {other:?} instead of head or versions"))),
    };
    Ok(RecordKey { tenant, name, of })
}

fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, RegistryError> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| RegistryError::Damaged { key: entry.key.clone(), why: error.to_string() })
}
