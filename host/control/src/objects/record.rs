//! The datastore's records about objects.

use super::ObjectError;
use serde::{Deserialize, Serialize};
use weir_datastore::{Entry, Key, KeyError, Prefix};
use weir_types::api::Object;
use weir_types::{ContentHash, ElementType, Name, Shape, TenantId};

/// An object, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRecord {
    pub(super) datatype: ElementType,
    pub(super) shape: Shape,
    pub(super) bytes: u64,
    pub(super) digest: ContentHash,
    pub(super) put_at_ms: u64,
    pub(super) expires_at_ms: u64,
}

impl ObjectRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // A struct of strings and numbers: serialising it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(entry: &Entry) -> Result<Self, ObjectError> {
        serde_json::from_slice(&entry.value)
            .map_err(|error| ObjectError::Damaged { key: entry.key.clone(), why: error.to_string() })
    }

    pub(super) fn is_over(&self, now_ms: u64) -> bool {
        self.expires_at_ms <= now_ms
    }

    pub(crate) fn describe(&self, name: &Name) -> Object {
        let Self { datatype, shape, bytes, digest, put_at_ms, expires_at_ms } = self.clone();
        Object { name: name.clone(), datatype, shape, bytes, digest, put_at_ms, expires_at_ms }
    }
}

pub(super) fn objects() -> Result<Prefix, KeyError> {
    Prefix::new("objects/")
}

pub(crate) fn object_key(tenant: &TenantId, name: &Name) -> Result<Key, KeyError> {
    Key::new(&format!("objects/{tenant}/{name}"))
}

/// The object of a key; `None` for other keys.
pub(crate) fn object_of(key: &Key) -> Option<(TenantId, Name)> {
    let path: Vec<_> = key.as_str().split('/').collect();
    let [_, tenant, name] = path[..] else { return None };
    Some((TenantId::new(tenant).ok()?, Name::new(name).ok()?))
}
