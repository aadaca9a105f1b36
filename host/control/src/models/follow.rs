//! Follows pushes and deletions on other nodes.

use super::record::{self, head_of, id_of, model_key};
use super::{Models, ModelsError};
use std::sync::Arc;
use std::time::Duration;
use weir_datastore::{Change, Prefix, Revision, WatchEvent};
use weir_storage::{Follow, follow};
use weir_types::ModelId;

/// The interval at which files that could not be fetched are requested again.
const HEAL_EVERY: Duration = Duration::from_secs(5);

impl Models {
    /// Follows changes after `revision`, until the future is dropped.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        let following = follow(self.datastore.clone(), ModelFollower(self.clone()), revision);
        let healing = heal(self.clone());
        async move {
            tokio::select! {
                () = following => {}
                () = healing => {}
            }
        }
    }

    /// Models whose files could not be fetched.
    fn unfetched(&self) -> Vec<ModelId> {
        let known = self.read_known();
        known.damaged.iter().filter(|(_, damaged)| damaged.may_heal).map(|(id, _)| id.clone()).collect()
    }
}

/// Periodically retries failed fetches.
async fn heal(models: Arc<Models>) {
    loop {
        tokio::time::sleep(HEAL_EVERY).await;
        for id in models.unfetched() {
            let Ok(key) = model_key(&id) else { continue };
            if let Ok(Some(entry)) = models.datastore.get(&key).await {
                models.take_in(&id, &entry).await;
            }
        }
    }
}

struct ModelFollower(Arc<Models>);

impl Follow for ModelFollower {
    const WHAT: &'static str = "models";

    fn prefix(&self) -> Option<Prefix> {
        record::models().ok()
    }

    async fn apply(&self, change: Change) {
        let mut is_any_removed = false;
        // First: a canary that is read must not become active.
        for event in &change.events {
            let Some((tenant, name)) = head_of(event.key()) else { continue };
            match event {
                WatchEvent::Put(entry) => self.0.take_in_head(&tenant, &name, entry),
                WatchEvent::Delete(_) => self.0.head_deleted(&tenant, &name, change.revision),
            }
        }
        for event in &change.events {
            let Some(id) = id_of(event.key()) else { continue };
            match event {
                WatchEvent::Put(entry) => self.0.take_in(&id, entry).await,
                WatchEvent::Delete(_) => is_any_removed |= self.0.deleted(&id, change.revision),
            }
        }
        if is_any_removed && let Err(error) = self.0.sweep().await {
            tracing::warn!(%error, "removing the files of removed models failed");
        }
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.read_all().await {
            Ok(revision) => Ok(revision),
            Err(ModelsError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }

    fn reflected(&self, revision: Revision) {
        self.0.heard.advance(revision);
    }
}
