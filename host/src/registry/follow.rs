//! Following what other nodes change.

use super::change::records_of;
use super::record::{self, Of, Place, Value, parse, place};
use super::{Damaged, Registry, RegistryError};
use crate::follow::{Follow, follow};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use weir_datastore::{Change, Event, Revision};
use weir_types::{ContentHash, FunctionKind, Name, TenantId};

/// Components that wait to be prepared at most; the others are when they are first called.
const PREPARED_MAX: usize = 64;

/// A component that a call may soon want.
pub(crate) type Prepare = (ContentHash, FunctionKind);

impl Registry {
    /// Follow what is changed after `revision`, for as long as the future lives. Components that others have deployed come out of the
    /// channel.
    pub(crate) fn follow(
        self: &Arc<Self>,
        revision: Revision,
    ) -> (impl Future<Output = ()> + Send + 'static, mpsc::Receiver<Prepare>) {
        let (deployed, prepare) = mpsc::channel(PREPARED_MAX);
        let follower = Follower { registry: self.clone(), deployed };
        (follow(self.datastore.clone(), follower, revision), prepare)
    }

    /// Whether news of `revision` are about a function that came after its deletion.
    pub(super) fn outlives_deletion(&self, tenant: &TenantId, name: &Name, revision: Revision) -> bool {
        let deleted = self.lock_deleted();
        deleted.get(&(tenant.clone(), name.clone())).is_none_or(|deleted_at| *deleted_at < revision)
    }

    pub(super) fn lock_deleted(&self) -> MutexGuard<'_, HashMap<(TenantId, Name), Revision>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take in one commit. Commits arrive in order, but this node's own are known already.
    fn apply(&self, change: &Change, deployed: &mpsc::Sender<Prepare>) {
        let mut functions: BTreeMap<(TenantId, Name), Vec<(Of, &Event)>> = BTreeMap::new();
        for event in &change.events {
            match place(event.key()) {
                Ok(Place { tenant, name, of }) => {
                    functions.entry((tenant, name)).or_default().push((of, event));
                }
                Err(error) => self.note_damaged(event, &error),
            }
        }
        for ((tenant, name), events) in functions {
            let before = self.get(&tenant, name.as_str());
            if before.as_ref().is_some_and(|before| before.revision >= change.revision) {
                continue;
            }
            let mut records = records_of(before.as_deref());
            let mut head = before.as_ref().map(|before| before.head);
            for (of, event) in events {
                match (of, event) {
                    (_, Event::Put(entry)) => match parse(entry).map(|parsed| parsed.value) {
                        Ok(Value::Head(Ok(new))) => head = Some(new),
                        Ok(Value::Version(Ok(record))) => {
                            // Full or gone: it is prepared when it is called.
                            let _ = deployed.try_send((record.digest, record.kind));
                            records.insert(record.version, *record);
                        }
                        Ok(Value::Head(Err(error)) | Value::Version(Err(error))) | Err(error) => {
                            self.note_damaged(event, &error);
                        }
                    },
                    (Of::Head, Event::Delete(_)) => head = None,
                    (Of::Version(version), Event::Delete(_)) => {
                        version.and_then(|version| records.remove(&version));
                    }
                }
            }
            self.publish(&tenant, &name, change.revision, head.map(|head| (head, records)));
        }
        self.lock_deleted().retain(|_, deleted_at| *deleted_at > change.revision);
    }

    fn note_damaged(&self, event: &Event, error: &RegistryError) {
        let key = event.key().clone();
        tracing::error!(%key, %error, "a function's record cannot be read: it is left alone");
        let mut damaged = self.lock_damaged();
        damaged.retain(|damaged| damaged.key != key);
        damaged.push(Damaged { key, why: error.to_string() });
    }
}

struct Follower {
    registry: Arc<Registry>,
    deployed: mpsc::Sender<Prepare>,
}

impl Follow for Follower {
    const WHAT: &'static str = "functions";

    fn prefix(&self) -> Option<weir_datastore::Prefix> {
        record::prefix().ok()
    }

    async fn apply(&self, change: Change) {
        self.registry.apply(&change, &self.deployed);
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.registry.read_all().await {
            Ok(revision) => Ok(revision),
            Err(RegistryError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
