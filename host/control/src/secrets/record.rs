//! The datastore's records of secrets: ciphertext, bound to its tenant, name and version.

use super::SecretError;
use super::envelope::{CipherError, DataKey, MasterKey, OVERHEAD_BYTES};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_datastore::{Entry, Key, KeyError, Prefix};
use weir_types::api::Secret;
use weir_types::{SecretName, TenantId, Version};
use zeroize::Zeroizing;

/// A secret with its encrypted value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecretRecord {
    pub(super) version: Version,
    pub(super) created_at_ms: u64,
    pub(super) updated_at_ms: u64,
    /// Id of the master key that encrypts the data key.
    pub(super) key_id: String,
    /// The encrypted data key.
    #[serde(with = "base64_text")]
    data_key: Vec<u8>,
    /// The value, encrypted with the data key.
    #[serde(with = "base64_text")]
    value: Vec<u8>,
}

/// The owner, name and version of a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueId<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) name: &'a SecretName,
    pub(super) version: Version,
}

impl ValueId<'_> {
    /// The context that ciphertext is bound to. No part of a name has a slash.
    fn context(&self, what: &str) -> Vec<u8> {
        let Self { tenant, name, version } = self;
        format!("weir secrets 1/{what}/{tenant}/{name}/{version}").into_bytes()
    }
}

impl SecretRecord {
    /// Encrypts the value `id`.
    pub(super) fn seal(
        id: ValueId<'_>,
        value: &[u8],
        master: &MasterKey,
        created_at_ms: u64,
        updated_at_ms: u64,
    ) -> Result<Self, CipherError> {
        let data_key = DataKey::generate()?;
        Ok(Self {
            version: id.version,
            created_at_ms,
            updated_at_ms,
            key_id: master.id().to_owned(),
            value: data_key.seal(value, &id.context("value"))?,
            data_key: master.wrap(&data_key, &id.context("key"))?,
        })
    }

    /// Decrypts the value of the secret `name` with the master key [`key_id`](Self::key_id).
    pub(super) fn open(
        &self,
        tenant: &TenantId,
        name: &SecretName,
        master: &MasterKey,
    ) -> Result<Zeroizing<Vec<u8>>, CipherError> {
        let id = ValueId { tenant, name, version: self.version };
        master.unwrap(&self.data_key, &id.context("key"))?.open(&self.value, &id.context("value"))
    }

    /// The same secret with its data key encrypted by `new` instead of `old`.
    pub(super) fn rotate(
        &self,
        tenant: &TenantId,
        name: &SecretName,
        old: &MasterKey,
        new: &MasterKey,
    ) -> Result<Self, CipherError> {
        let context = ValueId { tenant, name, version: self.version }.context("key");
        let data_key = new.wrap(&old.unwrap(&self.data_key, &context)?, &context)?;
        Ok(Self { key_id: new.id().to_owned(), data_key, ..self.clone() })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // A struct of strings and numbers: serialising it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(entry: &Entry) -> Result<Self, SecretError> {
        serde_json::from_slice(&entry.value)
            .map_err(|error| SecretError::Damaged { key: entry.key.clone(), why: error.to_string() })
    }

    /// Describes the secret as the API returns it, without functions.
    pub(crate) fn describe(&self, name: &SecretName, usable: bool) -> Secret {
        Secret {
            name: name.clone(),
            version: self.version,
            value_bytes: self.value.len().saturating_sub(OVERHEAD_BYTES) as u64,
            created_at_ms: self.created_at_ms,
            updated_at_ms: self.updated_at_ms,
            key_id: self.key_id.clone(),
            usable,
            functions: Vec::new(),
        }
    }
}

/// The prefix of all records.
pub(super) fn records() -> Result<Prefix, KeyError> {
    Prefix::new("secrets/")
}

/// The key of a record.
pub(crate) fn record_key(tenant: &TenantId, name: &SecretName) -> Result<Key, KeyError> {
    Key::new(&format!("secrets/{tenant}/{name}"))
}

/// The owner and the name of a record's key; `None` for other keys.
pub(crate) fn owner_of(key: &Key) -> Option<(TenantId, SecretName)> {
    let path: Vec<_> = key.as_str().split('/').collect();
    let ["secrets", tenant, name] = path[..] else { return None };
    Some((TenantId::new(tenant).ok()?, SecretName::new(name).ok()?))
}

/// Bytes as text in base64.
mod base64_text {
    use super::*;
    use serde::de::Error as _;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        BASE64_STANDARD.decode(String::deserialize(from)?).map_err(D::Error::custom)
    }
}
