//! An etcd cluster, for the nodes of a Weir cluster to share.
//!
//! All keys lie below a root of the address's choice, so that an etcd can serve others too. A read is one of etcd's linearizable reads; a
//! [`Transaction`] is one of its transactions; leases and revisions are its own.

mod address;
mod listing;
#[cfg(test)]
mod tests;
mod transaction;
mod watch;

pub use address::{EtcdAddress, EtcdAddressError};

use crate::lease::check_time_to_live;
use crate::{
    Commit, Datastore, Entry, Error, Key, Lease, LeaseId, Listing, Prefix, Result, Revision, Transaction,
    Watch,
};
use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{Client, ConnectOptions, GetOptions, KeyValue};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a call may take before the store counts as out of reach.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// How long one of its servers may take to be reached.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// A connection on which nothing comes back for so long is a dead one.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// What etcd says of a lease that it does not know.
const LEASE_NOT_FOUND: &str = "lease not found";

/// A [`Datastore`] kept by etcd.
pub struct EtcdStore {
    client: Client,
    root: Root,
    closed: CancellationToken,
    /// The tasks of watches. They end with their reader or with the store.
    tasks: TaskTracker,
}

/// What all keys of one store begin with in etcd. Cheap to clone.
#[derive(Debug, Clone)]
struct Root(Arc<str>);

impl EtcdStore {
    /// Connect to the etcd at `address`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if none of its servers answers within some seconds, or if it does not let this user in.
    pub async fn connect(address: &EtcdAddress) -> Result<Self> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIME_MAX)
            .with_keep_alive(SILENCE_MAX, SILENCE_MAX)
            .with_keep_alive_while_idle(true)
            // A server that has lost its peers says so, and does not leave watches waiting.
            .with_require_leader(true);
        if let Some((name, password)) = &address.user {
            options = options.with_user(name, password);
        }
        let connecting = Client::connect(&address.endpoints, Some(options));
        let client = in_time(connecting).await?;
        let store = Self {
            client,
            root: Root(address.root.as_str().into()),
            closed: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        // Connections are made when they are first used.
        store.revision().await?;
        Ok(store)
    }

    /// The newest revision.
    async fn revision(&self) -> Result<i64> {
        let mut kv = self.client.kv_client();
        let options = GetOptions::new().with_count_only();
        let answer = self.call(kv.get(self.root.0.as_bytes(), Some(options))).await?;
        Ok(answer.header().map_or(0, etcd_client::ResponseHeader::revision))
    }

    /// What etcd answers to `request`, while the store is open.
    async fn call<T>(&self, request: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T> {
        if self.closed.is_cancelled() {
            return Err(Error::Closed);
        }
        tokio::select! {
            answer = in_time(request) => answer,
            () = self.closed.cancelled() => Err(Error::Closed),
        }
    }

    /// The same, of a request about `lease`.
    async fn call_about<T>(
        &self,
        lease: LeaseId,
        request: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T> {
        let answer = self.call(async {
            match request.await {
                Err(error) if is_lease_not_found(&error) => Ok(None),
                answer => answer.map(Some),
            }
        });
        answer.await?.ok_or(Error::LeaseNotFound(lease))
    }
}

#[async_trait]
impl Datastore for EtcdStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let mut kv = self.client.kv_client().max_decoding_message_size(listing::ANSWER_BYTES_MAX);
        let answer = self.call(kv.get(self.root.of(key.as_str()), None)).await?;
        Ok(answer.kvs().first().and_then(|found| self.root.entry(found)))
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        listing::list(self, prefix, after, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit> {
        transaction.check()?;
        transaction::commit(self, transaction).await
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease> {
        check_time_to_live(time_to_live)?;
        let mut leases = self.client.lease_client();
        let seconds = time_to_live.as_nanos().div_ceil(1_000_000_000).max(1);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let granted = self.call(leases.grant(seconds, None)).await?;
        // At least what was asked for; etcd has a minimum that grows with its election timeout.
        Ok(Lease::new(LeaseId(granted.id().cast_unsigned()), seconds_of(granted.ttl())))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        let mut leases = self.client.lease_client();
        let renewed = self.call_about(lease, async {
            // Opening the stream renews it once; a second answer tells for how long.
            let (mut keeper, mut answers) = leases.keep_alive(id_of(lease)).await?;
            keeper.keep_alive().await?;
            let answer = answers.message().await?;
            Ok(answer.map_or(0, |answer| answer.ttl()))
        });
        match renewed.await? {
            ..=0 => Err(Error::LeaseNotFound(lease)),
            seconds => Ok(seconds_of(seconds)),
        }
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        let mut leases = self.client.lease_client();
        self.call_about(lease, leases.revoke(id_of(lease))).await.map(drop)
    }

    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> Result<Watch> {
        watch::watch(self, prefix, after).await
    }

    async fn close(&self) {
        self.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdStore").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Root {
    /// Where `text`, a key or the beginning of one, is in etcd.
    fn of(&self, text: &str) -> String {
        format!("{}{text}", self.0)
    }

    /// The keys below `prefix` that come after `after`, as etcd has them: from the first up to and without the second.
    fn range(&self, prefix: &Prefix, after: Option<&Key>) -> Option<(String, String)> {
        let (start, end) = prefix.range(after)?;
        // '0' follows the '/' that the root ends with.
        let all = || format!("{}0", self.0.trim_end_matches('/'));
        Some((self.of(&start), end.map_or_else(all, |end| self.of(&end))))
    }

    /// The key of what etcd has found. None for what somebody else has put there.
    fn key(&self, found: &KeyValue) -> Option<Key> {
        let text = std::str::from_utf8(found.key()).ok()?.strip_prefix(&*self.0)?;
        let key = Key::new(text);
        key.inspect_err(
            |error| tracing::warn!(key = text, %error, "ignored a key in etcd that is not Weir's"),
        )
        .ok()
    }

    fn entry(&self, found: &KeyValue) -> Option<Entry> {
        Some(Entry {
            key: self.key(found)?,
            value: Bytes::copy_from_slice(found.value()),
            created_at: revision_of(found.create_revision()),
            modified_at: revision_of(found.mod_revision()),
            lease: (found.lease() != 0).then(|| LeaseId(found.lease().cast_unsigned())),
        })
    }
}

async fn in_time<T>(request: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T> {
    match tokio::time::timeout(REQUEST_TIME_MAX, request).await {
        Ok(answer) => answer.map_err(|error| Error::Unavailable { source: Arc::new(error) }),
        Err(elapsed) => Err(Error::Unavailable { source: Arc::new(elapsed) }),
    }
}

fn is_lease_not_found(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.message().contains(LEASE_NOT_FOUND),
        etcd_client::Error::LeaseKeepAliveError(text) => text.contains(LEASE_NOT_FOUND),
        _ => false,
    }
}

/// etcd counts revisions and leases in 63 bits.
fn revision_of(revision: i64) -> Revision {
    Revision(revision.unsigned_abs())
}

fn number_of(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

fn id_of(lease: LeaseId) -> i64 {
    lease.0.cast_signed()
}

fn seconds_of(seconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs())
}
