//! Cluster membership, choice of the dispatcher, and forwarding of calls between nodes.
//!
//! Nodes discover each other in the datastore. Each node has an entry under a lease ([`members`]).
//! One node holds an additional entry: it is the dispatcher, and its scheduler places the
//! invocations of all nodes. The other nodes keep a link to the dispatcher ([`link`] on their side,
//! [`dispatcher_server`] on its side), over which they report events and receive commands. A call
//! of a name that the node knows never waits for the datastore. A call that is placed on another
//! node is forwarded ([`forward`]) as the original HTTP request.

mod auth;
mod connector;
mod dispatcher_server;
mod election;
mod events;
mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod holders;
mod joining;
mod link;
mod members;
mod outcomes;
mod secret;

pub use auth::NodeAuth;
pub use dispatcher_server::{LINK_PATH, answer_link};
pub use events::{EVENTS_PATH, answer_events};
pub use forward::{ForwardedCall, GRACE, GRANT, NotForwarded, REFUSED, refused, restore_host};
pub use joining::join;
pub use members::{ActivityReport, MEMBERSHIP};
pub use outcomes::{OUTCOMES_PATH, answer_outcome};

use crate::ClusterConfig;
use crate::placement::Placements;
use election::Election;
use forward::ForwardClient;
use members::{ClusterView, Dispatcher, Membership, Reports};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::Datastore;
use weir_telemetry::{DeviceReport, Metrics};
use weir_types::api::{ClusterStatus, MemberStatus};
use weir_types::{NodeId, TenantId};

/// A node's view of its cluster.
pub struct Cluster {
    node: NodeId,
    address: String,
    auth: NodeAuth,
    view: watch::Receiver<ClusterView>,
    reports: Reports,
    client: ForwardClient,
    heartbeat: Duration,
    heartbeat_timeout: Duration,
    visible_wait: Duration,
    election: Mutex<Election>,
    /// The last dispatcher at whose address no process listens.
    lost: watch::Sender<Option<Dispatcher>>,
}

/// Takes part in the cluster until dropped.
pub struct Participation {
    keeping: AbortOnDropHandle<()>,
    _following: AbortOnDropHandle<()>,
    linking: AbortOnDropHandle<()>,
}

impl Cluster {
    /// Starts to take part, with a membership that already exists.
    pub fn start(
        config: &ClusterConfig,
        auth: NodeAuth,
        membership: Membership,
        datastore: Arc<dyn Datastore>,
        placements: &Arc<Placements>,
        report: impl Fn() -> ActivityReport + Send + 'static,
        stop: &CancellationToken,
    ) -> (Arc<Self>, Participation) {
        let node = membership.node;
        let address = membership.address.clone();
        let reports = membership.reports.clone();
        let (following, view) = members::follow(datastore, membership.seen.clone(), reports.clone());
        let heartbeat_timeout = Duration::from_millis(config.heartbeat_timeout_ms.max(1));
        let cluster = Arc::new(Self {
            node,
            address,
            client: ForwardClient::new(&auth, heartbeat_timeout),
            auth,
            view: view.clone(),
            reports,
            heartbeat: Duration::from_millis(config.heartbeat_ms.max(1)),
            heartbeat_timeout,
            visible_wait: Duration::from_millis(config.visible_wait_ms),
            election: Mutex::default(),
            lost: watch::Sender::default(),
        });
        let participation = Participation {
            _following: AbortOnDropHandle::new(tokio::spawn(following)),
            keeping: AbortOnDropHandle::new(tokio::spawn(membership.keep(
                view,
                cluster.lost.subscribe(),
                report,
                stop.clone(),
            ))),
            linking: AbortOnDropHandle::new(tokio::spawn(link::run(
                cluster.clone(),
                placements.clone(),
                stop.clone(),
            ))),
        };
        (cluster, participation)
    }

    /// The way in which the cluster's nodes authenticate each other.
    pub fn auth(&self) -> &NodeAuth {
        &self.auth
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Longest wait of a deploy until the other nodes serve it. Zero: deploys do not wait.
    pub fn visible_wait(&self) -> Duration {
        self.visible_wait
    }

    /// The largest number of a node that this node has seen.
    pub fn known_nodes_max(&self) -> u32 {
        let newest = self.view.borrow().nodes.keys().next_back().copied();
        newest.unwrap_or(self.node).max(self.node).0
    }

    /// Whether this node is the dispatcher.
    pub fn is_dispatcher(&self) -> bool {
        self.view.borrow().dispatcher.is_some_and(|dispatcher| dispatcher.node == self.node)
    }

    /// The part of the cluster's status that `tenant` may see.
    pub fn status(&self, placements: &Placements, tenant: &TenantId) -> ClusterStatus {
        let view = self.view.borrow();
        let reports = self.reports.read();
        let member = |(node, member): (&NodeId, &members::Member)| {
            let ActivityReport { running, queued, devices } = reports.get(node).cloned().unwrap_or_default();
            let devices = devices.into_iter().map(|device| device.status(tenant)).collect();
            MemberStatus {
                node: *node,
                address: member.address.clone(),
                version: member.version.clone(),
                running,
                queued,
                devices,
            }
        };
        ClusterStatus {
            node: self.node,
            address: self.address.clone(),
            dispatcher: view.dispatcher.map(|dispatcher| dispatcher.node),
            asks_dispatcher: placements.asks(),
            linked: placements.nodes(),
            nodes: view.nodes.iter().map(member).collect(),
        }
    }
}

impl ActivityReport {
    /// The current activity of a node with these devices and metrics.
    pub fn new(devices: Vec<DeviceReport>, metrics: &Metrics) -> Self {
        let count = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or(0);
        Self { running: count(&metrics.calls.running), queued: count(&metrics.calls.queued), devices }
    }
}

impl Participation {
    /// Waits until the node has announced that it leaves, which `stop` has started.
    pub async fn end(self) {
        for task in [self.linking, self.keeping] {
            if let Err(error) = task.await {
                tracing::error!(%error, "leaving the cluster failed");
            }
        }
    }
}
