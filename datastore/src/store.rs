//! The trait that every member implements.

use crate::{Commit, Entry, Key, Lease, LeaseId, Listing, Prefix, Result, Revision, Transaction, Watch};
use async_trait::async_trait;
use std::fmt;
use std::time::Duration;

/// The most entries in one [`Listing`].
pub const LIST_LIMIT_MAX: usize = 1_000;

/// Keys, transactions, leases and watches. Used as `Arc<dyn Datastore>`.
///
/// Every call sees all commits that returned before it began. Errors that a member can recover from by itself (a lost connection, say)
/// it retries within its own limits first.
#[async_trait]
pub trait Datastore: fmt::Debug + Send + Sync {
    /// The entry at `key`.
    async fn get(&self, key: &Key) -> Result<Option<Entry>>;

    /// Up to `limit` entries (at least 1, at most [`LIST_LIMIT_MAX`]) below `prefix` in key order, from the first key after `after`.
    ///
    /// One listing is one state of the store, but the next page may be of a newer one; `read_all` says what a reader of all pages does
    /// about that. A listing can be shorter than `limit` and still have more after it.
    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing>;

    /// Do all of `transaction` or nothing.
    async fn commit(&self, transaction: Transaction) -> Result<Commit>;

    /// Begin a lease that lives for at least `time_to_live` without being kept alive. Members round up, to whole seconds at most, may
    /// have a minimum, and refuse more than [`TIME_TO_LIVE_MAX`](crate::TIME_TO_LIVE_MAX).
    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease>;

    /// Start a lease's time anew. Returns how long it has now; [`LeaseNotFound`](crate::Error::LeaseNotFound) means that it has
    /// expired, and that what was written under it is gone or about to be.
    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration>;

    /// End a lease: everything written under it is deleted, in one revision.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<()>;

    /// Watch everything below `prefix` that changes after a revision, or from now on. A revision that the store has already forgotten
    /// the way from gives a watch that ends at once with [`WatchEnd::Lagged`](crate::WatchEnd::Lagged).
    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> Result<Watch>;

    /// Finish what was begun, let go of files and connections, and answer every later call with [`Closed`](crate::Error::Closed).
    /// Watches end. Closing twice is not an error.
    async fn close(&self);
}

impl dyn Datastore + '_ {
    /// Every entry below `prefix`, and the revision to watch after: that of the first page. An entry can be newer than that; events
    /// not newer than the entry they are about have nothing to say.
    pub async fn read_all(&self, prefix: &Prefix) -> Result<(Vec<Entry>, Revision)> {
        let Listing { mut entries, revision, mut more_after } =
            self.list(prefix, None, LIST_LIMIT_MAX).await?;
        while let Some(after) = more_after {
            let mut page = self.list(prefix, Some(&after), LIST_LIMIT_MAX).await?;
            entries.append(&mut page.entries);
            more_after = page.more_after;
        }
        Ok((entries, revision))
    }
}
