//! Watches: ordered and gapless changes below a prefix.
//!
//! A watch ends when its reader drops it, when the reader is so slow that the buffer is full
//! ([`WatchEnd::Lagged`]), or when the store closes. A lagged reader lists again and watches from
//! the revision of the listing. No change is skipped silently, and a slow reader never delays a
//! writer.

use crate::{Entry, Key, Prefix, Revision};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// Largest number of changes buffered for a reader.
const WATCH_BUFFER_LEN_MAX: usize = 256;

/// Largest number of changes kept for watches that start at an earlier revision.
const HISTORY_LEN_MAX: usize = 1_024;

/// Largest total size of keys and values of those changes.
const HISTORY_BYTES_MAX: usize = 4 << 20;

/// All changes of one commit below the watched prefix, in the order of its writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Revision of the commit. Increases from change to change.
    pub revision: Revision,
    /// Events. Never empty.
    pub events: Vec<WatchEvent>,
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The key was written.
    Put(Entry),
    /// The key was deleted, directly or by the end of its lease.
    Delete(Key),
}

/// Reason why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The watch missed changes: the reader must list again and watch from there.
    #[error("the watch fell behind and missed changes")]
    Lagged,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// A stream of changes. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    /// Changes that precede the start of the watch.
    backlog: VecDeque<Change>,
    live: mpsc::Receiver<Change>,
    lagged: Arc<AtomicBool>,
}

impl Watch {
    /// The next change. Cancel-safe. After the end of the watch, every call returns the same
    /// [`WatchEnd`].
    pub async fn next(&mut self) -> Result<Change, WatchEnd> {
        if let Some(change) = self.backlog.pop_front() {
            return Ok(change);
        }
        self.live.recv().await.ok_or_else(|| {
            if self.lagged.load(Ordering::Acquire) { WatchEnd::Lagged } else { WatchEnd::Closed }
        })
    }
}

/// Sending end of a [`Watch`]. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Feed {
    live: mpsc::Sender<Change>,
    lagged: Arc<AtomicBool>,
}

impl Feed {
    /// Creates a watch and its feed.
    pub(crate) fn new() -> (Self, Watch) {
        let (sender, live) = mpsc::channel(WATCH_BUFFER_LEN_MAX);
        let lagged = Arc::new(AtomicBool::new(false));
        let watch = Watch { backlog: VecDeque::new(), live, lagged: lagged.clone() };
        (Self { live: sender, lagged }, watch)
    }

    /// Sends `change` without waiting for the reader. Returns false if the watch has ended because
    /// the reader dropped it or is too slow.
    pub(crate) fn offer(&self, change: Change) -> bool {
        match self.live.try_send(change) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.lag();
                false
            }
        }
    }

    /// Marks the watch as lagged. Must be called before the feed is dropped.
    pub(crate) fn lag(&self) {
        self.lagged.store(true, Ordering::Release);
    }

    /// Whether the reader has dropped the watch.
    fn is_closed(&self) -> bool {
        self.live.is_closed()
    }

    /// Waits until the reader has dropped the watch.
    pub(crate) async fn closed(&self) {
        self.live.closed().await;
    }
}

/// A watch that is registered with a [`Hub`].
#[derive(Debug)]
struct Watcher {
    prefix: Prefix,
    after: Revision,
    feed: Feed,
}

/// Distributes a store's changes to its watches, and keeps the latest changes for watches that
/// start at an earlier revision.
#[derive(Debug)]
pub(crate) struct Hub {
    watchers: Vec<Watcher>,
    history: VecDeque<Change>,
    history_bytes: usize,
    /// The history has every change after this revision.
    floor: Revision,
}

impl Hub {
    /// Creates a hub whose history starts after `revision`.
    pub(crate) fn new(revision: Revision) -> Self {
        Self { watchers: Vec::new(), history: VecDeque::new(), history_bytes: 0, floor: revision }
    }

    /// Publishes `change` to all watches. Calls must be in the order of revisions.
    pub(crate) fn publish(&mut self, change: Change) {
        self.watchers.retain(|watcher| watcher.offer(&change));
        self.remember(change);
    }

    /// Watches the changes below `prefix` after revision `after`, or from now on.
    pub(crate) fn watch(&mut self, prefix: &Prefix, after: Option<Revision>) -> Watch {
        self.watchers.retain(|watcher| !watcher.feed.is_closed());
        let newest = self.newest();
        let after = after.unwrap_or(newest);
        let (feed, mut watch) = Feed::new();
        if after < self.floor {
            feed.lag();
        } else {
            let missed = self.history.iter().filter(|change| change.revision > after);
            watch.backlog.extend(missed.filter_map(|change| change.below(prefix)));
            self.watchers.push(Watcher { prefix: prefix.clone(), after: after.max(newest), feed });
        }
        watch
    }

    /// Revision of the newest change that was published.
    pub(crate) fn newest(&self) -> Revision {
        self.history.back().map_or(self.floor, |change| change.revision)
    }

    /// Ends all watches as lagged, because the store has changes that were not published.
    pub(crate) fn lag_all(&mut self) {
        self.watchers.drain(..).for_each(|watcher| watcher.feed.lag());
    }

    /// Ends all watches.
    pub(crate) fn close(&mut self) {
        self.watchers.clear();
    }

    fn remember(&mut self, change: Change) {
        self.history_bytes += change.bytes();
        self.history.push_back(change);
        while self.history.len() > HISTORY_LEN_MAX || self.history_bytes > HISTORY_BYTES_MAX {
            let Some(forgotten) = self.history.pop_front() else { return };
            self.history_bytes -= forgotten.bytes();
            self.floor = forgotten.revision;
        }
    }
}

impl Watcher {
    /// Sends `change` if it concerns the watch. Returns false if the watch has ended.
    fn offer(&self, change: &Change) -> bool {
        if change.revision <= self.after {
            return true;
        }
        let Some(change) = change.below(&self.prefix) else { return true };
        self.feed.offer(change)
    }
}

impl Change {
    /// The part of the change below `prefix`, if any.
    fn below(&self, prefix: &Prefix) -> Option<Self> {
        let events: Vec<_> =
            self.events.iter().filter(|event| prefix.contains(event.key())).cloned().collect();
        (!events.is_empty()).then_some(Self { revision: self.revision, events })
    }

    fn bytes(&self) -> usize {
        self.events.iter().map(WatchEvent::bytes).sum()
    }
}

impl WatchEvent {
    /// The key of the event.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete(key) => key,
        }
    }

    fn bytes(&self) -> usize {
        let value_bytes = if let Self::Put(entry) = self { entry.value.len() } else { 0 };
        self.key().as_str().len() + value_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn put(revision: u64, key: &str, value_bytes: usize) -> Change {
        let revision = Revision(revision);
        let key = Key::new(key).unwrap();
        let value = Bytes::from(vec![0; value_bytes]);
        let entry = Entry { key, value, created_at: revision, modified_at: revision, lease: None };
        Change { revision, events: vec![WatchEvent::Put(entry)] }
    }

    #[tokio::test]
    async fn lagged_watch_delivers_its_buffer_before_the_end() {
        let mut hub = Hub::new(Revision(0));
        let mut slow = hub.watch(&Prefix::all(), None);
        let mut elsewhere = hub.watch(&Prefix::new("other/").unwrap(), None);
        let one_too_many = WATCH_BUFFER_LEN_MAX as u64 + 1;
        (1..=one_too_many).for_each(|revision| hub.publish(put(revision, "a/b", 1)));
        for revision in 1..one_too_many {
            assert_eq!(slow.next().await.unwrap().revision, Revision(revision));
        }
        assert_eq!(slow.next().await, Err(WatchEnd::Lagged));
        assert_eq!(slow.next().await, Err(WatchEnd::Lagged));
        hub.close();
        assert_eq!(
            elsewhere.next().await,
            Err(WatchEnd::Closed),
            "others' news must not fill a watch's buffer"
        );
    }

    #[tokio::test]
    async fn history_is_bounded_by_count_and_by_bytes() {
        for (value_bytes, kept) in [(0, HISTORY_LEN_MAX), (HISTORY_BYTES_MAX / 10, 9)] {
            let mut hub = Hub::new(Revision(0));
            let last = HISTORY_LEN_MAX as u64 + 10;
            (1..=last).for_each(|revision| hub.publish(put(revision, "a/b", value_bytes)));
            assert_eq!(hub.history.len(), kept);
            let known = last - kept as u64;
            let mut watch = hub.watch(&Prefix::all(), Some(Revision(known)));
            assert_eq!(watch.next().await.unwrap().revision, Revision(known + 1));
            let mut forgotten = hub.watch(&Prefix::all(), Some(Revision(known - 1)));
            assert_eq!(forgotten.next().await, Err(WatchEnd::Lagged));
        }
    }

    #[tokio::test]
    async fn dropped_watches_are_unregistered() {
        let mut hub = Hub::new(Revision(0));
        (0..100).for_each(|_| drop(hub.watch(&Prefix::all(), None)));
        assert_eq!(hub.watchers.len(), 1);
    }

    #[tokio::test]
    async fn watch_may_start_at_a_future_revision() {
        let mut hub = Hub::new(Revision(5));
        let mut watch = hub.watch(&Prefix::all(), Some(Revision(7)));
        (6..=8).for_each(|revision| hub.publish(put(revision, "a/b", 1)));
        assert_eq!(watch.next().await.unwrap().revision, Revision(8));
    }
}
