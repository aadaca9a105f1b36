//! Files named by the hash of their contents, whole or not there at all. In a cluster they are what this node has of a store that all
//! nodes share: a blob is in that store before anything refers to it, and is fetched once by each node that wants it.

mod fetch;
mod files;
mod garbage;
mod in_use;
mod shared;

pub(crate) use files::{STAGED_PREFIX, create_folder, is_intact, persist, remove_staged};
pub(crate) use garbage::Collected;
pub(crate) use in_use::{Hold, InUse};
pub(crate) use shared::SharedBlobs;

use bytes::Bytes;
use files::blocking;
use futures::future::{BoxFuture, WeakShared};
use futures::{Stream, StreamExt};
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tempfile::NamedTempFile;
use weir_types::{ContentHash, Hasher};

/// A folder of blobs. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    folder: PathBuf,
    in_use: InUse,
    shared: Option<SharedBlobs>,
    /// The blobs that are being fetched.
    fetching: Arc<Mutex<HashMap<ContentHash, WeakShared<Fetching>>>>,
}

type Fetching = BoxFuture<'static, Result<(), BlobError>>;

/// Why a blob was not kept, or cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum BlobError {
    #[error("its file {0} is missing")]
    Missing(ContentHash),
    #[error("the store of blobs has something else under the name of {0}")]
    Damaged(ContentHash),
    #[error("the store of blobs is out of reach: {0}")]
    OutOfReach(Arc<object_store::Error>),
    #[error(transparent)]
    Io(Arc<std::io::Error>),
}

impl From<std::io::Error> for BlobError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<object_store::Error> for BlobError {
    fn from(error: object_store::Error) -> Self {
        Self::OutOfReach(Arc::new(error))
    }
}

/// Why bytes did not become a blob.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    #[error("more than {bytes_max} bytes")]
    TooLarge { bytes_max: u64 },
    #[error("the body ended early: {0}")]
    Source(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Bytes received in full but not yet kept: dropped, they are gone. No sweep touches what goes by their digest meanwhile.
pub(crate) struct Staged {
    file: NamedTempFile,
    pub(crate) digest: ContentHash,
    pub(crate) bytes: u64,
    hold: Hold,
}

impl Staged {
    /// Where the bytes are for now.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Blobs {
    /// Open the blobs in `folder`, making it if need be, and remove what an interrupted run left half-written. Blocks.
    pub(crate) fn open(folder: PathBuf, shared: Option<SharedBlobs>) -> std::io::Result<Self> {
        create_folder(&folder)?;
        remove_staged(&folder)?;
        Ok(Self { folder, in_use: InUse::default(), shared, fetching: Arc::default() })
    }

    /// Receive `source` into a file, hashing it on the way.
    pub(crate) async fn stage<S, E>(&self, mut source: S, bytes_max: u64) -> Result<Staged, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let folder = self.folder.clone();
        let mut writer = blocking(move || {
            let file = tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(folder)?;
            Ok(Staging { file, hasher: Hasher::default(), bytes: 0 })
        })
        .await?;
        // Pieces are gathered so that a large upload costs few trips to the blocking threads.
        let mut pieces = Vec::new();
        let mut pending_bytes = 0;
        while let Some(piece) = source.next().await {
            let piece = piece.map_err(|error| PutError::Source(error.to_string()))?;
            pending_bytes += piece.len() as u64;
            if writer.bytes + pending_bytes > bytes_max {
                return Err(PutError::TooLarge { bytes_max });
            }
            pieces.push(piece);
            if pending_bytes >= GATHER_BYTES {
                let pieces = std::mem::take(&mut pieces);
                pending_bytes = 0;
                writer = blocking(move || writer.append(&pieces)).await?;
            }
        }
        let in_use = self.in_use.clone();
        let staged = blocking(move || {
            let Staging { file, hasher, bytes } = writer.append(&pieces)?;
            let digest = hasher.finish();
            Ok(Staged { file, digest, bytes, hold: in_use.hold([digest]) })
        });
        Ok(staged.await?)
    }

    /// Make a staged blob durable under its digest, in the place of one that is damaged. To be held until a record refers to it.
    pub(crate) async fn keep(&self, staged: Staged) -> Result<Hold, BlobError> {
        let digest = staged.digest;
        let hold = self.keep_here(staged).await?;
        self.share([digest]).await?;
        Ok(hold)
    }

    async fn keep_here(&self, staged: Staged) -> std::io::Result<Hold> {
        let path = self.path(staged.digest);
        blocking(move || {
            if !is_intact(&path, staged.digest)? {
                persist(staged.file, &path)?;
            }
            Ok(staged.hold)
        })
        .await
    }

    /// Have other nodes find blobs that are here, if there are other nodes. Called before anything refers to them.
    pub(crate) async fn share(
        &self,
        digests: impl IntoIterator<Item = ContentHash>,
    ) -> Result<(), BlobError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        for digest in digests {
            shared.put(digest, &self.path(digest)).await?;
        }
        Ok(())
    }

    /// Have no node find these any more. What nodes keep of them is theirs to sweep.
    pub(crate) async fn remove_shared(
        &self,
        digests: impl IntoIterator<Item = ContentHash>,
    ) -> Result<(), BlobError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        for digest in digests {
            shared.delete(digest).await?;
        }
        Ok(())
    }

    /// Those that other nodes could find already before a time, up to a number.
    pub(crate) async fn shared_before(&self, time: SystemTime) -> Result<Vec<ContentHash>, BlobError> {
        match &self.shared {
            Some(shared) => Ok(shared.kept_before(time).await?),
            None => Ok(Vec::new()),
        }
    }

    /// Whether other nodes have a part in them.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Where the blob with this digest is, if it is here.
    pub(crate) fn path(&self, digest: ContentHash) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// The folder they are in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Which digests sweeps have to leave alone.
    pub(crate) fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// Remove every blob that is neither held nor `wanted`.
    pub(crate) async fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> std::io::Result<()> {
        let (folder, sweep) = (self.folder.clone(), self.in_use.sweep(wanted));
        blocking(move || {
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                if let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                    sweep.remove(digest, || std::fs::remove_file(entry.path()))?;
                }
            }
            Ok(())
        })
        .await
    }
}

const GATHER_BYTES: u64 = 1 << 20;
struct Staging {
    file: NamedTempFile,
    hasher: Hasher,
    bytes: u64,
}

impl Staging {
    fn append(mut self, pieces: &[Bytes]) -> std::io::Result<Self> {
        for piece in pieces {
            self.hasher.update(piece);
            self.file.write_all(piece)?;
            self.bytes += piece.len() as u64;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
