//! Applies changes in the datastore to the index of triggers.

use crate::index::{KnownTrigger, StoredState};
use crate::plan::Plan;
use crate::record::{TriggerId, TriggerKey, TriggerRecord, decode, prefix};
use crate::{TriggerError, Triggers};
use std::sync::Arc;
use weir_datastore::{Change, Entry, Prefix, Revision, WatchEvent};
use weir_storage::{Follow, follow};
use weir_telemetry::logs::now_ms;

impl Triggers {
    /// Follows changes after `revision`, until the future is dropped.
    pub fn follow(self: &Arc<Self>, revision: Revision) -> impl Future<Output = ()> + Send + 'static {
        follow(self.datastore.clone(), TriggerFollower(self.clone()), revision)
    }

    /// Reads all records. Returns the revision that was read.
    pub(crate) async fn load(&self) -> Result<Revision, TriggerError> {
        let (all, revision) = self.datastore.read_all(&prefix()?).await?;
        let mut triggers: Vec<(TriggerId, KnownTrigger)> = Vec::new();
        let mut states = Vec::new();
        for entry in &all {
            match TriggerKey::parse(&entry.key) {
                Some(TriggerKey::Spec(id)) => triggers.extend(known(entry).await.map(|found| (id, found))),
                Some(TriggerKey::State(id)) => states.extend(state(entry).map(|found| (id, found))),
                None => {}
            }
        }
        self.known.lock().load(triggers, states, now_ms());
        self.stream_news.notify_one();
        self.heard_of(revision);
        Ok(revision)
    }

    async fn apply(&self, change: &Change) {
        for event in &change.events {
            let Some(key) = TriggerKey::parse(event.key()) else { continue };
            match (key, event) {
                (TriggerKey::Spec(id), WatchEvent::Put(entry)) => {
                    match known(entry).await {
                        Some(trigger) => self.known.lock().put(id, trigger, now_ms()),
                        None => self.known.lock().remove(id, now_ms()),
                    }
                    self.stream_news.notify_one();
                }
                (TriggerKey::Spec(id), WatchEvent::Delete(_)) => {
                    self.known.lock().remove(id, now_ms());
                    self.stream_news.notify_one();
                }
                (TriggerKey::State(id), WatchEvent::Put(entry)) => {
                    self.known.lock().put_state(id, state(entry), now_ms());
                }
                (TriggerKey::State(id), WatchEvent::Delete(_)) => {
                    self.known.lock().put_state(id, None, now_ms());
                }
            }
        }
        self.heard_of(change.revision);
    }

    fn heard_of(&self, revision: Revision) {
        let enabled = self.known.lock().enabled();
        self.metrics.triggers.enabled.set(i64::try_from(enabled).unwrap_or(i64::MAX));
        self.heard.advance(revision);
        self.news.notify_one();
    }
}

/// Decodes a record. Logs and skips a damaged one.
async fn known(entry: &Entry) -> Option<KnownTrigger> {
    let record: TriggerRecord = decode(entry)
        .inspect_err(|error| tracing::error!(%error, "invalid record of a trigger ignored"))
        .ok()?;
    let plan = Plan::new(&record.spec, record.since_ms).await;
    if let Err(error) = &plan {
        tracing::error!(%error, key = %entry.key, "this node cannot run a trigger");
    }
    Some(KnownTrigger { record, revision: entry.modified_at, plan })
}

/// Decodes a state. Logs and skips a damaged one.
fn state(entry: &Entry) -> Option<StoredState> {
    let state = decode(entry)
        .inspect_err(|error| tracing::error!(%error, "invalid state of a trigger ignored"))
        .ok()?;
    Some(StoredState { state, revision: entry.modified_at })
}

struct TriggerFollower(Arc<Triggers>);

impl Follow for TriggerFollower {
    const WHAT: &'static str = "triggers";

    fn prefix(&self) -> Option<Prefix> {
        prefix().ok()
    }

    async fn apply(&self, change: Change) {
        self.0.apply(&change).await;
    }

    async fn load(&self) -> Result<Revision, weir_datastore::Error> {
        match self.0.load().await {
            Ok(revision) => Ok(revision),
            Err(TriggerError::Datastore(error)) => Err(error),
            Err(other) => Err(weir_datastore::Error::Unavailable { source: Arc::new(other) }),
        }
    }
}
