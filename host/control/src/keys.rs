//! API keys: tokens that tenants create, with scopes and an expiry.
//!
//! The datastore has a record of each key with the hash of its token, and an index from the hash to
//! the key. The token itself is only in the answer to its creation. Every node keeps all records in
//! memory by following the datastore; a node of a cluster reads the index for a token that it does
//! not know, because another node may have created the key a moment ago.

mod follow;
mod index;
pub(crate) mod record;
mod sweep;

use index::KnownKeys;
use parking_lot::RwLock;
use record::{KeyRecord, hash_key, owner_in, record_key};
use std::sync::Arc;
use tokio::sync::Semaphore;
use weir_datastore::{Commit, Compare, Datastore, Key, KeyError, Revision, Transaction};
use weir_storage::{Changes, CutOff, Heard};
use weir_telemetry::logs::now_ms;
use weir_types::api::{ApiKey, CreatedApiKey, KEY_TTL_MS_DEFAULT, KEY_TTL_MS_MAX, NewApiKey, Scope};
use weir_types::{ContentHash, ErrorCode, Name, TenantId};

/// Prefix of every token, by which people and secret scanners recognise tokens.
const TOKEN_PREFIX: &str = "weir_";
/// Number of random bytes of a token. With this length, tokens need no slow hash.
const SECRET_BYTES: usize = 24;
/// Keys of one tenant, including expired ones.
const TENANT_LEN_MAX: usize = 1_000;
/// Functions that a key may be limited to.
const FUNCTIONS_MAX: usize = 64;
/// Maximum number of concurrent datastore lookups of unknown tokens, so that unauthenticated
/// clients cannot overload the datastore.
const LOOKUPS_MAX: usize = 8;

/// A key as the node checks it.
#[derive(Debug)]
pub struct KeyGrant {
    /// Tenant that the key acts for.
    pub tenant: TenantId,
    /// Name of the key.
    pub name: Name,
    record: KeyRecord,
    /// Revision of the record.
    revision: Revision,
}

impl KeyGrant {
    /// Whether the key has `scope`.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.record.scopes.contains(&scope) || self.record.scopes.contains(&Scope::Admin)
    }

    /// Whether the key is limited to some functions.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !self.record.functions.is_empty()
    }

    /// Whether the key may use the function `name`.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        !self.is_limited() || self.record.functions.iter().any(|function| function.as_str() == name)
    }

    fn describe(&self) -> ApiKey {
        self.record.describe(&self.name)
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.record.expires_at_ms <= now_ms
    }
}

/// The API keys of all tenants.
pub struct ApiKeys {
    datastore: Arc<dyn Datastore>,
    changes: Changes,
    /// Changed only by events of the datastore.
    known: RwLock<KnownKeys>,
    /// The revision of the datastore that `known` reflects.
    heard: Heard,
    /// Held while a key is created, so that concurrent creations stay within the quota.
    turn: Arc<Semaphore>,
    /// Permits for lookups of unknown tokens. No permits on a node without a cluster, which knows
    /// all keys.
    lookups: Option<Semaphore>,
}

/// The reason why a key was not created, found or revoked.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    /// The tenant has no key with this name.
    #[error("there is no API key {0}; `weir keys` lists them")]
    NotFound(Name),
    /// The tenant has an unexpired key with this name.
    #[error("there is an API key {0} already: revoke it first, or choose another name")]
    Exists(Name),
    /// The requested key is not usable.
    #[error("{0}")]
    Invalid(String),
    /// The tenant has too many keys.
    #[error("the tenant has {TENANT_LEN_MAX} API keys, the most that are kept; revoke some")]
    Full,
    /// Too many unknown tokens are looked up.
    #[error("too many unknown tokens are looked up in the cluster; try again")]
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

impl ApiKeyError {
    /// The error code for clients.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) => ErrorCode::KeyNotFound,
            Self::Exists(_) => ErrorCode::Conflict,
            Self::Invalid(_) => ErrorCode::InvalidRequest,
            Self::Full => ErrorCode::QuotaExceeded,
            Self::Busy => ErrorCode::Unavailable,
            Self::Datastore(error) if error.is_full() => ErrorCode::DiskFull,
            Self::Datastore(error) if error.is_temporary() => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        }
    }
}

impl ApiKeys {
    /// Reads all keys. Also returns the revision that was read.
    pub async fn open(
        datastore: Arc<dyn Datastore>,
        changes: Changes,
        is_alone: bool,
    ) -> Result<(Arc<Self>, Revision), ApiKeyError> {
        let keys = Self {
            datastore,
            changes,
            known: RwLock::default(),
            heard: Heard::default(),
            turn: Arc::new(Semaphore::new(1)),
            lookups: (!is_alone).then(|| Semaphore::new(LOOKUPS_MAX)),
        };
        let revision = keys.load().await?;
        Ok((Arc::new(keys), revision))
    }

    /// Creates a key. On return it is durable, and this is the only time that its token is known.
    pub async fn create(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        new: NewApiKey,
    ) -> Result<CreatedApiKey, ApiKeyError> {
        let token = new_token();
        let record = new_record(new, &token, now_ms())?;
        let keys = self.clone();
        let tenant = tenant.clone();
        let of = name.clone();
        let described = record.describe(name);
        let creating = async move {
            let Ok(_turn) = keys.turn.clone().acquire_owned().await else { return Err(ApiKeyError::Busy) };
            keys.store(&tenant, &of, &record).await
        };
        self.changes.carry_through(creating).await??;
        Ok(CreatedApiKey { key: described, token })
    }

    async fn store(&self, tenant: &TenantId, name: &Name, record: &KeyRecord) -> Result<(), ApiKeyError> {
        let key = record_key(tenant, name)?;
        let mut storing = Transaction::new()
            .put(key.clone(), record.encode())
            .put(hash_key(&record.hash)?, key.as_str().to_owned());
        match self.datastore.get(&key).await? {
            None if self.known.read().len(tenant) >= TENANT_LEN_MAX => return Err(ApiKeyError::Full),
            None => storing = storing.when(Compare::Absent(key)),
            Some(entry) => {
                let earlier = KeyRecord::decode(&entry)?;
                if earlier.expires_at_ms > now_ms() {
                    return Err(ApiKeyError::Exists(name.clone()));
                }
                storing = storing
                    .when(Compare::ModifiedAt(key, entry.modified_at))
                    .delete(hash_key(&earlier.hash)?);
            }
        }
        match self.datastore.commit(storing).await? {
            Commit::Done(revision) => self.heard.wait(revision).await,
            Commit::Conflict => return Err(ApiKeyError::Exists(name.clone())),
        }
        Ok(())
    }

    /// Removes a key. On return, this node refuses the token, even if its watch is interrupted. The
    /// other nodes of a cluster refuse it as soon as the event reaches them.
    pub async fn revoke(self: &Arc<Self>, tenant: &TenantId, name: &Name) -> Result<(), ApiKeyError> {
        let key = record_key(tenant, name)?;
        let entry = self.datastore.get(&key).await?.ok_or_else(|| ApiKeyError::NotFound(name.clone()))?;
        // Also removes the record of a damaged key. Its index entry then refers to no record.
        let hash = KeyRecord::decode(&entry).ok().map(|record| hash_key(&record.hash)).transpose()?;
        let removing = hash.into_iter().fold(Transaction::new().delete(key), Transaction::delete);
        let keys = self.clone();
        let removing = async move {
            if let Some(revision) = keys.datastore.commit(removing).await?.done() {
                keys.heard.wait(revision).await;
            }
            Ok::<_, ApiKeyError>(())
        };
        self.changes.carry_through(removing).await?
    }

    /// All keys of `tenant`, sorted by name. Expired keys are listed for some days.
    #[must_use]
    pub fn list(&self, tenant: &TenantId) -> Vec<ApiKey> {
        self.known.read().list(tenant).map(|key| key.describe()).collect()
    }

    /// Describes a key.
    pub fn show(&self, tenant: &TenantId, name: &Name) -> Result<ApiKey, ApiKeyError> {
        let known = self.known.read();
        known.get(tenant, name).map(|key| key.describe()).ok_or_else(|| ApiKeyError::NotFound(name.clone()))
    }

    /// Finds the key of a token, if there is one and it has not expired.
    pub async fn find(&self, token: &str, hash: &ContentHash) -> Result<Option<Arc<KeyGrant>>, ApiKeyError> {
        // A node of a cluster reads the datastore while its watch is late: it may have revoked the
        // key.
        let is_late = self.lookups.is_some() && self.heard.is_behind();
        let known = self.known.read().find(hash).filter(|_| !is_late).cloned();
        let key = match known {
            Some(key) => Some(key),
            None if may_be_token(token) => self.look_up(hash).await?,
            None => None,
        };
        Ok(key.filter(|key| !key.is_over(now_ms())))
    }

    /// Reads the key of a token that this or another node may have created or revoked a moment ago.
    async fn look_up(&self, hash: &ContentHash) -> Result<Option<Arc<KeyGrant>>, ApiKeyError> {
        let Some(lookups) = &self.lookups else { return Ok(None) };
        let _permit = lookups.try_acquire().map_err(|_| ApiKeyError::Busy)?;
        let Some(index) = self.datastore.get(&hash_key(hash)?).await? else { return Ok(None) };
        let Some((tenant, name)) = owner_in(&index.value) else { return Ok(None) };
        let Some(entry) = self.datastore.get(&record_key(&tenant, &name)?).await? else { return Ok(None) };
        let record = KeyRecord::decode(&entry)?;
        let is_it = record.hash == *hash;
        Ok(is_it.then(|| Arc::new(KeyGrant { tenant, name, record, revision: entry.modified_at })))
    }
}

/// Checks a request for a key, and makes its record.
fn new_record(new: NewApiKey, token: &str, now_ms: u64) -> Result<KeyRecord, ApiKeyError> {
    let NewApiKey { mut scopes, mut functions, ttl_ms } = new;
    let invalid = |text: String| Err(ApiKeyError::Invalid(text));
    scopes.sort_unstable();
    scopes.dedup();
    functions.sort_unstable();
    functions.dedup();
    if scopes.is_empty() {
        return invalid("the key needs at least one scope of invoke, deploy, read and admin".to_owned());
    }
    if scopes.contains(&Scope::Admin) && !functions.is_empty() {
        return invalid("a key with the scope admin cannot be limited to functions".to_owned());
    }
    if functions.len() > FUNCTIONS_MAX {
        return invalid(format!(
            "a key is limited to at most {FUNCTIONS_MAX} functions, not {}",
            functions.len()
        ));
    }
    let ttl_ms = ttl_ms.unwrap_or(KEY_TTL_MS_DEFAULT);
    if !(1..=KEY_TTL_MS_MAX).contains(&ttl_ms) {
        return invalid(format!("a key is valid for 1 to {KEY_TTL_MS_MAX} ms, not for {ttl_ms}"));
    }
    Ok(KeyRecord {
        hash: ContentHash::from_content(token.as_bytes()),
        scopes,
        functions,
        created_at_ms: now_ms,
        expires_at_ms: now_ms.saturating_add(ttl_ms),
    })
}

fn new_token() -> String {
    let secret: [u8; SECRET_BYTES] = rand::random();
    secret.iter().fold(TOKEN_PREFIX.to_owned(), |token, byte| format!("{token}{byte:02x}"))
}

/// Whether a text has the form of a token.
fn may_be_token(text: &str) -> bool {
    let secret = text.strip_prefix(TOKEN_PREFIX);
    secret.is_some_and(|secret| {
        secret.len() == 2 * SECRET_BYTES && secret.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests;
