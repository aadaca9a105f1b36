//! The datastore's records of API keys.

use super::ApiKeyError;
use serde::{Deserialize, Serialize};
use weir_datastore::{Entry, Key, KeyError, Prefix};
use weir_types::api::{ApiKey, Scope};
use weir_types::{ContentHash, Name, TenantId};

/// An API key, with the hash of its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    pub(super) hash: ContentHash,
    pub(super) scopes: Vec<Scope>,
    #[serde(default)]
    pub(super) functions: Vec<Name>,
    pub(super) created_at_ms: u64,
    pub(super) expires_at_ms: u64,
}

impl KeyRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // A struct of strings and numbers: serialising it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(entry: &Entry) -> Result<Self, ApiKeyError> {
        serde_json::from_slice(&entry.value)
            .map_err(|error| ApiKeyError::Damaged { key: entry.key.clone(), why: error.to_string() })
    }

    pub(crate) fn describe(&self, name: &Name) -> ApiKey {
        let Self { hash: _, scopes, functions, created_at_ms, expires_at_ms } = self.clone();
        ApiKey { name: name.clone(), scopes, functions, created_at_ms, expires_at_ms }
    }
}

/// The prefix of all records.
pub(super) fn records() -> Result<Prefix, KeyError> {
    Prefix::new("keys/")
}

/// The key of a record.
pub(crate) fn record_key(tenant: &TenantId, name: &Name) -> Result<Key, KeyError> {
    Key::new(&format!("keys/{tenant}/{name}"))
}

/// The owner and the name of a record's key; `None` for other keys.
pub(crate) fn owner_of(key: &Key) -> Option<(TenantId, Name)> {
    parse(key.as_str())
}

/// The key of the index entry of a token, whose value is the key of the record.
pub(super) fn hash_key(hash: &ContentHash) -> Result<Key, KeyError> {
    Key::new(&format!("key-hashes/{hash}"))
}

/// The owner and the name in the value of an index entry.
pub(crate) fn owner_in(value: &[u8]) -> Option<(TenantId, Name)> {
    parse(std::str::from_utf8(value).ok()?)
}

fn parse(text: &str) -> Option<(TenantId, Name)> {
    let path: Vec<_> = text.split('/').collect();
    let ["keys", tenant, name] = path[..] else { return None };
    Some((TenantId::new(tenant).ok()?, Name::new(name).ok()?))
}
