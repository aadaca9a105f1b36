//! etcd backend, shared by the nodes of a Weir cluster.
//!
//! All keys lie below a configurable root, so that an etcd can serve other clients too. Reads are
//! etcd's linearizable reads, a [`Transaction`] is an etcd transaction, and leases and revisions
//! are etcd's.

mod address;
mod client;
mod continuity;
mod listing;
#[cfg(test)]
mod tests;
mod transaction;
mod watch;

pub use address::{EtcdAddress, EtcdAddressError};

use crate::lease::check_time_to_live;
use crate::{
    Commit, Datastore, Entry, Error, Key, Lease, LeaseId, Listing, Prefix, Result, Revision, Snapshot,
    StoreHealth, StoreUsage, Transaction, Watch,
};
use async_trait::async_trait;
use client::protocol::{
    CompactionRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest,
    ResponseHeader, StatusRequest,
};
use client::{ClientError, EtcdCall, EtcdClient};
use continuity::{Continuity, IDENTITY};
use rand::seq::SliceRandom as _;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// etcd's message about a compaction to an earlier revision than the last one.
const ALREADY_COMPACTED: &str = "required revision has been compacted";

/// A [`Datastore`] in etcd.
pub struct EtcdStore {
    client: EtcdClient,
    root: Root,
    /// Notices that the data was replaced. From then on, every call fails.
    continuity: Arc<Continuity>,
    closed: CancellationToken,
    /// Tasks of the watches. A task ends when its reader or the store is dropped.
    tasks: TaskTracker,
}

/// TLS to servers, as PEM. By default, servers need a certificate of the system's authorities.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// Certificates of the servers' authorities, instead of the system's.
    pub ca: Option<String>,
    /// Certificate and private key of this client.
    pub identity: Option<(String, String)>,
}

impl EtcdTls {
    fn config(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new();
        let config = match &self.ca {
            Some(ca) => config.ca_certificate(Certificate::from_pem(ca)),
            None => config.with_native_roots(),
        };
        match &self.identity {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        }
    }
}

/// Common prefix of all keys of one store in etcd. Cheap to clone.
#[derive(Debug, Clone)]
struct Root(Arc<str>);

impl EtcdStore {
    /// Connects to the etcd at `address`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no server answers within some seconds, or if etcd rejects the
    /// user.
    pub async fn connect(address: &EtcdAddress, tls: &EtcdTls) -> Result<Self> {
        let mut address = address.clone();
        // Random order, so that nodes with the same address spread over the servers.
        address.endpoints.shuffle(&mut rand::rng());
        Self::connect_in_order(&address, &tls.config()).await
    }

    /// Connects to the first server that answers.
    async fn connect_in_order(address: &EtcdAddress, tls: &ClientTlsConfig) -> Result<Self> {
        let client = EtcdClient::new(address, tls)?;
        let root = Root(address.root.as_str().into());
        let continuity = Arc::new(Continuity::new(client.clone(), &root));
        // The client connects on its first request.
        continuity.begin().await?;
        let closed = CancellationToken::new();
        let tasks = TaskTracker::new();
        let looking = continuity.clone();
        tasks.spawn(closed.clone().run_until_cancelled_owned(async move { looking.watch().await }));
        Ok(Self { client, root, continuity, closed, tasks })
    }

    /// The current revision.
    async fn revision(&self) -> Result<Revision> {
        let request =
            RangeRequest { key: self.root.prefixed("").into(), count_only: true, ..RangeRequest::default() };
        let answer = self.call(&request).await?;
        Ok(revision_in(answer.header))
    }

    /// Sends `request`. Maps every failure to [`Error`].
    async fn call<C: EtcdCall>(&self, request: &C) -> Result<C::Answer> {
        Ok(self.outcome(request).await??)
    }

    /// Sends `request`. The inner result keeps the client's error, for callers that handle some
    /// errors.
    async fn outcome<C: EtcdCall>(&self, request: &C) -> Result<Result<C::Answer, ClientError>> {
        self.continuity.check()?;
        let before = self.continuity.newest();
        let outcome =
            self.closed.run_until_cancelled(self.client.call(request)).await.ok_or(Error::Closed)?;
        if let Ok(answer) = &outcome
            && let Some(revision) = request.revision(answer)
        {
            self.continuity.note(before, revision)?;
        }
        Ok(outcome)
    }

    /// Sends a request about `lease`.
    async fn call_about<C: EtcdCall>(&self, lease: LeaseId, request: &C) -> Result<C::Answer> {
        match self.outcome(request).await? {
            Err(ClientError::LeaseNotFound) => {
                // Replaced data does not have the lease either.
                self.continuity.verify().await?;
                Err(Error::LeaseNotFound(lease))
            }
            answer => Ok(answer?),
        }
    }
}

#[async_trait]
impl Datastore for EtcdStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let request =
            RangeRequest { key: self.root.prefixed(key.as_str()).into(), ..RangeRequest::default() };
        let answer = self.call(&request).await?;
        Ok(answer.kvs.into_iter().next().and_then(|found| self.root.entry(found)))
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        listing::list(self, None, prefix, after, limit).await
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let store = Self {
            client: self.client.clone(),
            root: self.root.clone(),
            continuity: self.continuity.clone(),
            // The end of the copy does not close this store.
            closed: self.closed.child_token(),
            tasks: self.tasks.clone(),
        };
        Ok(Arc::new(listing::EtcdSnapshot { revision: self.revision().await?, store }))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit> {
        transaction.check()?;
        transaction::commit(self, transaction).await
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease> {
        check_time_to_live(time_to_live)?;
        let seconds = time_to_live.as_nanos().div_ceil(1_000_000_000).max(1);
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let granted = self.call(&LeaseGrantRequest { ttl }).await?;
        // etcd may grant more than the request: its minimum grows with its election timeout.
        Ok(Lease::new(LeaseId(granted.id.cast_unsigned()), seconds_of(granted.ttl)))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        self.call_about(lease, &LeaseKeepAliveRequest { id: id_of(lease) }).await.map(seconds_of)
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.call_about(lease, &LeaseRevokeRequest { id: id_of(lease) }).await
    }

    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> Result<Watch> {
        watch::watch(self, prefix, after).await
    }

    fn health(&self) -> StoreHealth {
        StoreHealth { failed_writes: 0, failure: self.continuity.failure() }
    }

    async fn until_replaced(&self) {
        self.continuity.until_settled().await;
    }

    async fn discard_history(&self, before: Revision) -> Result<()> {
        match self.outcome(&CompactionRequest { revision: number_of(before) }).await? {
            // Another client was ahead, or etcd's own compaction.
            Err(ClientError::Failed { source } | ClientError::Refused { source })
                if source.message().contains(ALREADY_COMPACTED) =>
            {
                Ok(())
            }
            discarded => Ok(discarded?),
        }
    }

    async fn usage(&self) -> Result<Option<StoreUsage>> {
        let status = self.call(&StatusRequest {}).await?;
        let bytes = |bytes: i64| u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        Ok(bytes(status.db_size).map(|total| StoreUsage {
            bytes: total,
            used_bytes: bytes(status.db_size_in_use).unwrap_or(total),
            quota_bytes: bytes(status.db_size_quota),
        }))
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
    /// The etcd key of `text`, a key or a key prefix.
    fn prefixed(&self, text: &str) -> String {
        format!("{}{text}", self.0)
    }

    /// The range of etcd keys for the keys below `prefix` after `after`: inclusive start, exclusive
    /// end.
    fn range(&self, prefix: &Prefix, after: Option<&Key>) -> Option<(String, String)> {
        let (start, end) = prefix.range(after)?;
        // '0' follows '/', the last character of the root.
        let all = || format!("{}0", self.0.trim_end_matches('/'));
        Some((self.prefixed(&start), end.map_or_else(all, |end| self.prefixed(&end))))
    }

    /// The key at `found` in etcd. Returns `None`, with a warning, if it is not a valid key.
    fn key(&self, found: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(found).ok()?.strip_prefix(&*self.0)?;
        if text == IDENTITY {
            return None;
        }
        let key = Key::new(text);
        key.inspect_err(
            |error| tracing::warn!(key = text, %error, "unknown key under Weir's prefix in etcd ignored"),
        )
        .ok()
    }

    fn entry(&self, found: KeyValue) -> Option<Entry> {
        Some(Entry {
            key: self.key(&found.key)?,
            value: found.value.into(),
            created_at: revision_of(found.create_revision),
            modified_at: revision_of(found.mod_revision),
            lease: (found.lease != 0).then(|| LeaseId(found.lease.cast_unsigned())),
        })
    }
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        match error {
            error @ ClientError::NoSpace(_) => Self::QuotaExceeded { source: Arc::new(error) },
            error => Self::Unavailable { source: Arc::new(error) },
        }
    }
}

/// Revision at which etcd served a request.
fn revision_in(header: Option<ResponseHeader>) -> Revision {
    revision_of(header.unwrap_or_default().revision)
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
