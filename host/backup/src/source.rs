//! The state that a backup has.

use crate::BackupOrigin;
use std::sync::Arc;
use weir_datastore::{Datastore, Entry, Snapshot};
use weir_storage::blobs::{BlobError, Blobs, SweepPause};
use weir_storage::is_identity;
use weir_types::ContentHash;

/// A folder of blobs and its name in archives.
#[derive(Debug, Clone)]
pub struct BlobFolder {
    /// Name.
    pub name: &'static str,
    /// Blobs.
    pub blobs: Blobs,
}

/// The durable state of a node or cluster.
#[derive(Debug)]
pub struct BackupSource {
    /// Where the state is.
    pub origin: BackupOrigin,
    /// The records.
    pub datastore: Arc<dyn Datastore>,
    /// The blobs that records refer to.
    pub folders: Vec<BlobFolder>,
    /// Prefixes of keys that describe running nodes, and are left out.
    pub transient: Vec<&'static str>,
}

/// The reason why a backup did not begin, or did not complete.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Another backup runs.
    #[error("this node is making another backup: wait for its end")]
    Busy,
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// A blob could not be read.
    #[error("cannot read {folder}/{digest}: {source}")]
    Blob {
        /// Name of the folder.
        folder: &'static str,
        /// Hash of the blob.
        digest: ContentHash,
        /// Cause.
        source: BlobError,
    },
    /// A blob has other contents than were stored.
    #[error(
        "{folder}/{digest} differs from what was stored: deploy or push what it belongs to again, or delete that, and repeat the backup"
    )]
    Damaged {
        /// Name of the folder.
        folder: &'static str,
        /// Hash of the blob.
        digest: ContentHash,
    },
    /// The blobs of a folder could not be listed.
    #[error("cannot list the files in {folder}: {source}")]
    List {
        /// Name of the folder.
        folder: &'static str,
        /// Cause.
        source: BlobError,
    },
    /// The client has gone.
    #[error("the client closed the connection")]
    Gone,
    /// A file or a task failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The state at one revision.
#[derive(Debug)]
pub(crate) struct FrozenState {
    pub(crate) snapshot: Arc<dyn Snapshot>,
    /// While these live, no blob of the snapshot is removed.
    _pauses: Vec<SweepPause>,
}

impl BackupSource {
    /// Fixes the revision. All blobs of its records stay until the result is dropped: a blob exists
    /// before a record refers to it, so every blob of the snapshot exists once sweeps are paused. A
    /// cluster removes unused blobs only after its grace period.
    pub(crate) async fn freeze(&self) -> Result<FrozenState, BackupError> {
        let mut pauses = Vec::new();
        for folder in self.folders.iter().filter(|folder| !folder.blobs.is_shared()) {
            pauses.push(folder.blobs.pause_sweeps().await?);
        }
        Ok(FrozenState { snapshot: self.datastore.snapshot().await?, _pauses: pauses })
    }

    /// Whether a backup has the entry: entries of running nodes end with these, and a restored folder
    /// gets an identity of its own.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        let is_transient = self.transient.iter().any(|prefix| entry.key.as_str().starts_with(prefix));
        entry.lease.is_none() && !is_transient && !is_identity(&entry.key)
    }
}
