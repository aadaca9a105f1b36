//! Join tokens of an authority.

use super::super::enrolment::JoinToken;
use super::store::{LockedStore, Store, read, write};
use crate::error::Problem;
use anyhow::{Context as _, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_types::{ContentHash, Name};

/// A stored token: the hash of its secret, and its limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TokenRecord {
    pub(super) id: String,
    secret: ContentHash,
    pub(super) expires_at_ms: u64,
    /// Nodes that may still join.
    pub(super) uses: u32,
    /// The only name of a node for which the token is valid; `None`: any.
    pub(super) name: Option<Name>,
}

/// For whom a token is valid, and how long.
pub(super) struct TokenTerms {
    pub(super) lifetime: Duration,
    pub(super) uses: u32,
    pub(super) name: Option<Name>,
}

/// The tokens in the folder of an authority.
pub(super) struct Tokens<'a> {
    store: &'a Store,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { store }
    }

    fn folder(&self) -> PathBuf {
        self.store.folder().join("tokens")
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder().join(format!("{id}.json"))
    }

    /// Creates a token, which is not stored, and its record.
    pub(super) fn create(
        &self,
        _lock: &LockedStore<'_>,
        terms: TokenTerms,
    ) -> Result<(JoinToken, TokenRecord)> {
        let ca = self.store.ca();
        let authority =
            CertificateDer::from_pem_file(&ca).with_context(|| format!("cannot read {}", ca.display()))?;
        let token = JoinToken::random(&authority);
        let lifetime_ms = u64::try_from(terms.lifetime.as_millis()).unwrap_or(u64::MAX);
        let record = TokenRecord {
            id: token.id(),
            secret: token.secret_hash(),
            expires_at_ms: now_ms().saturating_add(lifetime_ms),
            uses: terms.uses,
            name: terms.name,
        };
        fs::create_dir_all(self.folder()).context("cannot make the folder of tokens")?;
        self.keep(&record)?;
        Ok((token, record))
    }

    /// The tokens that are valid. Removes those that have expired.
    pub(super) fn list(&self, _lock: &LockedStore<'_>) -> Result<Vec<TokenRecord>> {
        let Ok(files) = fs::read_dir(self.folder()) else { return Ok(Vec::new()) };
        let mut tokens = Vec::new();
        for file in files {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let record: TokenRecord = serde_json::from_str(&read(&path)?)
                .with_context(|| format!("{} is damaged", path.display()))?;
            if record.expires_at_ms > now_ms() {
                tokens.push(record);
            } else {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        tokens.sort_by_key(|token| token.expires_at_ms);
        Ok(tokens)
    }

    /// Removes a token. Returns whether it existed.
    pub(super) fn remove(&self, _lock: &LockedStore<'_>, id: &str) -> Result<bool> {
        let exists = id.bytes().all(|byte| byte.is_ascii_hexdigit()) && self.path(id).exists();
        if exists {
            fs::remove_file(self.path(id)).with_context(|| format!("cannot remove the token {id}"))?;
        }
        Ok(exists)
    }

    /// The record of a token that lets the node `name` join.
    pub(super) fn check(
        &self,
        lock: &LockedStore<'_>,
        token: &JoinToken,
        name: &Name,
    ) -> Result<TokenRecord> {
        const HINT: &str = "`weir cluster ca token create` makes a new one, on the machine of the authority";
        let found = self.list(lock)?.into_iter().find(|record| record.id == token.id());
        let record = found.filter(|record| record.secret == token.secret_hash());
        let record = record.ok_or_else(|| {
            Problem::new("the join token is used up, has expired or was revoked, or is another's").hint(HINT)
        })?;
        match &record.name {
            Some(only) if only != name => {
                Err(Problem::new(format!("the join token is for the node {only}")).hint(HINT).into())
            }
            _ => Ok(record),
        }
    }

    /// Counts a use of a token.
    pub(super) fn used(&self, lock: &LockedStore<'_>, mut record: TokenRecord) -> Result<()> {
        record.uses = record.uses.saturating_sub(1);
        if record.uses == 0 { self.remove(lock, &record.id).map(drop) } else { self.keep(&record) }
    }

    fn keep(&self, record: &TokenRecord) -> Result<()> {
        write(&self.path(&record.id), 0o600, &serde_json::to_string(record)?)
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn tokens_are_valid_for_their_uses_time_and_name() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        store.create().unwrap();
        let tokens = Tokens::new(&store);
        let lock = store.lock().unwrap();
        let [one, two]: [Name; 2] = ["one", "two"].map(|name| name.parse().unwrap());
        let create =
            |lifetime, uses, name| tokens.create(&lock, TokenTerms { lifetime, uses, name }).unwrap();

        let (token, _) = create(HOUR, 2, None);
        for node in [&one, &two] {
            let record = tokens.check(&lock, &token, node).unwrap();
            tokens.used(&lock, record).unwrap();
        }
        assert!(tokens.check(&lock, &token, &one).is_err(), "it is used up");

        let (token, record) = create(HOUR, 1, Some(one.clone()));
        assert!(tokens.check(&lock, &token, &two).unwrap_err().to_string().contains("one"));
        tokens.check(&lock, &token, &one).unwrap();
        assert!(tokens.remove(&lock, &record.id).unwrap());
        assert!(!tokens.remove(&lock, &record.id).unwrap());
        assert!(!tokens.remove(&lock, "../ca-key").unwrap());
        assert!(tokens.check(&lock, &token, &one).is_err(), "it was revoked");

        let (token, record) = create(Duration::ZERO, 1, None);
        assert!(tokens.check(&lock, &token, &one).is_err(), "it has expired");
        assert!(!tokens.path(&record.id).exists());

        // Another secret under the same identifier.
        let (token, record) = create(HOUR, 1, None);
        let (other, _) = create(HOUR, 1, None);
        tokens.keep(&TokenRecord { id: other.id(), ..record }).unwrap();
        assert!(tokens.check(&lock, &other, &one).is_err());
        tokens.check(&lock, &token, &one).unwrap();
    }
}
