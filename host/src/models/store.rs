//! The files of models: what was uploaded, and what came of preparing it.

use crate::blobs::{BlobError, Blobs, Hold, STAGED_PREFIX, Staged, is_intact, persist};
use futures::{StreamExt, TryStreamExt};
use std::io::Write;
use std::path::Path;
use tempfile::{NamedTempFile, TempDir};
use tokio::sync::Semaphore;
use weir_inference::{PrepareError, Prepared, Preparer};
use weir_types::{ContentHash, Platform, Precision};

/// Files of a model that are fetched at once.
const FETCHES_AT_ONCE: usize = 8;

/// Why a model was not kept, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("cannot keep the model's files: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Blob(#[from] BlobError),
}

/// The folder of model files.
pub(super) struct Store {
    blobs: Blobs,
    /// Preparing takes much memory and every core: one at a time.
    preparing: Semaphore,
}

/// An upload that was checked and optimised, and whose files have not got their names yet: dropped, they are gone.
pub(super) struct Fresh {
    upload: Staged,
    out: TempDir,
    pub(super) prepared: Prepared,
}

impl Fresh {
    /// Where the files are those of `before`, keep what was measured of it then: trying a model out never takes exactly the same twice, and
    /// that is no news.
    pub(super) fn stay_as(&mut self, before: &Prepared) {
        if self.prepared.blobs().eq(before.blobs()) {
            self.prepared = before.clone();
        }
    }
}

/// Files that are durable, to be held until a record refers to them.
pub(super) struct Kept {
    pub(super) prepared: Prepared,
    /// The file with what preparing found.
    pub(super) hash: ContentHash,
    pub(super) holds: [Hold; 2],
}

impl Store {
    pub(super) fn new(blobs: Blobs) -> Self {
        Self { blobs, preparing: Semaphore::new(1) }
    }

    pub(super) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Check and optimise `upload`. Dropping the future ends that.
    pub(super) async fn prepare(
        &self,
        upload: Staged,
        precision: Precision,
        preparer: &dyn Preparer,
    ) -> Result<Fresh, PushError> {
        let _turn = self.preparing.acquire().await;
        let out = tempfile::Builder::new().prefix(STAGED_PREFIX).tempdir_in(self.blobs.folder())?;
        let prepared = preparer.prepare(upload.path(), precision, out.path()).await?;
        Ok(Fresh { upload, out, prepared })
    }

    /// Check and optimise `upload` in `files`, and leave there what comes of it. Dropping the future ends that.
    pub(super) async fn prepare_in(
        &self,
        files: &TempDir,
        preparer: &dyn Preparer,
    ) -> Result<Prepared, PushError> {
        let _turn = self.preparing.acquire().await;
        Ok(preparer.prepare(&files.path().join("upload"), Precision::default(), files.path()).await?)
    }

    /// Make the upload, and all that came of it, durable.
    pub(super) async fn keep(&self, fresh: Fresh) -> Result<Kept, PushError> {
        let Fresh { upload, out, prepared } = fresh;
        let upload = self.blobs.keep(upload).await?;
        let blobs = self.blobs.clone();
        let kept: std::io::Result<Kept> = tokio::task::spawn_blocking(move || {
            let json = serde_json::to_vec(&prepared).map_err(std::io::Error::other)?;
            let hash = ContentHash::of(&json);
            let files = blobs.in_use().hold(prepared.blobs().chain([hash]));
            keep_all(&prepared, out.path(), blobs.folder())?;
            write(&json, &blobs.path(hash))?;
            Ok(Kept { prepared, hash, holds: [upload, files] })
        })
        .await
        .map_err(std::io::Error::other)?;
        let kept = kept?;
        self.blobs.share(kept.prepared.blobs().chain([kept.hash])).await?;
        Ok(kept)
    }

    /// Read what preparing found. Where there are no other nodes to have them, the files it names have to be here.
    pub(super) async fn read_prepared(&self, hash: ContentHash) -> Result<Prepared, PushError> {
        let (path, blobs) = (self.blobs.fetch(hash).await?, self.blobs.clone());
        let read = tokio::task::spawn_blocking(move || {
            let prepared: Prepared =
                serde_json::from_slice(&std::fs::read(path)?).map_err(std::io::Error::other)?;
            let is_missing = |hash: &ContentHash| !blobs.is_shared() && !blobs.path(*hash).is_file();
            let missing = prepared.blobs().find(is_missing);
            missing.map_or(Ok(prepared), |hash| Err(BlobError::Missing(hash)))
        });
        Ok(read.await.map_err(std::io::Error::other)??)
    }

    /// Make sure that everything is here that a load of the model reads on devices of one platform.
    pub(super) async fn fetch(&self, prepared: &Prepared, platform: Platform) -> Result<(), BlobError> {
        futures::stream::iter(prepared.blobs_for(platform).map(|hash| self.blobs.fetch(hash)))
            .buffer_unordered(FETCHES_AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Whether all files of a model hold what they should. Reads them.
    pub(super) async fn is_intact(&self, files: Vec<ContentHash>) -> Result<bool, PushError> {
        let blobs = self.blobs.clone();
        let read = tokio::task::spawn_blocking(move || {
            files.into_iter().try_fold(true, |intact, hash| Ok(intact && is_intact(&blobs.path(hash), hash)?))
        });
        read.await.map_err(std::io::Error::other)?
    }
}

/// Move the prepared files from `out` into `folder`. Blocks.
fn keep_all(prepared: &Prepared, out: &Path, folder: &Path) -> std::io::Result<()> {
    for hash in prepared.blobs() {
        let (from, to) = (out.join(hash.to_string()), folder.join(hash.to_string()));
        if !is_intact(&to, hash)? {
            std::fs::File::open(&from)?.sync_all()?;
            std::fs::rename(from, to)?;
        }
    }
    Ok(())
}

/// Blocks.
fn write(json: &[u8], path: &Path) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = NamedTempFile::with_prefix_in(STAGED_PREFIX, folder)?;
    file.write_all(json)?;
    // Syncs the folder too, and with it the names of the files that came before.
    persist(file, path)
}
