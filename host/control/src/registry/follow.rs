//! Follows the changes of other nodes.

use super::change::records_of;
use super::record::{self, EntryContents, Of, RecordKey, VersionRecord, parse, place};
use super::{DamagedRecord, DeploymentKind, Registry, RegistryError};
use parking_lot::MutexGuard;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_datastore::{Change, Revision, WatchEvent};
use weir_storage::{Follow, follow};
use weir_types::{Name, TenantId};

impl<K: DeploymentKind> Registry<K> {
    /// Follows changes after `revision`, until the future is dropped.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + use<K> {
        follow(self.datastore.clone(), RegistryFollower(self.clone()), revision)
    }

    /// Whether an event at `revision` happened after the name's deletion.
    pub(super) fn outlives_deletion(&self, tenant: &TenantId, name: &Name, revision: Revision) -> bool {
        let deleted = self.lock_deleted();
        deleted.get(&(tenant.clone(), name.clone())).is_none_or(|deleted_at| *deleted_at < revision)
    }

    pub(super) fn lock_deleted(&self) -> MutexGuard<'_, HashMap<(TenantId, Name), Revision>> {
        self.deleted.lock()
    }

    /// Applies one commit. Commits arrive in order; this node's own commits are already applied.
    fn apply(&self, change: &Change) {
        let mut names: BTreeMap<(TenantId, Name), Vec<(Of, &WatchEvent)>> = BTreeMap::new();
        for event in &change.events {
            match place(event.key()) {
                Ok(RecordKey { tenant, name, of }) => {
                    names.entry((tenant, name)).or_default().push((of, event));
                }
                Err(error) => self.note_damaged(event, &error),
            }
        }
        for ((tenant, name), events) in names {
            let before = self.get(&tenant, name.as_str());
            if before.as_ref().is_some_and(|before| before.revision >= change.revision) {
                continue;
            }
            let mut records = records_of(before.as_deref());
            let mut head = before.as_ref().map(|before| before.head.clone());
            let mut new = Vec::new();
            let mut is_any_removed = false;
            for (of, event) in events {
                match (of, event) {
                    (_, WatchEvent::Put(entry)) => match parse::<K::Record>(entry).map(|parsed| parsed.value)
                    {
                        Ok(EntryContents::Head(Ok(changed))) => head = Some(changed),
                        Ok(EntryContents::Version(Ok(record))) => {
                            new.push(record.version());
                            records.insert(record.version(), *record);
                        }
                        Ok(EntryContents::Head(Err(error)) | EntryContents::Version(Err(error)))
                        | Err(error) => {
                            self.note_damaged(event, &error);
                        }
                    },
                    (Of::Head, WatchEvent::Delete(_)) => head = None,
                    (Of::Version(version), WatchEvent::Delete(_)) => {
                        let removed = version.and_then(|version| records.remove(&version));
                        is_any_removed |= removed.is_some();
                    }
                }
            }
            let after = self.publish(&tenant, &name, change.revision, head.map(|head| (head, records)));
            // Reports only versions that still exist: an event of this node's own commit may arrive
            // after the deletion of the version.
            for deployment in
                after.iter().flat_map(|after| new.iter().filter_map(|new| after.versions.get(new)))
            {
                self.kind.heard_of(K::record(deployment));
            }
            if is_any_removed {
                self.kind.removed_elsewhere();
            }
        }
        self.lock_deleted().retain(|_, deleted_at| *deleted_at > change.revision);
    }

    fn note_damaged(&self, event: &WatchEvent, error: &RegistryError) {
        let key = event.key().clone();
        tracing::error!(%key, %error, "unreadable record ignored");
        let mut damaged = self.lock_damaged();
        damaged.retain(|damaged| damaged.key != key);
        damaged.push(DamagedRecord { key, why: error.to_string() });
    }
}

struct RegistryFollower<K: DeploymentKind>(Arc<Registry<K>>);

impl<K: DeploymentKind> Follow for RegistryFollower<K> {
    const WHAT: &'static str = K::ROOT;

    fn prefix(&self) -> Option<weir_datastore::Prefix> {
        record::prefix::<K>().ok()
    }

    async fn apply(&self, change: Change) {
        self.0.apply(&change);
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.read_all().await {
            Ok(revision) => Ok(revision),
            Err(RegistryError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }

    fn reflected(&self, revision: Revision) {
        self.0.heard.advance(revision);
    }
}
