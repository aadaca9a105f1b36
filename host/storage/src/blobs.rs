//! Files named by the hash of their contents, stored atomically. In a cluster, they are a node's
//! cache of a shared store: a blob is in the shared store before any record refers to it, and each
//! node that needs it fetches it once.

mod aside;
mod export;
mod fetch;
mod files;
mod garbage;
mod in_use;
mod remote;
mod shared;

pub use export::BlobContents;
pub use files::{
    STAGED_PREFIX, create_folder, create_private_folder, hash_file, is_intact, persist, remove_staged,
    sync_entry,
};
pub use garbage::Collected;
pub use in_use::{Hold, InUse, Sweep, SweepPause};
pub use remote::{RemoteError, RemoteFile, RemoteFolder};
pub use shared::SharedBlobs;

use crate::{DiskFull, StorageHealth, is_disk_full};
use bytes::Bytes;
use files::blocking;
use futures::future::{BoxFuture, WeakShared};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tempfile::NamedTempFile;
use weir_types::{ContentHash, Hasher};

/// A folder of blobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Blobs {
    folder: PathBuf,
    in_use: InUse,
    shared: Option<SharedBlobs>,
    /// Health of the folder's file system; `None`: not watched.
    health: Option<StorageHealth>,
    /// The local blobs that existed when the process started; `None` after the first sweep. Without
    /// a shared store, this sweep sets unused blobs of the set aside instead of removing them.
    unswept: Arc<Mutex<Option<HashSet<ContentHash>>>>,
    /// Fetches in progress, by blob. Concurrent callers share the fetch of a blob.
    fetching: Arc<Mutex<HashMap<ContentHash, WeakShared<Fetching>>>>,
    /// Bytes of all blobs that were kept so far, and the number of these bytes at which the local
    /// blobs may exceed the cache's size limit. 0: not known.
    kept_bytes: Arc<AtomicU64>,
    full_at_bytes: Arc<AtomicU64>,
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
    /// The disk of the local folder or of the shared store has no room.
    #[error(transparent)]
    DiskFull(#[from] DiskFull),
    /// A file operation in the local folder failed.
    #[error(transparent)]
    Io(Arc<std::io::Error>),
}

impl From<std::io::Error> for BlobError {
    fn from(error: std::io::Error) -> Self {
        if is_disk_full(&error) { DiskFull::NoSpace.into() } else { Self::Io(Arc::new(error)) }
    }
}

impl From<object_store::Error> for BlobError {
    fn from(error: object_store::Error) -> Self {
        let mut cause = std::error::Error::source(&error);
        while let Some(found) = cause {
            if found.downcast_ref().is_some_and(is_disk_full) {
                return DiskFull::NoSpace.into();
            }
            cause = found.source();
        }
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
    /// The disk has no room.
    #[error(transparent)]
    DiskFull(#[from] DiskFull),
    /// Writing the temporary file failed.
    #[error(transparent)]
    Io(std::io::Error),
}

impl From<std::io::Error> for PutError {
    fn from(error: std::io::Error) -> Self {
        if is_disk_full(&error) { DiskFull::NoSpace.into() } else { Self::Io(error) }
    }
}

/// The space that a staged file may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Only space above the minimum of free space.
    AboveMinimum,
    /// All space of the disk.
    All,
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
        let earlier = blobs_in(&folder)?.collect::<std::io::Result<_>>()?;
        Ok(Self {
            folder,
            in_use: InUse::default(),
            shared,
            health: None,
            unswept: Arc::new(Mutex::new(Some(earlier))),
            fetching: Arc::default(),
            kept_bytes: Arc::default(),
            full_at_bytes: Arc::default(),
        })
    }

    /// Refuses new blobs while the disk has too little free space, and reports failed writes.
    #[must_use]
    pub fn with_health(self, health: StorageHealth) -> Self {
        Self { health: Some(health), ..self }
    }

    /// Health of the folder's file system, if it is watched.
    pub fn health(&self) -> Option<&StorageHealth> {
        self.health.as_ref()
    }

    /// Checks whether `bytes` more can be stored: without falling below the minimum of free space,
    /// and in a shared folder that is in place.
    pub async fn check_room(&self, bytes: u64) -> Result<(), BlobError> {
        if let Some(health) = self.health.clone() {
            // A panic of the check leaves the decision to the write itself.
            tokio::task::spawn_blocking(move || health.check_room(bytes)).await.unwrap_or(Ok(()))?;
        }
        match &self.shared {
            Some(shared) => Ok(shared.check_folder().await?),
            None => Ok(()),
        }
    }

    /// Receives `source` into a file and hashes it on the way. Fails while the disk has less free
    /// space than the minimum.
    pub async fn stage<S, E>(&self, source: S, bytes_max: u64) -> Result<Staged, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        self.stage_into(source, bytes_max, Room::AboveMinimum).await
    }

    /// Like [`stage`](Self::stage) for work that the node has accepted before, which may use the
    /// space below the minimum.
    pub async fn stage_accepted<S, E>(&self, source: S, bytes_max: u64) -> Result<Staged, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        self.stage_into(source, bytes_max, Room::All).await
    }

    async fn stage_into<S, E>(&self, source: S, bytes_max: u64, room: Room) -> Result<Staged, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let staged = self.write_staged(source, bytes_max, room).await;
        if let Err(PutError::Io(error)) = &staged {
            self.note_failure(error);
        } else if let Err(PutError::DiskFull(DiskFull::NoSpace)) = &staged {
            self.note_failure(&std::io::ErrorKind::StorageFull.into());
        }
        staged
    }

    async fn write_staged<S, E>(&self, mut source: S, bytes_max: u64, room: Room) -> Result<Staged, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let folder = self.folder.clone();
        let limit = self.health.clone().filter(|_| room == Room::AboveMinimum);
        let mut writer = writing(move || {
            limit.as_ref().map_or(Ok(()), |health| health.check_room(0))?;
            let file = tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(folder)?;
            Ok(Staging { file, hasher: Hasher::default(), bytes: 0, limit })
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
                writer = writing(move || writer.append(&pieces)).await?;
            }
        }
        let in_use = self.in_use.clone();
        writing(move || {
            let Staging { file, hasher, bytes, .. } = writer.append(&pieces)?;
            let digest = hasher.finish();
            Ok(Staged { file, digest, bytes, hold: in_use.hold([digest]) })
        })
        .await
    }

    fn note_failure(&self, error: &std::io::Error) {
        if let Some(health) = &self.health {
            health.note_failure(error);
        }
    }

    /// Makes a staged blob durable under its digest, and replaces a damaged one. The caller keeps
    /// the hold until a record refers to the blob.
    pub async fn keep(&self, staged: Staged) -> Result<Hold, BlobError> {
        let digest = staged.digest;
        let hold = self.keep_here(staged).await?;
        self.upload([digest]).await?;
        Ok(hold)
    }

    async fn keep_here(&self, staged: Staged) -> std::io::Result<Hold> {
        let path = self.path(staged.digest);
        self.kept_bytes.fetch_add(staged.bytes, Ordering::Relaxed);
        let kept = blocking(move || {
            if !is_intact(&path, staged.digest)? {
                persist(staged.file, &path)?;
            }
            Ok(staged.hold)
        })
        .await;
        kept.inspect_err(|error| self.note_failure(error))
    }

    /// Uploads local blobs to the shared store, if there is one. To be called before any record
    /// refers to them.
    pub async fn share(&self, digests: impl IntoIterator<Item = ContentHash>) -> Result<(), BlobError> {
        // Files that were stored without `keep` are among them.
        self.full_at_bytes.store(0, Ordering::Relaxed);
        self.upload(digests).await
    }

    async fn upload(&self, digests: impl IntoIterator<Item = ContentHash>) -> Result<(), BlobError> {
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

    /// Like [`fetch`](Self::fetch), and compares the contents with the digest. A damaged local copy
    /// is fetched again from the shared store, if there is one.
    pub async fn fetch_verified(&self, digest: ContentHash) -> Result<PathBuf, BlobError> {
        let path = self.fetch(digest).await?;
        if self.is_intact(digest).await? {
            return Ok(path);
        }
        tracing::error!(
            file = %path.display(),
            "a stored file differs from what was deployed: deploy it again, or bring back a copy of the file"
        );
        if !self.is_shared() {
            return Err(BlobError::Damaged(digest));
        }
        let damaged = path.clone();
        blocking(move || std::fs::remove_file(damaged)).await?;
        let path = self.fetch(digest).await?;
        if self.is_intact(digest).await? { Ok(path) } else { Err(BlobError::Damaged(digest)) }
    }

    async fn is_intact(&self, digest: ContentHash) -> std::io::Result<bool> {
        let path = self.path(digest);
        blocking(move || is_intact(&path, digest)).await
    }

    /// Removes every local blob that is neither held nor `wanted`. The first sweep sets the blobs of
    /// earlier starts aside instead: the records may have been replaced by older ones.
    pub async fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> std::io::Result<()> {
        let folder = self.folder.clone();
        let sweep = self.in_use.sweep(wanted);
        if sweep.is_paused() {
            return Ok(());
        }
        // Copies of the blobs in a shared store can be fetched again.
        let earlier = self.unswept.lock().take().filter(|_| !self.is_shared()).unwrap_or_default();
        blocking(move || {
            for digest in blobs_in(&folder)? {
                let digest = digest?;
                sweep.remove(digest, || match earlier.contains(&digest) {
                    true => aside::set_aside(&folder, digest),
                    false => std::fs::remove_file(folder.join(digest.to_string())),
                })?;
            }
            aside::tidy(&folder, &sweep)
        })
        .await
    }

    /// Whether a local blob exists. Brings it back if it was set aside. Blocks.
    pub fn is_local(&self, digest: ContentHash) -> std::io::Result<bool> {
        Ok(self.path(digest).is_file() || aside::bring_back(&self.folder, digest)?)
    }
}

/// The digests of the blobs in `folder`. Blocks.
fn blobs_in(folder: &Path) -> std::io::Result<impl Iterator<Item = std::io::Result<ContentHash>> + use<>> {
    let digest = |entry: std::fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse().ok());
    Ok(std::fs::read_dir(folder)?.filter_map(move |entry| entry.map(digest).transpose()))
}

const GATHER_BYTES: u64 = 1 << 20;
struct Staging {
    file: NamedTempFile,
    hasher: Hasher,
    bytes: u64,
    /// Bounds the space that the file may take.
    limit: Option<StorageHealth>,
}

impl Staging {
    fn append(mut self, pieces: &[Bytes]) -> Result<Self, PutError> {
        if let Some(limit) = &self.limit {
            limit.check_room(pieces.iter().map(|piece| piece.len() as u64).sum())?;
        }
        for piece in pieces {
            self.hasher.update(piece);
            self.file.write_all(piece)?;
            self.bytes += piece.len() as u64;
        }
        Ok(self)
    }
}

async fn writing<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PutError> + Send + 'static,
) -> Result<T, PutError> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests;
