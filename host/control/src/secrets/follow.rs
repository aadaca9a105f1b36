//! Applies changes in the datastore to the index of secrets.

use super::index::SealedSecret;
use super::record::{SecretRecord, owner_of, records};
use super::{SecretError, Secrets};
use std::sync::Arc;
use weir_datastore::{Change, Entry, Prefix, Revision, WatchEvent};
use weir_storage::{Follow, follow};

impl Secrets {
    /// Follows changes after `revision`, until the future is dropped.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        follow(self.datastore.clone(), SecretFollower(self.clone()), revision)
    }

    /// Reads all records. Returns the revision that was read.
    pub(super) async fn load(&self) -> Result<Revision, SecretError> {
        let (all, revision) = self.datastore.read_all(&records()?).await?;
        self.known.write().load(all.iter().filter_map(sealed_in));
        self.heard.advance(revision);
        Ok(revision)
    }

    fn apply(&self, change: &Change) {
        {
            let mut known = self.known.write();
            for event in &change.events {
                let Some((tenant, name)) = owner_of(event.key()) else { continue };
                match event {
                    WatchEvent::Put(entry) => match sealed_in(entry) {
                        Some(secret) => known.put(secret),
                        None => known.remove(&tenant, &name),
                    },
                    WatchEvent::Delete(_) => known.remove(&tenant, &name),
                }
            }
        }
        self.heard.advance(change.revision);
    }
}

/// Decodes a record. Logs and skips a damaged one, which no function then gets.
pub(super) fn sealed_in(entry: &Entry) -> Option<SealedSecret> {
    let (tenant, name) = owner_of(&entry.key)?;
    let record = SecretRecord::decode(entry)
        .inspect_err(|error| tracing::error!(%error, "invalid record of a secret ignored"))
        .ok()?;
    Some(SealedSecret { tenant, name, record, revision: entry.modified_at })
}

struct SecretFollower(Arc<Secrets>);

impl Follow for SecretFollower {
    const WHAT: &'static str = "secrets";

    fn prefix(&self) -> Option<Prefix> {
        records().ok()
    }

    async fn apply(&self, change: Change) {
        self.0.apply(&change);
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.load().await {
            Ok(revision) => Ok(revision),
            Err(SecretError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
