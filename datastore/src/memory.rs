//! In-memory backend, for tests and for nodes without durable state. Dropping the store discards
//! its data.

use crate::lease::{Deadlines, check_time_to_live};
use crate::watch::Hub;
use crate::{
    Change, Commit, Datastore, Entry, Error, Key, Lease, LeaseId, Listing, Prefix, Result, Revision,
    Snapshot, Transaction, Watch, WatchEvent, Write,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A [`Datastore`] in memory.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<MemoryShared>,
    expiry: JoinHandle<()>,
}

#[derive(Debug)]
struct MemoryShared {
    /// `None` once closed. The lock is never held across an await.
    state: Mutex<Option<MemoryState>>,
    deadlines: Deadlines,
}

#[derive(Debug)]
struct MemoryState {
    revision: Revision,
    entries: BTreeMap<Key, Entry>,
    leased: HashMap<LeaseId, BTreeSet<Key>>,
    leases_granted: u64,
    hub: Hub,
}

impl MemoryStore {
    /// Creates an empty store. Lease expiry runs as a task of the current tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        let state = MemoryState {
            revision: Revision(0),
            entries: BTreeMap::new(),
            leased: HashMap::new(),
            leases_granted: 0,
            hub: Hub::new(Revision(0)),
        };
        let shared =
            Arc::new(MemoryShared { state: Mutex::new(Some(state)), deadlines: Deadlines::default() });
        let expiry = tokio::spawn(expire(shared.clone()));
        Self { shared, expiry }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

#[async_trait]
impl Datastore for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>> {
        self.shared.with(|state| Ok(state.entries.get(key).cloned()))
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        self.shared.with(|state| Ok(page(state.revision, &state.entries, prefix, after, limit)))
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.shared.with(|state| {
            let copy = MemorySnapshot { revision: state.revision, entries: state.entries.clone() };
            Ok(Arc::new(copy) as Arc<dyn Snapshot>)
        })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit> {
        transaction.check()?;
        self.shared.with(|state| state.commit(transaction, &self.shared.deadlines))
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease> {
        check_time_to_live(time_to_live)?;
        self.shared.with(|state| {
            state.leases_granted += 1;
            let lease = Lease::new(LeaseId(state.leases_granted), time_to_live);
            self.shared.deadlines.insert(lease);
            Ok(lease)
        })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        self.shared.with(|_| self.shared.deadlines.renew(lease).ok_or(Error::LeaseNotFound(lease)))
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.shared.with(|state| {
            if !self.shared.deadlines.remove(lease) {
                return Err(Error::LeaseNotFound(lease));
            }
            state.end_lease(lease);
            Ok(())
        })
    }

    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> Result<Watch> {
        self.shared.with(|state| Ok(state.hub.watch(prefix, after)))
    }

    async fn close(&self) {
        self.expiry.abort();
        drop(self.shared.state.lock().take());
    }
}

/// A copy of the entries.
#[derive(Debug)]
struct MemorySnapshot {
    revision: Revision,
    entries: BTreeMap<Key, Entry>,
}

#[async_trait]
impl Snapshot for MemorySnapshot {
    fn revision(&self) -> Revision {
        self.revision
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        Ok(page(self.revision, &self.entries, prefix, after, limit))
    }
}

/// One page of the entries below `prefix` after `after`.
fn page(
    revision: Revision,
    entries: &BTreeMap<Key, Entry>,
    prefix: &Prefix,
    after: Option<&Key>,
    limit: usize,
) -> Listing {
    let listing = Listing::new(revision);
    let Some((start, end)) = prefix.range(after) else { return listing };
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let entries = entries.range::<str, _>((Bound::Included(start.as_str()), end));
    let Ok(listing) = listing.fill(limit, entries.map(|(_, entry)| Ok::<_, Infallible>(entry.clone())));
    listing
}

/// Ends expired leases and deletes their entries. Runs until it is aborted or the store is closed.
async fn expire(shared: Arc<MemoryShared>) {
    loop {
        let expired = shared.deadlines.expired().await;
        let ended = shared.with(|state| {
            expired.iter().for_each(|lease| state.end_lease(lease.id));
            Ok(())
        });
        if ended.is_err() {
            return;
        }
    }
}

impl MemoryShared {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryState) -> Result<T>) -> Result<T> {
        act(self.state.lock().as_mut().ok_or(Error::Closed)?)
    }
}

impl MemoryState {
    fn commit(&mut self, transaction: Transaction, deadlines: &Deadlines) -> Result<Commit> {
        let Transaction { compares, writes } = transaction;
        if !compares.iter().all(|compare| compare.holds(self.entries.get(compare.key()))) {
            return Ok(Commit::Conflict);
        }
        for write in &writes {
            if let Write::Put { lease: Some(lease), .. } = write
                && !deadlines.contains(*lease)
            {
                return Err(Error::LeaseNotFound(*lease));
            }
        }
        self.write(writes);
        Ok(Commit::Done(self.revision))
    }

    fn end_lease(&mut self, lease: LeaseId) {
        let keys = self.leased.remove(&lease).unwrap_or_default();
        self.write(keys.into_iter().map(Write::Delete).collect());
    }

    /// Applies `writes` as one revision, if they change anything.
    fn write(&mut self, writes: Vec<Write>) {
        let revision = self.revision.next();
        let events: Vec<_> = writes.into_iter().filter_map(|write| self.write_one(write, revision)).collect();
        if !events.is_empty() {
            self.revision = revision;
            self.hub.publish(Change { revision, events });
        }
    }

    fn write_one(&mut self, write: Write, revision: Revision) -> Option<WatchEvent> {
        let old = self.entries.remove(write.key());
        if let Some(Entry { lease: Some(lease), key, .. }) = &old
            && let Some(keys) = self.leased.get_mut(lease)
        {
            keys.remove(key);
        }
        match write {
            Write::Delete(key) => old.map(|_| WatchEvent::Delete(key)),
            Write::Put { key, value, lease } => {
                let created_at = old.map_or(revision, |old| old.created_at);
                let entry = Entry { key: key.clone(), value, created_at, modified_at: revision, lease };
                if let Some(lease) = lease {
                    self.leased.entry(lease).or_default().insert(key.clone());
                }
                self.entries.insert(key, entry.clone());
                Some(WatchEvent::Put(entry))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::conformance_tests!(async || (Arc::new(MemoryStore::new()) as Arc<dyn Datastore>, ()));
}
