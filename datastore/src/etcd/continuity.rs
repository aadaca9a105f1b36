//! Detection of an etcd whose data was replaced: restored from a copy, or wiped.
//!
//! The revision of an etcd only grows, so a reply with a smaller revision than an earlier reply
//! comes from other data. The revision alone does not show every replacement: the new data may have
//! passed the old revision before the next reply. Therefore the store has a random identity under a
//! key, which every client reads regularly. A client that sees the revision go back changes the
//! identity of restored data, so that the other clients notice.

use super::client::protocol::compare::{CompareResult, CompareTarget, TargetUnion};
use super::client::protocol::request_op::Request;
use super::client::protocol::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::client::{AnswerRevision, EtcdCall, EtcdClient};
use super::{Root, revision_of};
use crate::{Error, Result, Revision};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Interval at which the identity is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Attempts to change the identity of replaced data.
const CHANGES_MAX: u32 = 5;
/// Name of the identity below the root. The space keeps it apart from every [`Key`](crate::Key).
pub(super) const IDENTITY: &str = "store identity";

/// The identity and the newest revision of the data, as one client has read them, and whether the
/// data was replaced.
pub(super) struct Continuity {
    client: EtcdClient,
    key: String,
    /// The identity that the client found when it connected.
    identity: OnceLock<Vec<u8>>,
    /// The largest revision of a reply.
    newest: AtomicU64,
    /// The reason why the data counts as replaced.
    replaced: OnceLock<String>,
    /// Cancelled when the data counts as replaced.
    noticed: CancellationToken,
    /// Cancelled when the other clients will notice, too.
    settled: CancellationToken,
}

impl Continuity {
    pub(super) fn new(client: EtcdClient, root: &Root) -> Self {
        Self {
            client,
            key: root.prefixed(IDENTITY),
            identity: OnceLock::new(),
            newest: AtomicU64::new(0),
            replaced: OnceLock::new(),
            noticed: CancellationToken::new(),
            settled: CancellationToken::new(),
        }
    }

    /// Reads the identity of the store, which is created at the first connection.
    pub(super) async fn begin(&self) -> Result<()> {
        loop {
            if let Some(found) = self.read().await? {
                self.identity.get_or_init(|| found);
                return Ok(());
            }
            // Another client may be first.
            let absent = (CompareTarget::Version, TargetUnion::Version(0));
            self.client.call(&self.write(absent)).await?;
        }
    }

    /// Fails once the data was replaced.
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// The error of all calls since the data was replaced.
    pub(super) fn failure(&self) -> Option<Error> {
        self.replaced.get().map(|why| Error::Replaced { why: why.clone() })
    }

    /// Waits until the data is replaced.
    pub(super) async fn until_noticed(&self) {
        self.noticed.cancelled().await;
    }

    /// Waits until the data is replaced, and until the other clients will notice it, too.
    pub(super) async fn until_settled(&self) {
        self.settled.cancelled().await;
    }

    /// The largest revision so far, to be read before a request is sent.
    pub(super) fn newest(&self) -> Revision {
        Revision(self.newest.load(Ordering::Acquire))
    }

    /// Records the revision of an answer. `before` was the newest revision when the request was
    /// sent. Fails if the data was replaced.
    pub(super) fn note(&self, before: Revision, answer: AnswerRevision) -> Result<()> {
        let revision = revision_of(answer.revision);
        self.newest.fetch_max(revision.0, Ordering::AcqRel);
        if revision < before || (answer.is_new && revision == before) {
            self.lose(&format!("its revision is {revision} after {before}"));
        }
        self.check()
    }

    /// Reads and compares the identity of the store. Fails if the data was replaced or if etcd does
    /// not answer.
    pub(super) async fn verify(&self) -> Result<()> {
        let found = self.read().await?;
        match (&found, self.identity.get()) {
            (Some(found), Some(identity)) if found == identity => {}
            (None, _) => self.lose("its identity is missing"),
            _ => self.lose("it has another identity"),
        }
        self.check()
    }

    /// Reads the identity regularly until the data is replaced. Then changes the identity, so that
    /// the other clients notice.
    pub(super) async fn watch(&self) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.replaced.get().is_none() {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.noticed.cancelled() => break,
            }
            // While etcd does not answer, nothing is known.
            let _ = self.verify().await;
        }
        self.change_identity().await;
        self.settled.cancel();
    }

    /// Replaces the identity of the data. Has no effect if another client replaced or removed the
    /// identity first.
    async fn change_identity(&self) {
        let Some(identity) = self.identity.get() else { return };
        for _ in 0..CHANGES_MAX {
            let same = (CompareTarget::Value, TargetUnion::Value(identity.clone().into()));
            match self.client.call(&self.write(same)).await {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "changing the identity of the replaced data failed"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn read(&self) -> Result<Option<Vec<u8>>> {
        let before = self.newest();
        let request = RangeRequest { key: self.key.clone().into(), ..RangeRequest::default() };
        let answer = self.client.call(&request).await?;
        if let Some(revision) = request.revision(&answer) {
            self.note(before, revision)?;
        }
        Ok(answer.kvs.into_iter().next().map(|found| found.value))
    }

    /// Puts a new identity, if the key compares equal.
    fn write(&self, (target, union): (CompareTarget, TargetUnion)) -> TxnRequest {
        let new = format!("{:032x}", rand::random::<u128>());
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: target.into(),
            key: self.key.clone().into(),
            target_union: Some(union),
        };
        let put = PutRequest { key: self.key.clone().into(), value: new.into(), lease: 0 };
        TxnRequest {
            compare: vec![compare],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        }
    }

    fn lose(&self, why: &str) {
        if self.replaced.set(why.to_owned()).is_ok() {
            tracing::error!(why, "the data of etcd was replaced: it was restored from a copy, or wiped");
            self.noticed.cancel();
        }
    }
}
