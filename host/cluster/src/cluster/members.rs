//! The cluster's members and its dispatcher.
//!
//! Keys: `cluster/nodes/{node}` has a node's address and protocol; `cluster/dispatcher` names the
//! dispatcher; `cluster/reports/{node}` has a node's activity, for status output; `cluster/next` is
//! the number of the next node, since numbers are never reused. The first three are under the lease
//! of the node that they describe.

use crate::wire::PROTOCOL;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use weir_datastore::{
    Change, Commit, Compare, Datastore, Entry, Error, Key, KeyError, Lease, Prefix, Revision, Transaction,
    WatchEvent,
};
use weir_storage::{Follow, follow as follow_prefix};
use weir_telemetry::DeviceReport;
use weir_types::{ContentHash, NodeId};

/// Prefix of the keys that describe running nodes.
pub const MEMBERSHIP: &str = "cluster/";
/// The number of attempts to get a node number while other nodes compete.
const NUMBERS_MAX: usize = 1_000;
/// The minimum interval between a node's reports.
const REPORT_EVERY: Duration = Duration::from_millis(900);
/// The minimum interval between two replacements of dispatchers by this node. A dispatcher that only
/// this node cannot reach would otherwise be replaced again and again.
const REPLACED_EVERY: Duration = Duration::from_secs(60);
/// The number of times that a lease is renewed within its duration.
const KEPT_PER_LEASE: u32 = 3;

/// A node's entry, as the other nodes see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's address, as `HOST:PORT`.
    pub address: String,
    /// The node's version of Weir.
    #[serde(default)]
    pub version: String,
    /// The node's [`PROTOCOL`].
    #[serde(default)]
    pub protocol: u32,
    /// A fingerprint that distinguishes the node's secret, or its use of certificates, from others
    /// without revealing it; `None` if the node does not publish one.
    #[serde(default)]
    pub secret: Option<ContentHash>,
}

/// A node's activity at the time of the report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityReport {
    pub(crate) running: u64,
    pub(crate) queued: u64,
    pub(crate) devices: Vec<DeviceReport>,
}

/// The latest reports of all nodes. Cheap to clone.
pub(super) type Reports = Arc<RwLock<BTreeMap<NodeId, ActivityReport>>>;

/// The node that places invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatcher {
    pub node: NodeId,
    /// The revision of the election, which is different for every election: the last write of the
    /// key, since an election may replace a lost dispatcher.
    pub elected_at: Revision,
}

/// The cluster's members and dispatcher, as stored in the datastore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    pub nodes: BTreeMap<NodeId, Member>,
    pub dispatcher: Option<Dispatcher>,
    /// Dispatchers that another node replaced because nothing listened at their addresses. They are
    /// members until their leases expire.
    pub replaced: BTreeSet<NodeId>,
}

/// A member of the cluster is incompatible with this node.
#[derive(Debug, thiserror::Error)]
enum Stranger {
    #[error(
        "node {} of the cluster, at {}, is of Weir {} and speaks protocol {} with other nodes; this is {}, which speaks {PROTOCOL}. \
         Stop all nodes of the other version first; see docs/guides/cluster.md, \"Upgrading\"",
        .0.0, .1.address, .1.version, .1.protocol, env!("CARGO_PKG_VERSION")
    )]
    Protocol(NodeId, Member),
    #[error(
        "node {} of the cluster, at {}, has another secret than this node, or only one of the two nodes has a secret or certificates: give all nodes certificates ([node.cluster.tls]), or the same --secret-file FILE",
        .0.0, .1.address
    )]
    Secret(NodeId, Member),
}

/// The cluster's keys.
#[derive(Debug, Clone)]
struct Keys {
    all: Prefix,
    nodes: Prefix,
    reports: Prefix,
    dispatcher: Key,
    next: Key,
}

/// A node's membership: its entry, and the lease that keeps the entry alive.
pub struct Membership {
    pub node: NodeId,
    pub address: String,
    /// The cluster at the time of joining.
    pub seen: (ClusterView, Revision),
    pub reports: Reports,
    datastore: Arc<dyn Datastore>,
    keys: Keys,
    lease: Lease,
    lease_time: Duration,
    secret: ContentHash,
    /// The last report, with its time.
    reported: Option<(Instant, ActivityReport)>,
    /// The time at which this node last replaced a lost dispatcher.
    replaced_at: Option<Instant>,
}

impl Keys {
    fn new() -> Result<Self, KeyError> {
        Ok(Self {
            all: Prefix::new(MEMBERSHIP)?,
            nodes: Prefix::new("cluster/nodes/")?,
            reports: Prefix::new("cluster/reports/")?,
            dispatcher: Key::new("cluster/dispatcher")?,
            next: Key::new("cluster/next")?,
        })
    }

    fn node(&self, node: NodeId) -> Result<Key, KeyError> {
        Key::new(&format!("{}{}", self.nodes, node.0))
    }

    fn report(&self, node: NodeId) -> Result<Key, KeyError> {
        Key::new(&format!("{}{}", self.reports, node.0))
    }
}

impl Membership {
    /// Joins as a member with this `address`.
    pub async fn join(
        datastore: Arc<dyn Datastore>,
        address: String,
        lease_time: Duration,
        secret: ContentHash,
        known_nodes_max: u32,
    ) -> anyhow::Result<Self> {
        let keys = Keys::new()?;
        read(&*datastore, &keys, &Reports::default()).await?.0.takes(secret)?;
        let node = number(&*datastore, &keys, known_nodes_max).await?;
        let lease = datastore.grant_lease(lease_time).await?;
        let mut membership = Self {
            node,
            address,
            seen: Default::default(),
            reports: Reports::default(),
            datastore,
            keys,
            lease,
            lease_time,
            secret,
            reported: None,
            replaced_at: None,
        };
        membership.enter(lease).await?;
        membership.seen = read(&*membership.datastore, &membership.keys, &membership.reports).await?;
        if let Err(stranger) = membership.seen.0.takes(secret) {
            // The incompatible node joined at the same time.
            membership.datastore.revoke_lease(lease.id).await?;
            return Err(stranger.into());
        }
        tracing::info!(node = node.0, address = membership.address, "joined the cluster");
        Ok(membership)
    }

    /// Remains a member until `stop`, and becomes the dispatcher whenever there is none, or when the
    /// current one is `lost`. While the datastore is unreachable nothing changes: no other node can
    /// be elected then either.
    pub async fn keep(
        mut self,
        mut view: watch::Receiver<ClusterView>,
        mut lost: watch::Receiver<Option<Dispatcher>>,
        report: impl Fn() -> ActivityReport + Send + 'static,
        stop: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(self.lease_time / KEPT_PER_LEASE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_reached = true;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = view.changed() => if changed.is_err() { break },
                changed = lost.changed() => if changed.is_err() { break },
                () = stop.cancelled() => break,
            }
            let dispatcher = view.borrow_and_update().dispatcher;
            let lost = *lost.borrow_and_update();
            let mut kept = self.keep_once(dispatcher, lost).await;
            let is_due = self.reported.as_ref().is_none_or(|(at, _)| at.elapsed() >= REPORT_EVERY);
            if kept.is_ok() && is_due {
                kept = self.report(report()).await;
            }
            if let Err(error) = &kept
                && is_reached
            {
                tracing::warn!(%error, "the cluster's datastore is unreachable: calls continue, deployments fail");
            }
            if kept.is_ok() && !is_reached {
                tracing::info!("the cluster's datastore is reachable again");
            }
            is_reached = kept.is_ok();
        }
        // The other nodes need not wait until the lease expires.
        if let Err(error) = self.datastore.revoke_lease(self.lease.id).await {
            tracing::debug!(%error, "revoking the node's lease failed");
        }
    }

    async fn keep_once(
        &mut self,
        dispatcher: Option<Dispatcher>,
        lost: Option<Dispatcher>,
    ) -> Result<(), Error> {
        // Limited, so that there is time for another attempt.
        let kept = timeout(self.lease_time / KEPT_PER_LEASE, self.datastore.keep_alive(self.lease.id));
        match kept.await.map_err(|late| Error::Unavailable { source: Arc::new(late) })? {
            Ok(_) => {}
            Err(Error::LeaseNotFound(_)) => {
                tracing::warn!(node = self.node.0, "the node's lease expired: rejoining the cluster");
                let lease = self.datastore.grant_lease(self.lease_time).await?;
                self.enter(lease).await?;
                self.lease = lease;
                self.reported = None;
            }
            Err(error) => return Err(error),
        }
        match dispatcher {
            None => {
                let key = self.keys.dispatcher.clone();
                self.campaign(Compare::Absent(key)).await?;
            }
            Some(dispatcher) if lost == Some(dispatcher) && self.may_replace() => {
                let key = self.keys.dispatcher.clone();
                if self.campaign(Compare::ModifiedAt(key, dispatcher.elected_at)).await? {
                    self.replaced_at = Some(Instant::now());
                }
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn may_replace(&self) -> bool {
        self.replaced_at.is_none_or(|at| at.elapsed() >= REPLACED_EVERY)
    }

    async fn enter(&self, lease: Lease) -> Result<(), Error> {
        let address = self.address.clone();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let member = Member { address, version, protocol: PROTOCOL, secret: Some(self.secret) };
        let key = self.keys.node(self.node).map_err(impossible)?;
        let writes = Transaction::new().put_leased(key, encode(&member), lease.id);
        self.datastore.commit(writes).await.map(|_| ())
    }

    /// Publishes `report` if it has changed.
    async fn report(&mut self, report: ActivityReport) -> Result<(), Error> {
        if self.reported.as_ref().is_none_or(|(_, before)| *before != report) {
            let key = self.keys.report(self.node).map_err(impossible)?;
            let writes = Transaction::new().put_leased(key, encode(&report), self.lease.id);
            self.datastore.commit(writes).await?;
        }
        self.reported = Some((Instant::now(), report));
        Ok(())
    }

    /// Becomes the dispatcher if the dispatcher's key meets `condition`. Returns whether it does.
    async fn campaign(&self, condition: Compare) -> Result<bool, Error> {
        let key = self.keys.dispatcher.clone();
        let writes = Transaction::new().when(condition).put_leased(key, encode(&self.node), self.lease.id);
        let Commit::Done(revision) = self.datastore.commit(writes).await? else { return Ok(false) };
        tracing::info!(node = self.node.0, elected_at = revision.0, "this node is the dispatcher now");
        Ok(true)
    }
}

/// Allocates a node number that was never used before, and that is larger than `known_max`.
async fn number(datastore: &dyn Datastore, keys: &Keys, known_max: u32) -> anyhow::Result<NodeId> {
    for _ in 0..NUMBERS_MAX {
        let found = datastore.get(&keys.next).await?;
        let next: u32 = match &found {
            None => 1,
            Some(entry) => serde_json::from_slice(&entry.value)?,
        };
        let next = next.max(known_max.saturating_add(1));
        let fence = match &found {
            None => Compare::Absent(keys.next.clone()),
            Some(entry) => Compare::ModifiedAt(keys.next.clone(), entry.modified_at),
        };
        let after =
            next.checked_add(1).ok_or_else(|| anyhow::anyhow!("there are no numbers left for nodes"))?;
        let writes = Transaction::new().when(fence).put(keys.next.clone(), encode(&after));
        if datastore.commit(writes).await?.done().is_some() {
            return Ok(NodeId(next));
        }
    }
    anyhow::bail!("too many nodes join at the same time; try again")
}

/// Follows changes of the members and the dispatcher, from the state in `seen`.
pub(super) fn follow(
    datastore: Arc<dyn Datastore>,
    (view, revision): (ClusterView, Revision),
    reports: Reports,
) -> (impl Future<Output = ()> + Send + 'static, watch::Receiver<ClusterView>) {
    let (sender, receiver) = watch::channel(view);
    let following = async move {
        if let Ok(keys) = Keys::new() {
            let follower = MembershipFollower { datastore: datastore.clone(), keys, view: sender, reports };
            follow_prefix(datastore, follower, revision).await;
        }
    };
    (following, receiver)
}

struct MembershipFollower {
    datastore: Arc<dyn Datastore>,
    keys: Keys,
    view: watch::Sender<ClusterView>,
    reports: Reports,
}

impl Follow for MembershipFollower {
    const WHAT: &'static str = "members of the cluster";

    fn prefix(&self) -> Option<Prefix> {
        Some(self.keys.all.clone())
    }

    async fn apply(&self, change: Change) {
        for event in &change.events {
            match event {
                WatchEvent::Put(entry) => note_report(&self.reports, &self.keys, entry),
                WatchEvent::Delete(key) => {
                    if let Some(node) = node_of(&self.keys.reports, key) {
                        self.reports.write().remove(&node);
                    }
                }
            }
        }
        self.view.send_if_modified(|view| {
            let before = view.clone();
            for event in &change.events {
                match event {
                    WatchEvent::Put(entry) => view.put(&self.keys, entry),
                    WatchEvent::Delete(key) => view.delete(&self.keys, key),
                }
            }
            *view != before
        });
    }

    async fn load(&self) -> Result<Revision, Error> {
        let (view, revision) = read(&*self.datastore, &self.keys, &self.reports).await?;
        self.view.send_replace(view);
        Ok(revision)
    }
}

impl ClusterView {
    /// Checks that all members use this node's protocol and secret.
    fn takes(&self, secret: ContentHash) -> Result<(), Stranger> {
        for (node, member) in &self.nodes {
            if member.protocol != PROTOCOL {
                return Err(Stranger::Protocol(*node, member.clone()));
            }
            if member.secret.is_some_and(|other| other != secret) {
                return Err(Stranger::Secret(*node, member.clone()));
            }
        }
        Ok(())
    }

    /// The dispatcher and its address, if both are known.
    pub(super) fn dispatcher(&self) -> Option<(Dispatcher, String)> {
        let dispatcher = self.dispatcher?;
        Some((dispatcher, self.nodes.get(&dispatcher.node)?.address.clone()))
    }

    fn put(&mut self, keys: &Keys, entry: &Entry) {
        if entry.key == keys.dispatcher {
            let node = serde_json::from_slice(&entry.value).ok();
            let before = self.dispatcher.map(|dispatcher| dispatcher.node);
            // A dispatcher that leaves, or whose lease expires, is deleted before the next election.
            self.replaced.extend(before.filter(|before| self.nodes.contains_key(before)));
            self.dispatcher = node.map(|node| Dispatcher { node, elected_at: entry.modified_at });
            if let Some(node) = node {
                self.replaced.remove(&node);
            }
        } else if let (Some(node), Ok(member)) =
            (node_of(&keys.nodes, &entry.key), serde_json::from_slice(&entry.value))
        {
            self.nodes.insert(node, member);
        }
    }

    fn delete(&mut self, keys: &Keys, key: &Key) {
        if *key == keys.dispatcher {
            self.dispatcher = None;
        } else if let Some(node) = node_of(&keys.nodes, key) {
            self.nodes.remove(&node);
            self.replaced.remove(&node);
        }
    }
}

fn note_report(reports: &Reports, keys: &Keys, entry: &Entry) {
    if let (Some(node), Ok(report)) =
        (node_of(&keys.reports, &entry.key), serde_json::from_slice(&entry.value))
    {
        reports.write().insert(node, report);
    }
}

async fn read(
    datastore: &dyn Datastore,
    keys: &Keys,
    reports: &Reports,
) -> Result<(ClusterView, Revision), Error> {
    let (entries, revision) = datastore.read_all(&keys.all).await?;
    let mut view = ClusterView::default();
    for entry in &entries {
        view.put(keys, entry);
        note_report(reports, keys, entry);
    }
    Ok((view, revision))
}

fn node_of(folder: &Prefix, key: &Key) -> Option<NodeId> {
    key.below(folder)?.parse().ok().map(NodeId)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // Strings and numbers: serialising them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Numbers are valid key segments.
fn impossible(error: KeyError) -> Error {
    Error::Unavailable { source: Arc::new(error) }
}

#[cfg(test)]
mod tests;
