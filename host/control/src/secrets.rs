//! Secrets of functions: values that tenants store encrypted, and that only functions read.
//!
//! The datastore has a record of each secret with its ciphertext (`record`). Master keys, which are
//! never in the datastore, encrypt it (`keyring`, `envelope`). Every node keeps all records in
//! memory, encrypted, by following the datastore. A value is decrypted for each new instance of a
//! function that gets it (`grants`); no other code path decrypts.

mod envelope;
mod follow;
mod grants;
mod index;
mod keyring;
pub(crate) mod record;
mod rotation;

pub use envelope::CipherError;
pub use grants::GrantedSecrets;
pub use keyring::{KEY_FILE, KeyringError, add_key, make_key_file};

use index::{KnownSecrets, SealedSecret};
use keyring::{KeySource, Keyring};
use parking_lot::RwLock;
use record::{SecretRecord, ValueId, record_key};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Semaphore;
use weir_datastore::{Commit, Compare, Datastore, Entry, Key, KeyError, Revision, Transaction};
use weir_sandbox::SecretsConfig;
use weir_storage::{Changes, CutOff, Heard};
use weir_telemetry::logs::now_ms;
use weir_types::api::Secret;
use weir_types::{ErrorCode, SECRET_BYTES_MAX, SecretName, TenantId, Version};
use zeroize::Zeroizing;

/// Secrets of one tenant.
const TENANT_LEN_MAX: usize = 100;
/// The number of retries of a change that conflicts with another node's change.
const CONFLICTS_MAX: usize = 5;
/// Maximum number of concurrent datastore lookups of secrets that this node does not know.
const LOOKUPS_MAX: usize = 8;

/// The secrets of all tenants.
pub struct Secrets {
    datastore: Arc<dyn Datastore>,
    changes: Changes,
    source: KeySource,
    keys: RwLock<Arc<Keyring>>,
    /// Changed only by events of the datastore.
    known: RwLock<KnownSecrets>,
    /// The revision of the datastore that `known` reflects.
    heard: Heard,
    /// Held while a secret is stored, so that concurrent changes stay within the quota.
    turn: Arc<Semaphore>,
    /// Permits for lookups of unknown secrets. No permits on a node without a cluster, which knows
    /// all secrets.
    lookups: Option<Semaphore>,
}

/// The reason why a secret was not stored, found, decrypted or removed.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The tenant has no secret with this name.
    #[error("there is no secret {0}: store its value with `weir secrets set {0}`")]
    NotFound(SecretName),
    /// The value cannot be an environment variable.
    #[error("the value of the secret {0}")]
    Invalid(&'static str),
    /// The value is too long.
    #[error("the value has {0} bytes, and a secret has at most {SECRET_BYTES_MAX}")]
    TooLong(usize),
    /// The tenant has too many secrets.
    #[error("the tenant has {TENANT_LEN_MAX} secrets, the most that are kept; delete some")]
    Full,
    /// Concurrent changes of the same secret were first.
    #[error("other requests changed the secret {0} at the same time; try again")]
    Conflict(SecretName),
    /// Other secrets are encrypted with a key that this node lacks.
    #[error(
        "stored secrets are encrypted with the key {lacks}, which this node lacks (it has: {have}): give it that key file, which is the same on all nodes of a cluster; if the key is lost, `weir secrets set --force` stores values with another one"
    )]
    OtherKey {
        /// Ids of the node's keys.
        have: String,
        /// Id of the missing key.
        lacks: String,
    },
    /// The secret is encrypted with a key that this node lacks.
    #[error(
        "the secret {name} is encrypted with the key {key_id}, which this node lacks: bring the key file back, or store the value again with `weir secrets set {name}`"
    )]
    KeyMissing {
        /// The name.
        name: SecretName,
        /// Id of the missing key.
        key_id: String,
    },
    /// The ciphertext does not belong to the secret.
    #[error(
        "the secret {name} cannot be decrypted: {error}; store the value again with `weir secrets set {name}`"
    )]
    Cipher {
        /// The name.
        name: SecretName,
        /// The reason.
        error: CipherError,
    },
    /// The node has no usable master keys.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// Too many secrets are looked up.
    #[error("too many unknown secrets are looked up in the cluster; try again")]
    Busy,
    /// A record in the datastore cannot be parsed.
    #[error("the record {key} cannot be read: {why}")]
    Damaged {
        /// The record's key.
        key: Key,
        /// The reason why the record cannot be parsed.
        why: String,
    },
    /// The record has no valid key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The change was not completed, because it panicked or the node stopped.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

impl SecretError {
    /// The error code for clients that manage secrets.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) => ErrorCode::SecretNotFound,
            Self::Invalid(_) => ErrorCode::InvalidRequest,
            Self::TooLong(_) => ErrorCode::BodyTooLarge,
            Self::Full => ErrorCode::QuotaExceeded,
            Self::Conflict(_) | Self::OtherKey { .. } | Self::Keyring(KeyringError::Unset) => {
                ErrorCode::Conflict
            }
            Self::KeyMissing { .. } | Self::Cipher { error: CipherError::Altered, .. } => {
                ErrorCode::SecretUnavailable
            }
            Self::Busy => ErrorCode::Unavailable,
            Self::Datastore(error) if error.is_full() => ErrorCode::DiskFull,
            Self::Datastore(error) if error.is_temporary() => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        }
    }
}

impl Secrets {
    /// Reads the master keys and all secrets. Also returns the revision that was read. `alone_in`:
    /// the data folder of a node without a cluster.
    pub async fn open(
        datastore: Arc<dyn Datastore>,
        changes: Changes,
        config: &SecretsConfig,
        alone_in: Option<&Path>,
    ) -> Result<(Arc<Self>, Revision), SecretError> {
        let source = KeySource::new(config, alone_in)?;
        let keys = source.read().await?;
        let secrets = Self {
            datastore,
            changes,
            source,
            keys: RwLock::new(Arc::new(keys)),
            known: RwLock::default(),
            heard: Heard::default(),
            turn: Arc::new(Semaphore::new(1)),
            lookups: alone_in.is_none().then(|| Semaphore::new(LOOKUPS_MAX)),
        };
        let revision = secrets.load().await?;
        secrets.warn_of_missing_keys();
        Ok((Arc::new(secrets), revision))
    }

    /// Stores a value: of a new secret, or the next version of an existing one. On return it is
    /// durable, and this node gives it to new instances. With `force`, also stores it if other
    /// secrets are encrypted with a key that this node lacks.
    pub async fn set(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &SecretName,
        value: &[u8],
        force: bool,
    ) -> Result<Secret, SecretError> {
        check_value(value)?;
        let value = Zeroizing::new(value.to_vec());
        let secrets = self.clone();
        let tenant = tenant.clone();
        let name = name.clone();
        let storing = async move {
            let Ok(_turn) = secrets.turn.clone().acquire_owned().await else { return Err(SecretError::Busy) };
            secrets.store(&tenant, &name, &value, force).await
        };
        self.changes.carry_through(storing).await?
    }

    async fn store(
        &self,
        tenant: &TenantId,
        name: &SecretName,
        value: &[u8],
        force: bool,
    ) -> Result<Secret, SecretError> {
        if !force {
            self.check_keys(tenant, name)?;
        }
        let keys = self.keys_to_encrypt().await?;
        let master = keys.first().ok_or(KeyringError::Unset)?;
        let key = record_key(tenant, name)?;
        for _ in 0..=CONFLICTS_MAX {
            let before = self.datastore.get(&key).await?;
            if before.is_none() && self.known.read().len(tenant) >= TENANT_LEN_MAX {
                return Err(SecretError::Full);
            }
            let now_ms = now_ms();
            let earlier = before.as_ref().and_then(|entry| SecretRecord::decode(entry).ok());
            let version = Version(earlier.as_ref().map_or(1, |earlier| earlier.version.0.saturating_add(1)));
            let created_at_ms = earlier.map_or(now_ms, |earlier| earlier.created_at_ms);
            let id = ValueId { tenant, name, version };
            let record = SecretRecord::seal(id, value, master, created_at_ms, now_ms)
                .map_err(|error| SecretError::Cipher { name: name.clone(), error })?;
            let transaction = Transaction::new().when(unchanged(&key, before.as_ref()));
            let storing = transaction.put(key.clone(), record.encode());
            if let Commit::Done(revision) = self.datastore.commit(storing).await? {
                self.heard.wait(revision).await;
                return Ok(record.describe(name, true));
            }
        }
        Err(SecretError::Conflict(name.clone()))
    }

    /// Removes a secret. On return, this node gives it to no new instance.
    pub async fn remove(self: &Arc<Self>, tenant: &TenantId, name: &SecretName) -> Result<(), SecretError> {
        let key = record_key(tenant, name)?;
        if self.datastore.get(&key).await?.is_none() {
            return Err(SecretError::NotFound(name.clone()));
        }
        let secrets = self.clone();
        let removing = async move {
            if let Some(revision) = secrets.datastore.commit(Transaction::new().delete(key)).await?.done() {
                secrets.heard.wait(revision).await;
            }
            Ok::<_, SecretError>(())
        };
        self.changes.carry_through(removing).await?
    }

    /// All secrets of `tenant`, sorted by name, without values and functions.
    #[must_use]
    pub fn list(&self, tenant: &TenantId) -> Vec<Secret> {
        let keys = self.keys();
        self.known.read().list(tenant).map(|secret| describe(secret, &keys)).collect()
    }

    /// Describes a secret, without its value and functions.
    pub fn show(&self, tenant: &TenantId, name: &SecretName) -> Result<Secret, SecretError> {
        let keys = self.keys();
        let known = self.known.read();
        let secret = known.get(tenant, name).map(|secret| describe(secret, &keys));
        secret.ok_or_else(|| SecretError::NotFound(name.clone()))
    }

    fn keys(&self) -> Arc<Keyring> {
        self.keys.read().clone()
    }

    /// The master keys, which are made now if the node makes its own. The caller holds the turn.
    async fn keys_to_encrypt(&self) -> Result<Arc<Keyring>, SecretError> {
        let keys = self.keys();
        if keys.first().is_some() {
            return Ok(keys);
        }
        let made = Arc::new(self.source.make().await?);
        *self.keys.write() = made.clone();
        Ok(made)
    }

    /// Checks that the node can decrypt all stored secrets, except for the one that gets a new value:
    /// otherwise, the nodes of a cluster have different keys, or a key file is missing.
    fn check_keys(&self, tenant: &TenantId, name: &SecretName) -> Result<(), SecretError> {
        let keys = self.keys();
        let known = self.known.read();
        let mut others = known.all().filter(|other| other.tenant != *tenant || other.name != *name);
        match others.find(|other| keys.get(&other.record.key_id).is_none()) {
            None => Ok(()),
            Some(other) => {
                Err(SecretError::OtherKey { have: keys.ids(), lacks: other.record.key_id.clone() })
            }
        }
    }

    fn warn_of_missing_keys(&self) {
        let keys = self.keys();
        let known = self.known.read();
        let unusable: Vec<_> =
            known.all().filter(|secret| keys.get(&secret.record.key_id).is_none()).collect();
        if let Some(first) = unusable.first() {
            tracing::warn!(
                secrets = unusable.len(),
                missing_key = first.record.key_id,
                node_keys = keys.ids(),
                "stored secrets are encrypted with a key that this node lacks: calls of functions that get them fail until the key file is back"
            );
        }
    }
}

fn describe(secret: &SealedSecret, keys: &Keyring) -> Secret {
    secret.record.describe(&secret.name, keys.get(&secret.record.key_id).is_some())
}

/// The condition that a record is as it was read.
fn unchanged(key: &Key, before: Option<&Entry>) -> Compare {
    match before {
        None => Compare::Absent(key.clone()),
        Some(entry) => Compare::ModifiedAt(key.clone(), entry.modified_at),
    }
}

/// Checks that a value can be an environment variable.
fn check_value(value: &[u8]) -> Result<(), SecretError> {
    if value.is_empty() {
        return Err(SecretError::Invalid("is empty"));
    }
    if value.len() > SECRET_BYTES_MAX {
        return Err(SecretError::TooLong(value.len()));
    }
    if std::str::from_utf8(value).is_err() {
        return Err(SecretError::Invalid("is not UTF-8 text; encode binary data, for example in base64"));
    }
    if value.contains(&0) {
        return Err(SecretError::Invalid("has a NUL byte, which an environment variable cannot have"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
