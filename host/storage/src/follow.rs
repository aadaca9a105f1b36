//! Mirrors in memory the datastore that the nodes of a cluster share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use weir_datastore::{Change, Datastore, Error, Prefix, Revision, WatchEnd};

/// Pause before an unreachable datastore is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait for the event of a write.
const NEWS_TIME_MAX: Duration = Duration::from_secs(1);

/// Datastore revision that a part of memory reflects, and the newest one that this node has written.
#[derive(Debug)]
pub struct Heard {
    reflected: watch::Sender<Revision>,
    written: AtomicU64,
}

impl Default for Heard {
    fn default() -> Self {
        Self { reflected: watch::Sender::new(Revision(0)), written: AtomicU64::new(0) }
    }
}

impl Heard {
    /// Records that memory now reflects `revision`.
    pub fn advance(&self, revision: Revision) {
        self.reflected.send_if_modified(|heard| std::mem::replace(heard, revision.max(*heard)) < revision);
    }

    /// Waits until memory reflects `revision`, which this node has written, for a limited time:
    /// after slow events, the caller continues without them, and memory [is behind](Self::is_behind).
    pub async fn wait(&self, revision: Revision) {
        self.written.fetch_max(revision.0, Ordering::Relaxed);
        let mut heard = self.reflected.subscribe();
        let hearing = heard.wait_for(|heard| *heard >= revision);
        if tokio::time::timeout(NEWS_TIME_MAX, hearing).await.is_err() {
            tracing::debug!(%revision, "timed out waiting for a watch to deliver a written change");
        }
    }

    /// Waits until memory reflects `revision`, which any node may have written, for at most `time_max`.
    /// Returns whether it does.
    pub async fn reflects(&self, revision: Revision, time_max: Duration) -> bool {
        let mut heard = self.reflected.subscribe();
        let hearing = heard.wait_for(|heard| *heard >= revision);
        tokio::time::timeout(time_max, hearing).await.is_ok_and(|heard| heard.is_ok())
    }

    /// Whether memory does not reflect everything that this node has written, as while a watch is
    /// interrupted. Who must see these writes then reads the datastore.
    pub fn is_behind(&self) -> bool {
        self.reflected.borrow().0 < self.written.load(Ordering::Relaxed)
    }
}

/// A part of memory that mirrors the keys below a prefix.
pub trait Follow: Send + Sync + 'static {
    /// Name of the mirror, for logs.
    const WHAT: &'static str;

    /// Prefix of the mirrored keys; none if it is invalid.
    fn prefix(&self) -> Option<Prefix>;

    /// Applies one commit.
    fn apply(&self, change: Change) -> impl Future<Output = ()> + Send;

    /// Reloads everything, and returns the revision that it reflects.
    fn load(&self) -> impl Future<Output = Result<Revision, Error>> + Send;

    /// Notes that memory reflects `revision`: at the start, and after each change and reload.
    fn reflected(&self, _revision: Revision) {}
}

/// Applies the changes after `revision` to `follower`, until the store closes or its data is
/// replaced. While the store is unreachable, memory keeps its last state. After missed changes,
/// everything is reloaded.
pub async fn follow<F: Follow>(datastore: Arc<dyn Datastore>, follower: F, mut revision: Revision) {
    let Some(prefix) = follower.prefix() else { return };
    loop {
        follower.reflected(revision);
        let mut watch = match datastore.watch(&prefix, Some(revision)).await {
            Ok(watch) => watch,
            Err(Error::Closed | Error::Replaced { .. }) => return,
            Err(error) => {
                tracing::warn!(%error, what = F::WHAT, "watching the changes of other nodes failed, retrying");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let end = loop {
            match watch.next().await {
                Ok(change) => {
                    let revision = change.revision;
                    follower.apply(change).await;
                    follower.reflected(revision);
                }
                Err(end) => break end,
            }
        };
        if end == WatchEnd::Closed {
            return;
        }
        tracing::info!(what = F::WHAT, "watch missed changes: reading all records again");
        revision = loop {
            match follower.load().await {
                Ok(revision) => break revision,
                Err(Error::Closed | Error::Replaced { .. }) => return,
                Err(error) => {
                    tracing::warn!(%error, what = F::WHAT, "reading the changes of other nodes failed, retrying");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
    }
}
