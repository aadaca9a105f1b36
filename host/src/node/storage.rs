//! A node's durable storage: in its data folder, or shared with the cluster.

use crate::config::NodeConfig;
use anyhow::{Context, bail};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_cluster::ClusterConfig;
use weir_datastore::{Datastore, RedbStore};
use weir_storage::Changes;
use weir_storage::blobs::{Blobs, SharedBlobs, create_folder};

/// The storage of a node, locked against other nodes.
pub(super) struct Storage {
    /// The absolute path of the data folder.
    pub(super) folder: PathBuf,
    pub(super) datastore: Arc<dyn Datastore>,
    /// Changes of durable state in progress.
    pub(super) changes: Changes,
    /// The cluster's blobs; `None` for a single node.
    shared: Option<SharedBlobs>,
    _lock: File,
}

/// Name of the folder of the models' files.
pub(super) const MODELS: &str = "models";

impl Storage {
    /// Locks the data folder, which is created if necessary, and opens the datastore.
    pub(super) async fn open(config: &NodeConfig) -> anyhow::Result<Self> {
        // Child processes have a different working directory, so the path must be absolute.
        let folder = std::path::absolute(&config.data)
            .with_context(|| format!("cannot use the data folder {}", config.data.display()))?;
        create_folder(&folder)
            .with_context(|| format!("cannot make the data folder {}", folder.display()))?;
        let lock = lock(&folder)?;
        let datastore = datastore(config, &folder).await?;
        let shared = match &config.cluster {
            None => None,
            Some(cluster) => Some(shared_blobs(cluster).await?),
        };
        Ok(Self { folder, datastore, changes: Changes::default(), shared, _lock: lock })
    }

    /// Opens the folder of blobs with this name.
    pub(super) fn blobs(&self, name: &str) -> anyhow::Result<Blobs> {
        let shared = self.shared.as_ref().map(|shared| shared.folder(name));
        Blobs::open(self.folder.join(name), shared).with_context(|| format!("cannot open the {name}"))
    }

    /// Waits for the changes in progress, which are completed even if their clients were cut off,
    /// and closes the datastore.
    pub(super) async fn close(&self) {
        self.changes.settle().await;
        self.datastore.close().await;
    }
}

/// Locks the data folder against other nodes while the returned file is open.
fn lock(data: &Path) -> anyhow::Result<File> {
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
async fn datastore(config: &NodeConfig, data: &Path) -> anyhow::Result<Arc<dyn Datastore>> {
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

async fn shared_blobs(cluster: &ClusterConfig) -> anyhow::Result<SharedBlobs> {
    let address = cluster.blobs.clone();
    let cache_bytes_max = cluster.cache_bytes_max;
    let opened = tokio::task::spawn_blocking(move || SharedBlobs::open(&address, cache_bytes_max)).await?;
    opened.with_context(|| format!("cannot use the cluster's blobs {:?}", cluster.blobs))
}
