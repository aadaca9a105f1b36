//! Restores a backup into an empty data folder, or into an empty cluster.

use super::storage::{BLOB_FOLDERS, REGISTRY, UNFINISHED_REGISTRY};
use crate::config::NodeConfig;
use anyhow::{Context, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;
use weir_backup::{BackupSummary, BlobFolder, RestoreTarget};
use weir_datastore::{Datastore, Prefix, RedbStore};
use weir_storage::blobs::{Blobs, SharedBlobs, create_folder, sync_entry};
use weir_storage::{MarkerPolicy, check_identity, forget_identity};

/// Names in a data folder that count as empty.
const IGNORED: [&str; 3] = ["lock", "lost+found", weir_control::secrets::KEY_FILE];

/// Restores the backup in `file` where a node with these settings starts next: into its data folder
/// or, for a member of a cluster, into etcd and the shared blobs. Both must be empty. `progress`
/// receives the number of bytes of `file` that were read.
pub(crate) async fn restore(
    config: &NodeConfig,
    mut file: File,
    mut progress: impl FnMut(u64) + Send + 'static,
) -> anyhow::Result<BackupSummary> {
    let folder = super::storage::data_folder(config)?;
    let lock = super::storage::lock(&folder)?;
    let (target, place) = match &config.cluster {
        None => open_folder(&folder).await?,
        Some(_) => open_cluster(config, &folder).await?,
    };
    let datastore = target.datastore.clone();
    let runtime = Handle::current();
    let restoring = tokio::task::spawn_blocking(move || {
        weir_backup::restore(&mut file, &target, &runtime, &mut progress)
    });
    let ended = match restoring.await.context("restoring the backup failed")? {
        Ok(summary) => place.complete(&*datastore).await.map(|()| summary),
        Err(error) => Err(error.into()),
    };
    datastore.close().await;
    let ended = ended.map_err(|error| place.clean_up(error));
    drop(lock);
    ended
}

/// The place of a restored backup.
enum RestorePlace {
    Folder(PathBuf),
    Cluster {
        /// Address of etcd.
        address: String,
        /// Folder of the shared blobs, if they are in one.
        blobs: Option<PathBuf>,
    },
}

impl RestorePlace {
    /// Makes the restored state that of the next start.
    async fn complete(&self, datastore: &dyn Datastore) -> anyhow::Result<()> {
        match self {
            Self::Folder(folder) => {
                datastore.close().await;
                let path = folder.join(REGISTRY);
                std::fs::rename(folder.join(UNFINISHED_REGISTRY), &path)
                    .and_then(|()| sync_entry(&path))
                    .with_context(|| format!("cannot make {}", path.display()))
            }
            Self::Cluster { blobs: Some(blobs), .. } => {
                // The blobs may have survived the loss of etcd, and have the old identity.
                forget_identity(blobs)?;
                check_identity(datastore, blobs, MarkerPolicy::Mark).await?;
                Ok(())
            }
            Self::Cluster { blobs: None, .. } => Ok(()),
        }
    }

    /// Removes the files of a failed restoration, so that it can be repeated.
    fn clean_up(&self, error: anyhow::Error) -> anyhow::Error {
        match self {
            Self::Folder(folder) => {
                let unfinished = BLOB_FOLDERS.map(|name| std::fs::remove_dir_all(folder.join(name)));
                let removed = std::fs::remove_file(folder.join(UNFINISHED_REGISTRY));
                if unfinished.into_iter().chain([removed]).all(|removed| removed.is_ok()) {
                    return error;
                }
                error.context(format!("empty {} before you try again", folder.display()))
            }
            Self::Cluster { address, .. } => error.context(format!(
                "etcd may have a part of the records: remove the keys below the prefix of {address:?} before you try again"
            )),
        }
    }
}

async fn open_folder(folder: &Path) -> anyhow::Result<(RestoreTarget, RestorePlace)> {
    super::storage::refuse_interrupted_restore(folder)?;
    let entries = std::fs::read_dir(folder)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read {}", folder.display()))?;
    let used = entries.iter().find(|entry| !IGNORED.iter().any(|name| entry.file_name() == *name));
    if let Some(used) = used {
        bail!(
            "{} is not empty, it has {:?}: a backup is restored into an empty folder; name another one by --data, or move its contents away",
            folder.display(),
            used.file_name()
        );
    }
    let datastore =
        RedbStore::open(folder.join(UNFINISHED_REGISTRY)).await.context("cannot make the registry")?;
    let folders = blob_folders(folder, None)?;
    Ok((RestoreTarget { folders, datastore: Arc::new(datastore) }, RestorePlace::Folder(folder.to_owned())))
}

async fn open_cluster(config: &NodeConfig, folder: &Path) -> anyhow::Result<(RestoreTarget, RestorePlace)> {
    let cluster = config.cluster.as_ref().context("the node is in no cluster")?;
    let datastore = super::storage::datastore(config, folder).await?;
    let found = datastore.list(&Prefix::all(), None, 1).await?;
    if let Some(entry) = found.entries.first() {
        bail!(
            "{:?} is not empty, it has the key {:?}: a backup is restored below an empty prefix; name another one by --datastore, or stop all nodes and remove the keys (etcdctl del --prefix)",
            cluster.datastore,
            entry.key.as_str()
        );
    }
    let blobs = SharedBlobs::local_folder(&cluster.blobs);
    if let Some(blobs) = &blobs {
        create_folder(blobs).with_context(|| format!("cannot create {}", blobs.display()))?;
    }
    let shared = super::storage::shared_blobs(cluster).await?;
    let folders = blob_folders(folder, Some(&shared))?;
    let address = cluster.datastore.clone();
    Ok((RestoreTarget { folders, datastore }, RestorePlace::Cluster { address, blobs }))
}

fn blob_folders(folder: &Path, shared: Option<&SharedBlobs>) -> anyhow::Result<Vec<BlobFolder>> {
    let open = |name: &'static str| {
        let blobs = Blobs::open(folder.join(name), shared.map(|shared| shared.folder(name)));
        Ok(BlobFolder { name, blobs: blobs.with_context(|| format!("cannot open the {name}"))? })
    };
    BLOB_FOLDERS.into_iter().map(open).collect()
}
