//! A node's durable storage: in its data folder, or shared with the cluster.

use crate::config::NodeConfig;
use anyhow::{Context, bail};
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_cluster::{ClusterConfig, EtcdTlsConfig};
use weir_datastore::{Datastore, EtcdAddress, EtcdStore, EtcdTls, RedbStore};
use weir_storage::blobs::{Blobs, SharedBlobs, create_folder, create_private_folder};
use weir_storage::{
    Changes, MarkerPolicy, StorageHealth, check_identity, forget_identity, is_used, read_private_file,
};

/// The storage of a node, locked against other nodes.
pub(super) struct Storage {
    /// The absolute path of the data folder.
    pub(super) folder: PathBuf,
    pub(super) datastore: Arc<dyn Datastore>,
    /// Health of the storage: free space, and writes that fail.
    pub(super) health: StorageHealth,
    /// Changes of durable state in progress.
    pub(super) changes: Changes,
    /// The cluster's blobs; `None` for a single node.
    shared: Option<SharedBlobs>,
    _lock: File,
}

/// Name of the registry's file.
pub(super) const REGISTRY: &str = "registry.redb";
/// Name of the registry's file while a backup is restored.
pub(super) const UNFINISHED_REGISTRY: &str = "registry.redb.unfinished";
/// Name of the folder of the models' files.
pub(super) const MODELS: &str = "models";
/// Names of the folders of blobs, to which records of the datastore refer.
pub(super) const BLOB_FOLDERS: [&str; 4] = ["components", MODELS, "invocations", "objects"];

impl Storage {
    /// Locks the data folder, which is created if necessary, and opens the datastore. Refuses a
    /// datastore and files that do not belong together.
    pub(super) async fn open(config: &NodeConfig) -> anyhow::Result<Self> {
        let folder = data_folder(config)?;
        let lock = lock(&folder)?;
        refuse_interrupted_restore(&folder)?;
        if config.cluster.is_none() && !has_registry(&folder)? && is_used(&folder)? {
            bail!(
                "{0} has files, but no registry: bring back a copy of {0}/{REGISTRY}, or start with an empty registry by `weir up --init`; functions, models and objects are then deployed anew",
                folder.display()
            );
        }
        let datastore = datastore(config, &folder).await?;
        let health = {
            let folder = folder.clone();
            let datastore = datastore.clone();
            let free_bytes_min = config.gateway.disk_free_bytes_min;
            tokio::task::spawn_blocking(move || StorageHealth::open(folder, free_bytes_min, datastore))
                .await?
        };
        let shared = match &config.cluster {
            None => {
                check_identity(&*datastore, &folder, MarkerPolicy::Mark).await?;
                None
            }
            Some(cluster) => {
                let mut marker = None;
                if let Some(blobs) = SharedBlobs::local_folder(&cluster.blobs) {
                    let checked = check_identity(&*datastore, &blobs, MarkerPolicy::Refuse).await;
                    let identity = checked.context("cannot use the cluster's blobs")?;
                    health.guard(blobs.clone(), false)?;
                    marker = Some((blobs, identity));
                }
                let shared = shared_blobs(cluster).await?;
                Some(match marker {
                    Some((blobs, identity)) => shared.with_marker(blobs, identity),
                    None => shared,
                })
            }
        };
        health.guard(folder.clone(), true)?;
        Ok(Self { folder, datastore, health, changes: Changes::default(), shared, _lock: lock })
    }

    /// Prepares a start after a loss of data: with an empty registry in a data folder that contains
    /// files, or in a cluster with a folder of blobs without a marker.
    ///
    /// # Errors
    /// If a node outside a cluster has a registry.
    pub(super) async fn init(config: &NodeConfig) -> anyhow::Result<()> {
        let folder = data_folder(config)?;
        let _lock = lock(&folder)?;
        refuse_interrupted_restore(&folder)?;
        let marked = match &config.cluster {
            None => {
                if has_registry(&folder)? {
                    bail!(
                        "{0} has a registry already: start without --init, or move {0}/{REGISTRY} away first",
                        folder.display()
                    );
                }
                Some(folder.clone())
            }
            Some(cluster) => SharedBlobs::local_folder(&cluster.blobs),
        };
        let datastore = datastore(config, &folder).await?;
        if let Some(marked) = marked {
            create_folder(&marked).with_context(|| format!("cannot create {}", marked.display()))?;
            forget_identity(&marked)?;
            check_identity(&*datastore, &marked, MarkerPolicy::Mark).await?;
        }
        datastore.close().await;
        Ok(())
    }

    /// Opens the folder of blobs with this name.
    pub(super) fn blobs(&self, name: &str) -> anyhow::Result<Blobs> {
        let shared = self.shared.as_ref().map(|shared| shared.folder(name));
        let blobs = Blobs::open(self.folder.join(name), shared);
        let blobs = blobs.with_context(|| format!("cannot open the {name}"))?;
        Ok(blobs.with_health(self.health.clone()))
    }

    /// Waits for the changes in progress, which are completed even if their clients were cut off,
    /// and closes the datastore.
    pub(super) async fn close(&self) {
        self.changes.settle().await;
        self.datastore.close().await;
    }
}

/// The absolute path of the data folder, which is created for its owner only if it is missing.
pub(super) fn data_folder(config: &NodeConfig) -> anyhow::Result<PathBuf> {
    // Child processes have a different working directory, so the path must be absolute.
    let folder = std::path::absolute(&config.data)
        .with_context(|| format!("cannot use the data folder {}", config.data.display()))?;
    create_private_folder(&folder)
        .with_context(|| format!("cannot make the data folder {}", folder.display()))?;
    Ok(folder)
}

/// Refuses a data folder that contains only a part of a backup.
pub(super) fn refuse_interrupted_restore(folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(UNFINISHED_REGISTRY);
    if path.try_exists().with_context(|| format!("cannot read {}", path.display()))? {
        bail!(
            "the restore of a backup into {0} was interrupted, and {0} has only a part of its data: empty {0} and run `weir restore` again",
            folder.display()
        );
    }
    Ok(())
}

/// Whether the folder contains a registry. An empty file is not a registry.
fn has_registry(folder: &Path) -> anyhow::Result<bool> {
    let path = folder.join(REGISTRY);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        about => Ok(about.with_context(|| format!("cannot read {}", path.display()))?.len() > 0),
    }
}

/// Locks the data folder against other nodes while the returned file is open.
pub(super) fn lock(data: &Path) -> anyhow::Result<File> {
    let path = data.join("lock");
    let mut options = File::options();
    options.create(true).write(true).truncate(true).mode(0o600);
    let file = options.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
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
            let store = RedbStore::open(data.join(REGISTRY)).await.context("cannot open the registry")?;
            Ok(Arc::new(store))
        }
        Some(cluster) => etcd(&cluster.datastore, &cluster.etcd)
            .await
            .with_context(|| format!("cannot use the cluster's datastore {:?}", cluster.datastore)),
    }
}

async fn etcd(address: &str, files: &EtcdTlsConfig) -> anyhow::Result<Arc<dyn Datastore>> {
    let parsed: EtcdAddress = address.parse()?;
    if *files != EtcdTlsConfig::default() && !address.starts_with("etcds://") {
        bail!("certificates of etcd ([node.cluster.etcd]) need TLS: write its address as etcds://");
    }
    let files = files.clone();
    let tls = tokio::task::spawn_blocking(move || etcd_tls(&files)).await??;
    Ok(Arc::new(EtcdStore::connect(&parsed, &tls).await?))
}

/// Reads the certificates for etcd. Blocks.
fn etcd_tls(files: &EtcdTlsConfig) -> anyhow::Result<EtcdTls> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the certificate {}", path.display()))
    };
    let identity = match (&files.certificate, &files.key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => {
            let unusable = || format!("cannot use the key file {}", key.display());
            Some((read(certificate)?, read_private_file(key).with_context(unusable)?))
        }
        _ => bail!("a client certificate for etcd needs cluster.etcd.certificate and cluster.etcd.key"),
    };
    Ok(EtcdTls { ca: files.ca.as_ref().map(read).transpose()?, identity })
}

pub(super) async fn shared_blobs(cluster: &ClusterConfig) -> anyhow::Result<SharedBlobs> {
    let address = cluster.blobs.clone();
    let cache_bytes_max = cluster.cache_bytes_max;
    let opened = tokio::task::spawn_blocking(move || SharedBlobs::open(&address, cache_bytes_max)).await?;
    opened.with_context(|| format!("cannot use the cluster's blobs {:?}", cluster.blobs))
}
