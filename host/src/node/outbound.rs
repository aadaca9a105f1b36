//! The connector of a node, for requests of guests and for callbacks.

use crate::config::NodeConfig;
use anyhow::{Context, bail};
use std::sync::Arc;
use weir_cluster::ClusterConfig;
use weir_datastore::EtcdAddress;
use weir_outbound::{Connector, StoreEndpoint};
use weir_storage::blobs::SharedBlobs;
use weir_telemetry::Metrics;

/// Creates the connector. It refuses requests to the cluster's stores.
pub(super) async fn connector(config: &NodeConfig, metrics: &Arc<Metrics>) -> anyhow::Result<Arc<Connector>> {
    let stores = match &config.cluster {
        None => Vec::new(),
        Some(cluster) => stores(cluster)?,
    };
    // A development node, whose functions call services on the same machine.
    let is_loopback_open = config.token_file.is_none() && config.listen.ip().is_loopback();
    let connector = Connector::new(config.outbound.clone(), stores, is_loopback_open, metrics.clone());
    connector.look_up_stores().await;
    Ok(Arc::new(connector))
}

/// The endpoints of the cluster's etcd and, if the environment names one, of its blob store.
fn stores(cluster: &ClusterConfig) -> anyhow::Result<Vec<StoreEndpoint>> {
    let etcd: EtcdAddress = cluster
        .datastore
        .parse()
        .with_context(|| format!("cannot use the cluster's datastore {:?}", cluster.datastore))?;
    let blobs = SharedBlobs::endpoint(&cluster.blobs);
    let mut stores = Vec::new();
    for url in etcd.endpoints().iter().chain(&blobs) {
        match StoreEndpoint::from_url(url) {
            Some(endpoint) => stores.push(endpoint),
            None => bail!("{url:?} is not the URL of a store: write it like http://HOST:PORT"),
        }
    }
    Ok(stores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_of_the_clusters_etcd_is_an_endpoint() {
        let datastore = "etcd://weir:password@etcd-0,[::1]:4000/root".to_owned();
        let cluster =
            ClusterConfig { datastore, blobs: "file:///srv/weir".to_owned(), ..ClusterConfig::default() };
        let expected =
            ["http://etcd-0:2379", "http://[::1]:4000"].map(|url| StoreEndpoint::from_url(url).unwrap());
        assert_eq!(stores(&cluster).unwrap(), expected);
        let bad = ClusterConfig { datastore: "etcd://a:b".to_owned(), ..cluster };
        assert!(stores(&bad).is_err());
    }
}
