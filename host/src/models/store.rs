//! The files of models: what was uploaded, and what came of preparing it.

use crate::blobs::{Adding, Blobs, STAGED_PREFIX, Staged, persist};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use tokio::sync::Semaphore;
use weir_inference::{Backend, PrepareError, Prepared};
use weir_types::ContentHash;

/// Why a model was not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("cannot keep the model's files: {0}")]
    Io(#[from] std::io::Error),
}

/// The folder of model files.
pub(super) struct Store {
    blobs: Blobs,
    /// Preparing takes much memory and every core: one at a time.
    preparing: Semaphore,
}

impl Store {
    pub(super) fn new(blobs: Blobs) -> Self {
        Self { blobs, preparing: Semaphore::new(1) }
    }

    pub(super) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Check and optimise `upload`, and keep it and all that came of it. Returns what was found, the file it is written in, and the guard
    /// to hold until a record refers to them.
    pub(super) async fn prepare(
        &self,
        upload: Staged,
        backend: &dyn Backend,
    ) -> Result<(Prepared, ContentHash, Adding), PushError> {
        let _turn = self.preparing.acquire().await;
        let folder = self.blobs.folder().to_owned();
        let out = tempfile::Builder::new().prefix(STAGED_PREFIX).tempdir_in(&folder)?;
        let prepared = backend.prepare(upload.path(), out.path()).await?;
        let adding = self.blobs.adding().await;
        self.blobs.keep(upload).await?;
        let written = prepared.clone();
        let hash = tokio::task::spawn_blocking(move || keep_all(&written, out.path(), &folder)).await;
        Ok((prepared, hash.map_err(std::io::Error::other)??, adding))
    }

    pub(super) async fn read_prepared(&self, hash: ContentHash) -> Result<Prepared, PushError> {
        let bytes = tokio::fs::read(self.blobs.path(hash)).await?;
        serde_json::from_slice(&bytes).map_err(|error| PushError::Io(std::io::Error::other(error)))
    }
}

/// Move the prepared files from `out` into `folder`, and write down what was found. Blocks.
fn keep_all(prepared: &Prepared, out: &Path, folder: &Path) -> std::io::Result<ContentHash> {
    for hash in prepared.blobs() {
        let (from, to) = (out.join(hash.to_string()), folder.join(hash.to_string()));
        if !to.exists() {
            std::fs::File::open(&from)?.sync_all()?;
            std::fs::rename(from, to)?;
        }
    }
    let json = serde_json::to_vec(prepared).map_err(std::io::Error::other)?;
    let hash = ContentHash::of(&json);
    let mut file = NamedTempFile::with_prefix_in(STAGED_PREFIX, folder)?;
    file.write_all(&json)?;
    let path: PathBuf = folder.join(hash.to_string());
    // Syncs the folder too, and with it the renames above.
    persist(file, &path)?;
    Ok(hash)
}
