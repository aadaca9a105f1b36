//! Applies changes in the datastore to the index of API keys.

use super::record::{KeyRecord, owner_of, records};
use super::{ApiKeyError, ApiKeys, KeyGrant};
use std::sync::Arc;
use weir_datastore::{Change, Entry, Prefix, Revision, WatchEvent};
use weir_storage::{Follow, follow};

impl ApiKeys {
    /// Follows changes after `revision`, until the future is dropped.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        follow(self.datastore.clone(), KeyFollower(self.clone()), revision)
    }

    /// Reads all records. Returns the revision that was read.
    pub(super) async fn load(&self) -> Result<Revision, ApiKeyError> {
        let (all, revision) = self.datastore.read_all(&records()?).await?;
        self.known.write().load(all.iter().filter_map(grant_in));
        self.heard.advance(revision);
        Ok(revision)
    }

    fn apply(&self, change: &Change) {
        {
            let mut known = self.known.write();
            for event in &change.events {
                let Some((tenant, name)) = owner_of(event.key()) else { continue };
                match event {
                    WatchEvent::Put(entry) => match grant_in(entry) {
                        Some(key) => known.put(key),
                        None => known.remove(&tenant, &name),
                    },
                    WatchEvent::Delete(_) => known.remove(&tenant, &name),
                }
            }
        }
        self.heard.advance(change.revision);
    }
}

/// Decodes a record. Logs and skips a damaged one, whose token is then refused.
fn grant_in(entry: &Entry) -> Option<KeyGrant> {
    let (tenant, name) = owner_of(&entry.key)?;
    let record = KeyRecord::decode(entry)
        .inspect_err(|error| tracing::error!(%error, "invalid record of an API key ignored"))
        .ok()?;
    Some(KeyGrant { tenant, name, record, revision: entry.modified_at })
}

struct KeyFollower(Arc<ApiKeys>);

impl Follow for KeyFollower {
    const WHAT: &'static str = "API keys";

    fn prefix(&self) -> Option<Prefix> {
        records().ok()
    }

    async fn apply(&self, change: Change) {
        self.0.apply(&change);
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.load().await {
            Ok(revision) => Ok(revision),
            Err(ApiKeyError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
