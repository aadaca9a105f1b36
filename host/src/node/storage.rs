//! A node's durable storage: in its data folder, or shared with the cluster.

use crate::blobs::SharedBlobs;
use crate::config::{ClusterConfig, NodeConfig};
use anyhow::{Context, bail};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use weir_datastore::{Datastore, RedbStore};

/// Locks the data folder against other nodes while the returned file is open.
pub(super) fn lock(data: &Path) -> anyhow::Result<File> {
    let path = data.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "{} is in use: another node runs on this data folder; --data picks another one",
                data.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock the data folder {}", data.display()))
        }
    }
}

/// Opens the datastore for deployments: the cluster's, or a local file.
pub(super) async fn datastore(config: &NodeConfig, data: &Path) -> anyhow::Result<Arc<dyn Datastore>> {
    match &config.cluster {
        None => {
            let store =
                RedbStore::open(data.join("registry.redb")).await.context("cannot open the registry")?;
            Ok(Arc::new(store))
        }
        Some(cluster) => etcd(&cluster.datastore)
            .await
            .with_context(|| format!("cannot use the cluster's datastore {:?}", cluster.datastore)),
    }
}

async fn etcd(address: &str) -> anyhow::Result<Arc<dyn Datastore>> {
    let address: weir_datastore::EtcdAddress = address.parse()?;
    Ok(Arc::new(weir_datastore::EtcdStore::connect(&address).await?))
}

pub(super) async fn shared_blobs(cluster: &ClusterConfig) -> anyhow::Result<SharedBlobs> {
    let (address, cache_bytes_max) = (cluster.blobs.clone(), cluster.cache_bytes_max);
    let opened = tokio::task::spawn_blocking(move || SharedBlobs::open(&address, cache_bytes_max)).await?;
    opened.with_context(|| format!("cannot use the cluster's blobs {:?}", cluster.blobs))
}
