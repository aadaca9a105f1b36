//! The cluster that a node is one of: who belongs to it, who of them decides where invocations run, and passing calls on to each other.
//!
//! Nodes meet in the datastore. Each has an entry there under a lease ([`members`]), and one of them an entry more: it is the dispatcher,
//! and its scheduler decides for all. The others keep a link to it ([`link`] on their side, [`desk`] on its), over which they tell what
//! happens and are told what to do; the datastore is not asked on the way of a call. A call that is to run elsewhere is passed on
//! ([`forward`]) as the HTTP request that it is.

mod desk;
mod forward;
mod holders;
mod joining;
mod link;
mod members;
mod secret;
pub(crate) mod wire;

pub(crate) use desk::{LINK_PATH, answer_link};
pub(crate) use forward::{Call, GRACE, GRANT, NotForwarded, REFUSED, refused, restore_host};
pub(crate) use joining::join;
pub(crate) use members::{DeviceReport, Report};

use crate::config::ClusterConfig;
use crate::dispatch::Placements;
use crate::models::Models;
use crate::telemetry::Metrics;
use forward::Client;
use members::{Membership, Reports, View};
use prometheus_client::metrics::gauge::Gauge;
use secret::Secret;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::Datastore;
use weir_types::api::{ClusterStatus, DeviceStatus, MemberStatus};
use weir_types::{NodeId, TenantId};

/// What a node knows of its cluster.
pub(crate) struct Cluster {
    node: NodeId,
    address: String,
    secret: Secret,
    view: watch::Receiver<View>,
    reports: Reports,
    client: Client,
    heartbeat: Duration,
    heartbeat_timeout: Duration,
}

/// Takes part in the cluster for as long as it lives.
pub(crate) struct Participation {
    keeping: AbortOnDropHandle<()>,
    _following: AbortOnDropHandle<()>,
    linking: AbortOnDropHandle<()>,
}

impl Cluster {
    /// Begin to take part, as a member that has joined already.
    pub(crate) fn start(
        config: &ClusterConfig,
        secret: Secret,
        membership: Membership,
        datastore: Arc<dyn Datastore>,
        placements: &Arc<Placements>,
        report: impl Fn() -> Report + Send + 'static,
        stop: &CancellationToken,
    ) -> (Arc<Self>, Participation) {
        let (node, address) = (membership.node, membership.address.clone());
        let reports = membership.reports.clone();
        let (following, view) = members::follow(datastore, membership.seen.clone(), reports.clone());
        let heartbeat_timeout = Duration::from_millis(config.heartbeat_timeout_ms.max(1));
        let cluster = Arc::new(Self {
            node,
            address,
            client: Client::new(&secret, heartbeat_timeout),
            secret,
            view: view.clone(),
            reports,
            heartbeat: Duration::from_millis(config.heartbeat_ms.max(1)),
            heartbeat_timeout,
        });
        let participation = Participation {
            _following: AbortOnDropHandle::new(tokio::spawn(following)),
            keeping: AbortOnDropHandle::new(tokio::spawn(membership.keep(view, report, stop.clone()))),
            linking: AbortOnDropHandle::new(tokio::spawn(link::run(
                cluster.clone(),
                placements.clone(),
                stop.clone(),
            ))),
        };
        (cluster, participation)
    }

    /// What nodes of the cluster show each other.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whether this node is the one that decides.
    pub(crate) fn is_dispatcher(&self) -> bool {
        self.view.borrow().dispatcher.is_some_and(|dispatcher| dispatcher.node == self.node)
    }

    /// What people of `tenant` may know of it.
    pub(crate) fn status(&self, placements: &Placements, tenant: &TenantId) -> ClusterStatus {
        let view = self.view.borrow();
        let reports = self.reports.read().unwrap_or_else(PoisonError::into_inner);
        let member = |(node, member): (&NodeId, &members::Member)| {
            let Report { running, queued, devices } = reports.get(node).cloned().unwrap_or_default();
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

impl Report {
    /// What a node with these models and metrics does now.
    pub(crate) fn of(models: &Models, metrics: &Metrics) -> Self {
        let count = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or(0);
        Self {
            running: count(&metrics.running),
            queued: count(&metrics.queued),
            devices: models.devices().reports(),
        }
    }
}

impl DeviceReport {
    /// With the models that are `tenant`'s.
    pub(crate) fn status(self, tenant: &TenantId) -> DeviceStatus {
        let own = self.resident.iter().filter(|model| model.tenant == *tenant);
        let resident = own.map(|model| format!("{}:{}", model.name, model.version)).collect();
        let Self { name, kind, backend, slots, runs_waiting, capacity_bytes, used_bytes, lost, .. } = self;
        DeviceStatus { name, kind, backend, slots, runs_waiting, capacity_bytes, used_bytes, resident, lost }
    }
}

impl Participation {
    /// Wait until the cluster has been told that the node leaves, which `stop` has begun.
    pub(crate) async fn end(self) {
        for task in [self.linking, self.keeping] {
            if let Err(error) = task.await {
                tracing::error!(%error, "leaving the cluster failed");
            }
        }
    }
}
