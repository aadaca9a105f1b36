//! Files named by the hash of their contents, stored atomically. In a cluster, they are a node's
//! cache of a shared store: a blob is in the shared store before any record refers to it, and each
//! node that needs it fetches it once.

mod fetch;
mod files;
mod garbage;
mod in_use;
mod shared;

pub use files::{STAGED_PREFIX, create_folder, is_intact, persist, remove_staged};
pub use garbage::Collected;
pub use in_use::{Hold, InUse};
pub use shared::SharedBlobs;

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
pub struct Blobs {
    folder: PathBuf,
    in_use: InUse,
    shared: Option<SharedBlobs>,
    /// The blobs that are being fetched.
    fetching: Arc<Mutex<HashMap<ContentHash, WeakShared<Fetching>>>>,
}

type Fetching = BoxFuture<'static, Result<(), BlobError>>;

/// The reason why a blob was not stored or cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BlobError {
    /// Neither this node nor the shared store has the blob.
    #[error("its file {0} is missing")]
    Missing(ContentHash),
    /// The stored bytes do not match the digest.
    #[error("the store of blobs has something else under the name of {0}")]
    Damaged(ContentHash),
    /// A request to the shared store failed.
    #[error("the store of blobs is out of reach: {0}")]
    OutOfReach(Arc<object_store::Error>),
    /// A file operation in the local folder failed.
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

/// The reason why bytes did not become a blob.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The source has more bytes than the caller allows.
    #[error("more than {bytes_max} bytes")]
    TooLarge {
        /// The caller's limit.
        bytes_max: u64,
    },
    /// The source failed before its end, for example because the client disconnected.
    #[error("the body ended early: {0}")]
    Source(String),
    /// Writing the temporary file failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Bytes received in full but not stored yet: dropping this discards them. Meanwhile, sweeps spare
/// the blob with this digest.
pub struct Staged {
    file: NamedTempFile,
    /// The hash of the bytes.
    pub digest: ContentHash,
    /// The number of bytes.
    pub bytes: u64,
    hold: Hold,
}

impl Staged {
    /// The temporary path of the bytes.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Blobs {
    /// Opens the blobs in `folder`, which is created if necessary, and removes partial files of an
    /// interrupted run. Blocks.
    pub fn open(folder: PathBuf, shared: Option<SharedBlobs>) -> std::io::Result<Self> {
        create_folder(&folder)?;
        remove_staged(&folder)?;
        Ok(Self { folder, in_use: InUse::default(), shared, fetching: Arc::default() })
    }

    /// Receives `source` into a file and hashes it on the way.
    pub async fn stage<S, E>(&self, mut source: S, bytes_max: u64) -> Result<Staged, PutError>
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
        // Chunks are collected, so that a large upload takes few trips to the blocking threads.
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

    /// Makes a staged blob durable under its digest, and replaces a damaged one. The caller keeps
    /// the hold until a record refers to the blob.
    pub async fn keep(&self, staged: Staged) -> Result<Hold, BlobError> {
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

    /// Uploads local blobs to the shared store, if there is one. To be called before any record
    /// refers to them.
    pub async fn share(&self, digests: impl IntoIterator<Item = ContentHash>) -> Result<(), BlobError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        for digest in digests {
            shared.put(digest, &self.path(digest)).await?;
        }
        Ok(())
    }

    /// Removes blobs from the shared store. Each node's local copies remain until its own sweep.
    pub async fn remove_shared(
        &self,
        digests: impl IntoIterator<Item = ContentHash>,
    ) -> Result<(), BlobError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        for digest in digests {
            shared.delete(digest).await?;
        }
        Ok(())
    }

    /// Some of the blobs that were in the shared store before `time`, up to a limit.
    pub async fn shared_before(&self, time: SystemTime) -> Result<Vec<ContentHash>, BlobError> {
        match &self.shared {
            Some(shared) => Ok(shared.kept_before(time).await?),
            None => Ok(Vec::new()),
        }
    }

    /// Whether there is a shared store.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The path of the local blob with this digest, whether or not it exists.
    pub fn path(&self, digest: ContentHash) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// The folder of the blobs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The digests that sweeps must not remove.
    pub fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// Removes every local blob that is neither held nor `wanted`.
    pub async fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> std::io::Result<()> {
        let folder = self.folder.clone();
        let sweep = self.in_use.sweep(wanted);
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
