//! Joins a node to its cluster.

use super::members::Membership;
use super::secret::Secret;
use crate::ClusterConfig;
use anyhow::{Context, bail};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use weir_datastore::Datastore;

/// Joins the cluster under an address that the other nodes can reach.
pub async fn join(
    config: &ClusterConfig,
    has_tokens: bool,
    listener: &TcpListener,
    datastore: Arc<dyn Datastore>,
) -> anyhow::Result<(Membership, Secret)> {
    let listens = listener.local_addr()?;
    if config.secret_file.is_none() && has_tokens {
        bail!(
            "whoever passes for a node of the cluster needs no token; give --secret-file FILE, the same on all nodes"
        );
    }
    if config.secret_file.is_none() && !listens.ip().is_loopback() {
        bail!(
            "whoever reaches {listens} could pass for a node of the cluster; give --secret-file FILE, the same on all nodes"
        );
    }
    let secret = Secret::read(config.secret_file.as_deref())?;
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
    let membership = Membership::join(datastore, address, lease_time, secret.mark())
        .await
        .context("cannot join the cluster")?;
    Ok((membership, secret))
}
