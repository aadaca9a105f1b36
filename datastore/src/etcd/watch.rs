//! Watches. Each watch has its own stream, and a task that reopens the stream when it breaks.

use super::client::protocol::WatchCreateRequest;
use super::client::protocol::event::EventType;
use super::client::{ClientError, EtcdClient, WatchStream, protocol};
use super::{EtcdStore, Root, number_of, revision_of};
use crate::watch::Feed;
use crate::{Change, Prefix, Result, Revision, Watch, WatchEvent};
use std::time::Duration;

/// Pause before the first attempt to reopen a stream. Doubles with each attempt, up to
/// [`RETRY_LONGEST`].
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// Watches `prefix`, with the semantics of [`Datastore::watch`](crate::Datastore::watch).
pub(super) async fn watch(store: &EtcdStore, prefix: &Prefix, after: Option<Revision>) -> Result<Watch> {
    let after = match after {
        Some(after) => after,
        None => store.revision().await?,
    };
    let (feed, watch) = Feed::new();
    // A prefix without an `after` always has a range.
    let Some((start, end)) = store.root.range(prefix, None) else { return Ok(watch) };
    let request = WatchCreateRequest {
        key: start.into(),
        range_end: end.into(),
        start_revision: number_of(after).saturating_add(1),
    };
    let stream = match store.outcome(&request).await? {
        Err(ClientError::Compacted { .. }) => {
            feed.lag();
            return Ok(watch);
        }
        opened => opened?,
    };
    let follower = EtcdWatcher { client: store.client.clone(), root: store.root.clone(), request };
    let closed = store.closed.clone();
    let continuity = store.continuity.clone();
    store.tasks.spawn(async move {
        tokio::select! {
            () = follower.follow(stream, &feed) => {}
            () = feed.closed() => {}
            () = closed.cancelled() => {}
            () = continuity.until_noticed() => {}
        }
    });
    Ok(watch)
}

struct EtcdWatcher {
    client: EtcdClient,
    root: Root,
    /// Starts at the first revision that was not yet delivered.
    request: WatchCreateRequest,
}

impl EtcdWatcher {
    /// Delivers changes to `feed` until its reader is dropped or changes were missed.
    async fn follow(mut self, mut stream: WatchStream, feed: &Feed) {
        loop {
            let failure = match stream.next().await {
                Ok(events) => match self.pass_on(events, feed) {
                    true => continue,
                    false => return,
                },
                Err(failure) => failure,
            };
            match self.reopen(failure).await {
                Some(reopened) => stream = reopened,
                None => return feed.lag(),
            }
        }
    }

    /// Reopens the watch after `failure`, retrying until etcd accepts it. `None` if etcd has
    /// compacted the revisions in between.
    async fn reopen(&self, mut failure: ClientError) -> Option<WatchStream> {
        let mut pause = RETRY_FIRST;
        while !matches!(failure, ClientError::Compacted { .. }) {
            tracing::debug!(error = %failure, "etcd watch stream lost");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_LONGEST);
            match self.client.call(&self.request).await {
                Ok(reopened) => return Some(reopened),
                Err(next) => failure = next,
            }
        }
        None
    }

    /// Delivers events to `feed`; false if `feed` wants no more changes.
    fn pass_on(&mut self, events: Vec<protocol::Event>, feed: &Feed) -> bool {
        changes_of(&self.root, events).into_iter().all(|change| {
            self.request.start_revision = number_of(change.revision).saturating_add(1);
            feed.offer(change)
        })
    }
}

/// Groups the events of one response, which holds whole revisions in order, into changes.
fn changes_of(root: &Root, events: Vec<protocol::Event>) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for event in events {
        let kind = event.r#type();
        let Some(found) = event.kv else { continue };
        let revision = revision_of(found.mod_revision);
        let told = match kind {
            EventType::Put => root.entry(found).map(WatchEvent::Put),
            EventType::Delete => root.key(&found.key).map(WatchEvent::Delete),
        };
        let Some(told) = told else { continue };
        match changes.last_mut() {
            Some(change) if change.revision == revision => change.events.push(told),
            _ => changes.push(Change { revision, events: vec![told] }),
        }
    }
    changes
}
