//! Joins a node to its cluster.

use super::auth::NodeAuth;
use super::members::Membership;
use crate::ClusterConfig;
use anyhow::{Context, bail};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use weir_datastore::Datastore;
use weir_tls::NodeIdentity;

/// Joins the cluster under an address that the other nodes can reach.
pub async fn join(
    config: &ClusterConfig,
    identity: Option<NodeIdentity>,
    has_tokens: bool,
    listener: &TcpListener,
    datastore: Arc<dyn Datastore>,
) -> anyhow::Result<(Membership, NodeAuth)> {
    let listens = listener.local_addr()?;
    let auth = NodeAuth::from_config(config, identity, listens, has_tokens)?;
    let address = match &config.advertise {
        Some(address) => address.clone(),
        None if listens.ip().is_unspecified() => {
            bail!(
                "other nodes cannot reach this one at {listens}; say where they do with --advertise HOST:PORT"
            )
        }
        None => listens.to_string(),
    };
    if let Err(error) = address.parse::<http::uri::Authority>() {
        bail!("{address:?} is not HOST:PORT: {error}");
    }
    let lease_time = Duration::from_millis(config.lease_ms.max(1));
    let membership =
        Membership::join(datastore, address, lease_time, auth.mark(), config.known_nodes_max).await;
    let membership = membership.context("cannot join the cluster")?;
    Ok((membership, auth))
}
