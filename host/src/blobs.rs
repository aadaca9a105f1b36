//! Files named by the hash of their contents, whole or not there at all.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use weir_types::{ContentHash, Hasher};

/// A folder of blobs. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    folder: PathBuf,
    /// Shared by those who keep blobs that no record refers to yet, taken alone by the sweep.
    adding: Arc<RwLock<()>>,
}

/// Keeps the sweep away until the blobs kept meanwhile are referred to.
pub(crate) type Adding = OwnedRwLockReadGuard<()>;

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

/// Bytes received in full but not yet kept: dropped, they are gone.
pub(crate) struct Staged {
    file: NamedTempFile,
    pub(crate) digest: ContentHash,
    pub(crate) bytes: u64,
}

impl Staged {
    /// Where the bytes are for now.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Blobs {
    /// Open the blobs in `folder`, making it if need be, and remove what an interrupted run left half-written. Blocks.
    pub(crate) fn open(folder: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        remove_staged(&folder)?;
        Ok(Self { folder, adding: Arc::default() })
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
        let writer = blocking(move || writer.append(&pieces)).await?;
        Ok(Staged { file: writer.file, digest: writer.hasher.finish(), bytes: writer.bytes })
    }

    /// To be held from before a blob is kept until a record refers to it.
    pub(crate) async fn adding(&self) -> Adding {
        self.adding.clone().read_owned().await
    }

    /// Make a staged blob durable under its digest.
    pub(crate) async fn keep(&self, staged: Staged) -> std::io::Result<PathBuf> {
        let path = self.path(staged.digest);
        blocking(move || {
            if !path.exists() {
                persist(staged.file, &path)?;
            }
            Ok(path)
        })
        .await
    }

    /// Where the blob with this digest is, if it is here.
    pub(crate) fn path(&self, digest: ContentHash) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// The folder they are in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Remove every blob that is not `wanted`, which is asked while nobody adds any.
    pub(crate) async fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> std::io::Result<()> {
        let _alone = self.adding.clone().write_owned().await;
        let (folder, wanted) = (self.folder.clone(), wanted());
        blocking(move || {
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let digest = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if digest.is_some_and(|digest| !wanted.contains(&digest)) {
                    std::fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// What the names of unfinished files start with.
pub(crate) const STAGED_PREFIX: &str = ".staged-";
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

/// Remove what an interrupted run left half-written in `folder`. Blocks.
pub(crate) fn remove_staged(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(STAGED_PREFIX) {
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

/// Give `staged` its final name so that after a crash it is there whole or not at all. Blocks.
pub(crate) fn persist(staged: NamedTempFile, path: &Path) -> std::io::Result<()> {
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    // The rename is durable once the folder is.
    path.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    fn body(pieces: &[&'static str]) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Unpin {
        stream::iter(pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect::<Vec<_>>())
    }

    #[tokio::test]
    async fn a_blob_is_named_by_its_contents_and_leftovers_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().join("blobs")).unwrap();
        let staged = blobs.stage(body(&["he", "llo"]), 5).await.unwrap();
        assert_eq!(staged.digest, ContentHash::of(b"hello"));
        let path = blobs.keep(staged).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        std::fs::write(folder.path().join("blobs/.staged-x"), b"half").unwrap();
        Blobs::open(folder.path().join("blobs")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("blobs")).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn what_is_too_large_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_owned()).unwrap();
        assert!(matches!(
            blobs.stage(body(&["hello", "!"]), 5).await,
            Err(PutError::TooLarge { bytes_max: 5 })
        ));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
