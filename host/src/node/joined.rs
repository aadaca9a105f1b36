//! Starts the node's placements, and its part in a cluster.

use super::storage::Storage;
use super::tls::NodeTls;
use crate::config::NodeConfig;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weir_cluster::{ActivityReport, Cluster, Participation, PlacementConfig, Placements};
use weir_control::models::Models;
use weir_scheduler::Setup;
use weir_telemetry::Metrics;
use weir_types::NodeId;

/// The identifier of a node without cluster.
const ALONE: NodeId = NodeId(0);

/// A node's placements, and its cluster if it has one.
pub(super) struct NodePlacements {
    pub(super) placements: Arc<Placements>,
    pub(super) cluster: Option<Arc<Cluster>>,
    pub(super) participation: Option<Participation>,
}

impl NodePlacements {
    /// Joins the configured cluster, if any, and starts to place calls.
    pub(super) async fn start(
        config: &NodeConfig,
        scheduler: Setup,
        listening: (&TcpListener, &NodeTls),
        storage: &Storage,
        models: &Arc<Models>,
        metrics: &Arc<Metrics>,
        leaving: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let (listener, tls) = listening;
        let datastore = || storage.datastore.clone();
        let membership = match &config.cluster {
            None => None,
            Some(cluster) => {
                let identity = tls.identity.clone();
                let has_tokens = config.token_file.is_some();
                Some(weir_cluster::join(cluster, identity, has_tokens, listener, datastore()).await?)
            }
        };
        let placements = Placements::start(PlacementConfig {
            node: membership.as_ref().map_or(ALONE, |(membership, _)| membership.node),
            address: membership.as_ref().map(|(membership, _)| membership.address.clone()),
            devices: models.devices().specs(),
            origin: models.origin(),
            unasked_max: match (&membership, &config.scheduler.record) {
                (Some(_), _) => config.sandbox.threads,
                (None, None) => usize::MAX,
                // A record must be complete, so every call asks the scheduler.
                (None, Some(_)) => 0,
            },
            scheduler,
            record: config.scheduler.record.clone(),
            metrics: metrics.clone(),
        });
        let (Some(config), Some((membership, auth))) = (&config.cluster, membership) else {
            return Ok(Self { placements, cluster: None, participation: None });
        };
        let reported = models.clone();
        let metrics = metrics.clone();
        let report = move || ActivityReport::new(reported.devices().reports(), &metrics);
        let (cluster, participation) =
            Cluster::start(config, auth, membership, datastore(), &placements, report, leaving);
        Ok(Self { placements, cluster: Some(cluster), participation: Some(participation) })
    }
}
