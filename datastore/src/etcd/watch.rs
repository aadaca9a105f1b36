//! Watches. Each has a stream of its own, and a task that takes it up again after the connection was lost.

use super::{EtcdStore, REQUEST_TIME_MAX, Root, listing, number_of, revision_of};
use crate::watch::Feed;
use crate::{Change, Event, Prefix, Result, Revision, Watch};
use etcd_client::{EventType, WatchClient, WatchOptions, WatchResponse, WatchStream};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The first pause before a stream is taken up again, doubled each time up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// A watch below `prefix`, as [`Datastore::watch`](crate::Datastore::watch) says.
pub(super) async fn watch(store: &EtcdStore, prefix: &Prefix, after: Option<Revision>) -> Result<Watch> {
    let after = match after {
        Some(after) => number_of(after),
        None => store.revision().await?,
    };
    let (feed, watch) = Feed::new();
    // A prefix without an `after` always has a range.
    let Some((start, end)) = store.root.range(prefix, None) else { return Ok(watch) };
    let client = store.client.watch_client().max_decoding_message_size(listing::ANSWER_BYTES_MAX);
    let mut follower =
        Follower { client, root: store.root.clone(), start, end, next: after.saturating_add(1), feed };
    let stream = store.call(follower.open()).await?;
    let closed = store.closed.clone();
    store.tasks.spawn(async move { follower.follow(stream, closed).await });
    Ok(watch)
}

/// Why a stream has ended.
enum End {
    /// Nobody wants to know any more, or the way from the last change to the next is lost.
    Over,
    /// The connection was lost, or the server has gone.
    Broken,
}

struct Follower {
    client: WatchClient,
    root: Root,
    start: String,
    end: String,
    /// The first revision that has not been passed on.
    next: i64,
    feed: Feed,
}

impl Follower {
    async fn open(&mut self) -> Result<WatchStream, etcd_client::Error> {
        let options = WatchOptions::new().with_range(self.end.as_str()).with_start_revision(self.next);
        self.client.watch(self.start.as_str(), Some(options)).await
    }

    /// Pass changes on until the reader or the store has gone, or changes were missed.
    async fn follow(mut self, stream: WatchStream, closed: CancellationToken) {
        let mut stream = Some(stream);
        let mut pause = RETRY_FIRST;
        loop {
            let end = tokio::select! {
                end = async {
                    match &mut stream {
                        Some(stream) => Self::pass_on(&self.root, &self.feed, &mut self.next, &mut pause, stream).await,
                        None => End::Broken,
                    }
                } => end,
                () = self.feed.closed() => return,
                () = closed.cancelled() => return,
            };
            if matches!(end, End::Over) {
                return;
            }
            tracing::debug!(prefix = self.start, "a watch has lost its connection to etcd");
            let reopened = async {
                tokio::time::sleep(pause).await;
                tokio::time::timeout(REQUEST_TIME_MAX, self.open()).await
            };
            // The reader's leaving is noticed at the next turn.
            stream = tokio::select! {
                stream = reopened => stream.ok().and_then(std::result::Result::ok),
                () = closed.cancelled() => return,
            };
            pause = (pause * 2).min(RETRY_LONGEST);
        }
    }

    async fn pass_on(
        root: &Root,
        feed: &Feed,
        next: &mut i64,
        pause: &mut Duration,
        stream: &mut WatchStream,
    ) -> End {
        loop {
            let Ok(Some(answer)) = stream.message().await else { return End::Broken };
            if answer.canceled() {
                if answer.compact_revision() == 0 {
                    return End::Broken;
                }
                // etcd has forgotten what comes next.
                feed.lag();
                return End::Over;
            }
            *pause = RETRY_FIRST;
            for change in changes_of(root, &answer) {
                *next = number_of(change.revision).saturating_add(1);
                if !feed.offer(change) {
                    return End::Over;
                }
            }
        }
    }
}

/// The changes in one answer, which holds whole revisions in order.
fn changes_of(root: &Root, answer: &WatchResponse) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for event in answer.events() {
        let Some(found) = event.kv() else { continue };
        let told = match event.event_type() {
            EventType::Put => root.entry(found).map(Event::Put),
            EventType::Delete => root.key(found).map(Event::Delete),
        };
        let Some(told) = told else { continue };
        let revision = revision_of(found.mod_revision());
        match changes.last_mut() {
            Some(change) if change.revision == revision => change.events.push(told),
            _ => changes.push(Change { revision, events: vec![told] }),
        }
    }
    changes
}
