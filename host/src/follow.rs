//! Keeping memory in step with what a cluster's nodes write into the datastore they share.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weir_datastore::{Change, Datastore, Error, Prefix, Revision, WatchEnd};

/// The pause before a datastore that is out of reach is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// How long anybody waits for news of what has been written.
const NEWS_TIME_MAX: Duration = Duration::from_secs(1);

/// The state of the datastore that something in memory is as of.
#[derive(Debug)]
pub(crate) struct Heard(watch::Sender<Revision>);

impl Default for Heard {
    fn default() -> Self {
        Self(watch::Sender::new(Revision(0)))
    }
}

impl Heard {
    /// Memory is as of `revision` now.
    pub(crate) fn of(&self, revision: Revision) {
        self.0.send_if_modified(|heard| std::mem::replace(heard, revision.max(*heard)) < revision);
    }

    /// Wait until the news have come of what was written at `revision`. Not for long: where they are slow, what waits for them goes on.
    pub(crate) async fn wait(&self, revision: Revision) {
        let mut heard = self.0.subscribe();
        let hearing = heard.wait_for(|heard| *heard >= revision);
        if tokio::time::timeout(NEWS_TIME_MAX, hearing).await.is_err() {
            tracing::debug!(%revision, "news of what was written are slow");
        }
    }
}

/// Something in memory that mirrors what is below a prefix.
pub(crate) trait Follow: Send + Sync + 'static {
    /// What it is, for logs.
    const WHAT: &'static str;

    /// Where it is kept; none if that is no prefix.
    fn prefix(&self) -> Option<Prefix>;

    /// Take in one commit.
    fn apply(&self, change: Change) -> impl Future<Output = ()> + Send;

    /// Read everything anew, and tell as of which revision.
    fn load(&self) -> impl Future<Output = Result<Revision, Error>> + Send;
}

/// Keep `follower` in step with what happens after `revision`, until the store closes. While the store is out of reach what is in memory
/// stays; where changes were missed, everything is read anew.
pub(crate) async fn follow<F: Follow>(datastore: Arc<dyn Datastore>, follower: F, mut revision: Revision) {
    let Some(prefix) = follower.prefix() else { return };
    loop {
        let mut watch = match datastore.watch(&prefix, Some(revision)).await {
            Ok(watch) => watch,
            Err(Error::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, what = F::WHAT, "cannot watch what other nodes change");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let end = loop {
            match watch.next().await {
                Ok(change) => follower.apply(change).await,
                Err(end) => break end,
            }
        };
        if end == WatchEnd::Closed {
            return;
        }
        tracing::info!(what = F::WHAT, "changes were missed: reading everything anew");
        revision = loop {
            match follower.load().await {
                Ok(revision) => break revision,
                Err(Error::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, what = F::WHAT, "cannot read what other nodes have changed");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
    }
}
