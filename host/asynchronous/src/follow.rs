//! Applies changes in the datastore to the index, and wakes waiting clients.

use super::record::{IndexKey, decode, index, place};
use super::{AsyncError, Invocations, now_ms};
use rand::Rng;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use weir_datastore::{Change, Prefix, Revision, WatchEvent};
use weir_storage::{Follow, follow};
use weir_types::AsyncId;

/// Divisor of the lease time: nodes start to take over from a lost node within that fraction.
const SPREAD: u64 = 4;

impl Invocations {
    /// Applies the changes after `revision`, for the lifetime of the future.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        follow(self.datastore.clone(), InvocationFollower(self.clone()), revision)
    }

    /// Reads all invocations, and returns the revision that they reflect.
    pub(super) async fn load(&self) -> Result<Revision, AsyncError> {
        let (all, revision) = self.datastore.read_all(&index()?).await?;
        let mut entries = Vec::new();
        let mut claims = Vec::new();
        for found in &all {
            match place(&found.key) {
                Some(IndexKey::Entry(id)) => entries.extend(told(decode(found)).map(|entry| (id, entry))),
                Some(IndexKey::Claim(id)) => claims.extend(told(decode(found)).map(|owner| (id, owner))),
                None => {}
            }
        }
        self.index.lock().load(entries, claims);
        self.has_leftovers.store(true, Ordering::Relaxed);
        self.heard_of(revision);
        let waiting = self.waiting.lock();
        waiting.values().for_each(|waiting| waiting.send_replace(()));
        Ok(revision)
    }

    fn apply(&self, change: &Change) {
        let spread_ms = if self.is_alone { 0 } else { self.config.lease_ms / SPREAD };
        let mut changed = Vec::new();
        {
            let mut index = self.index.lock();
            for event in &change.events {
                match (place(event.key()), event) {
                    (Some(IndexKey::Entry(id)), WatchEvent::Put(entry)) => {
                        changed.push(id);
                        told(decode(entry)).into_iter().for_each(|entry| index.put(id, entry));
                    }
                    (Some(IndexKey::Entry(id)), WatchEvent::Delete(_)) => {
                        changed.push(id);
                        index.remove(id);
                        self.has_leftovers.store(true, Ordering::Relaxed);
                    }
                    (Some(IndexKey::Claim(id)), WatchEvent::Put(entry)) => {
                        told(decode(entry)).into_iter().for_each(|owner| index.claim(id, owner));
                    }
                    (Some(IndexKey::Claim(id)), WatchEvent::Delete(_)) => {
                        index.unclaim(id, now_ms() + rand::rng().random_range(0..=spread_ms));
                    }
                    (None, _) => {}
                }
            }
        }
        self.heard_of(change.revision);
        let waiting = self.waiting.lock();
        changed.iter().filter_map(|id| waiting.get(id)).for_each(|waiting| waiting.send_replace(()));
    }

    fn heard_of(&self, revision: Revision) {
        self.count();
        self.heard.advance(revision);
        self.news.notify_one();
    }

    /// Updates the queue metrics.
    pub(super) fn count(&self) {
        let (live, working) = self.index.lock().len();
        self.metrics.asynchronous.queue(live, working);
    }

    /// Subscribes to changes of an invocation.
    pub(super) fn news_of(&self, id: AsyncId) -> watch::Receiver<()> {
        let mut waiting = self.waiting.lock();
        waiting.retain(|_, waiting| waiting.receiver_count() > 0);
        waiting.entry(id).or_insert_with(|| watch::Sender::new(())).subscribe()
    }
}

/// Returns the decoded value, or logs the error. An unreadable record stays as it is.
fn told<T>(read: Result<T, AsyncError>) -> Option<T> {
    read.inspect_err(|error| tracing::error!(%error, "invalid record of an asynchronous invocation ignored"))
        .ok()
}

struct InvocationFollower(Arc<Invocations>);

impl Follow for InvocationFollower {
    const WHAT: &'static str = "asynchronous invocations";

    fn prefix(&self) -> Option<Prefix> {
        index().ok()
    }

    async fn apply(&self, change: Change) {
        self.0.apply(&change);
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.load().await {
            Ok(revision) => Ok(revision),
            Err(AsyncError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
