//! Applies changes in the datastore to the index of objects.

use super::record::{ObjectRecord, object_of, objects};
use super::{ObjectError, Objects};
use std::sync::Arc;
use weir_datastore::{Change, Entry, Prefix, Revision, WatchEvent};
use weir_storage::{Follow, follow};

impl Objects {
    /// Follows changes after `revision`, until the future is dropped.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        follow(self.datastore.clone(), ObjectFollower(self.clone()), revision)
    }

    /// Reads all records. Returns the revision that was read.
    pub(super) async fn load(&self) -> Result<Revision, ObjectError> {
        let (all, revision) = self.datastore.read_all(&objects()?).await?;
        let read = |entry: &Entry| {
            let (tenant, name) = object_of(&entry.key)?;
            Some((tenant, name, told(entry)?, entry.modified_at))
        };
        let all: Vec<_> = all.iter().filter_map(read).collect();
        self.known.write().load(all);
        self.leave_behind();
        self.heard_of(revision);
        Ok(revision)
    }

    fn apply(&self, change: &Change) {
        let mut was_there = false;
        {
            let mut known = self.known.write();
            for event in &change.events {
                let Some((tenant, name)) = object_of(event.key()) else { continue };
                was_there |= match event {
                    WatchEvent::Put(entry) => match told(entry) {
                        Some(record) => known.put(tenant, name, record, entry.modified_at),
                        None => known.remove(&tenant, &name),
                    },
                    WatchEvent::Delete(_) => known.remove(&tenant, &name),
                };
            }
        }
        // The blob of the earlier object has lost its record.
        if was_there {
            self.leave_behind();
        }
        self.heard_of(change.revision);
    }

    fn heard_of(&self, revision: Revision) {
        let (len, bytes) = self.read_known().usage();
        self.metrics.objects.usage(len, bytes);
        self.heard.advance(revision);
    }
}

/// Decodes a record. Logs and skips a damaged one.
fn told(entry: &Entry) -> Option<ObjectRecord> {
    ObjectRecord::decode(entry)
        .inspect_err(|error| tracing::error!(%error, "invalid record of an object ignored"))
        .ok()
}

struct ObjectFollower(Arc<Objects>);

impl Follow for ObjectFollower {
    const WHAT: &'static str = "objects";

    fn prefix(&self) -> Option<Prefix> {
        objects().ok()
    }

    async fn apply(&self, change: Change) {
        self.0.apply(&change);
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.load().await {
            Ok(revision) => Ok(revision),
            Err(ObjectError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
