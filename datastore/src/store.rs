//! The trait of all backends.

use crate::{Commit, Entry, Key, Lease, LeaseId, Listing, Prefix, Result, Revision, Transaction, Watch};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Largest number of entries in one [`Listing`].
pub const LIST_LIMIT_MAX: usize = 1_000;

/// Whether a store can write.
#[derive(Debug, Clone, Default)]
pub struct StoreHealth {
    /// Number of writes that have failed since the start.
    pub failed_writes: u64,
    /// The failure of the last write; `None` while writes succeed.
    pub failure: Option<crate::Error>,
}

/// Space that a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreUsage {
    /// Size of the store's file.
    pub bytes: u64,
    /// Size without space that is free for new data.
    pub used_bytes: u64,
    /// Size of the file at which the store refuses writes; `None` if it is unknown.
    pub quota_bytes: Option<u64>,
}

/// A key-value store with transactions, leases and watches. Used as `Arc<dyn Datastore>`.
///
/// Every call sees all commits that returned before the call began. A backend retries recoverable
/// errors, such as a lost connection, within its own limits before it reports them.
#[async_trait]
pub trait Datastore: fmt::Debug + Send + Sync {
    /// Reads the entry at `key`.
    async fn get(&self, key: &Key) -> Result<Option<Entry>>;

    /// Lists up to `limit` entries (at least 1, at most [`LIST_LIMIT_MAX`]) below `prefix` in key
    /// order, starting with the first key after `after`.
    ///
    /// A listing is a snapshot, but the next page may be of a newer revision; see `read_all` for
    /// reading all pages. A listing can be shorter than `limit` although more entries follow.
    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing>;

    /// Takes a snapshot of all entries at the current revision, for readers of many pages.
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

    /// Applies all of `transaction` or nothing.
    async fn commit(&self, transaction: Transaction) -> Result<Commit>;

    /// Grants a lease that lives for at least `time_to_live` without a keep-alive. Backends round
    /// up, by less than a second, may have a minimum, and reject more than
    /// [`TIME_TO_LIVE_MAX`](crate::TIME_TO_LIVE_MAX).
    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease>;

    /// Restarts a lease's time to live and returns it.
    /// [`LeaseNotFound`](crate::Error::LeaseNotFound) means that the lease has expired, and that
    /// its entries are deleted or about to be deleted.
    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration>;

    /// Revokes a lease and deletes all entries attached to it, in one revision.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<()>;

    /// Watches the changes below `prefix` after revision `after`, or from now on. If the store no
    /// longer has the history since `after`, the watch ends at once with
    /// [`WatchEnd::Lagged`](crate::WatchEnd::Lagged).
    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> Result<Watch>;

    /// Whether the last writes succeeded, and whether the data is still the same. Does not block.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }

    /// Waits until other data has replaced the data of the store, because an operator has restored a
    /// copy or wiped the store. From then on, all calls fail with
    /// [`Replaced`](crate::Error::Replaced). Never returns for backends that lock their data.
    async fn until_replaced(&self) {
        std::future::pending::<()>().await;
    }

    /// Discards the history before a revision, of all users of the store. Watches of discarded
    /// revisions end with [`WatchEnd::Lagged`](crate::WatchEnd::Lagged). Backends that bound their
    /// history themselves do nothing.
    async fn discard_history(&self, before: Revision) -> Result<()> {
        let _ = before;
        Ok(())
    }

    /// The space that the store takes; `None` for backends without a size to report.
    async fn usage(&self) -> Result<Option<StoreUsage>> {
        Ok(None)
    }

    /// Finishes active operations and releases files and connections. Watches end, and later calls
    /// fail with [`Closed`](crate::Error::Closed). Closing twice is not an error.
    async fn close(&self);
}

/// The entries of a store at one revision. Later commits do not change it.
///
/// A backend keeps the entries of that revision until the snapshot is dropped. A backend that limits
/// its history may discard them earlier: reads then fail with [`Discarded`](crate::Error::Discarded).
#[async_trait]
pub trait Snapshot: fmt::Debug + Send + Sync {
    /// The revision.
    fn revision(&self) -> Revision;

    /// Lists entries, like [`Datastore::list`], with all pages at the snapshot's revision.
    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing>;
}

impl dyn Datastore + '_ {
    /// Reads all entries below `prefix`, and the revision of the first page, after which the caller
    /// should watch. An entry of a later page can be newer than that revision; the caller should
    /// ignore events that are not newer than their entry.
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
