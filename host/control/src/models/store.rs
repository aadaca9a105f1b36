//! The files of models: uploads and preparation results.

use futures::{StreamExt, TryStreamExt};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::{NamedTempFile, TempDir};
use weir_call::{Fault, Turnstile};
use weir_inference::{PrepareError, Prepared, Preparer};
use weir_storage::blobs::{BlobError, Blobs, Hold, STAGED_PREFIX, Staged, is_intact, persist};
use weir_storage::is_disk_full;
use weir_types::{ContentHash, ErrorCode, Platform, Precision, TenantId};

/// The number of files of a model that are fetched concurrently.
const FETCHES_AT_ONCE: usize = 8;

/// Maximum number of models of a tenant that wait to be checked.
const TENANT_PREPARING_MAX: usize = 64;

/// The reason why a model was not stored or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ModelPushError {
    /// Checking or optimising the upload failed.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// A file operation on the upload or the preparation results failed.
    #[error("storing the model's files failed: {0}")]
    Io(std::io::Error),
    /// A blob of the model was not stored or cannot be read.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Too many models of the tenant wait to be checked.
    #[error(transparent)]
    Turn(#[from] Fault),
}

impl From<std::io::Error> for ModelPushError {
    fn from(error: std::io::Error) -> Self {
        if is_disk_full(&error) { BlobError::from(error).into() } else { Self::Io(error) }
    }
}

/// The folder of model files.
pub(super) struct ModelStore {
    blobs: Blobs,
    /// Preparing takes much memory and all cores, so it runs one model at a time.
    preparing: Turnstile,
}

/// A checked and optimised upload whose files are still temporary: dropping it removes them.
pub(super) struct Fresh {
    upload: Staged,
    out: TempDir,
    pub(super) prepared: Prepared,
}

impl Fresh {
    /// Keeps the measurements of `before` if the files are equal: the measured sizes vary between
    /// trial runs, and this variation must not look like a change.
    pub(super) fn stay_as(&mut self, before: &Prepared) {
        if self.prepared.blobs().eq(before.blobs()) {
            self.prepared = before.clone();
        }
    }
}

/// Durable files, held until a record refers to them.
pub(super) struct DurableFiles {
    pub(super) prepared: Prepared,
    /// The file with the preparation result.
    pub(super) hash: ContentHash,
    #[expect(dead_code, reason = "held until the record refers to the files")]
    pub(super) holds: [Hold; 2],
}

impl ModelStore {
    pub(super) fn new(blobs: Blobs) -> Self {
        Self { blobs, preparing: Turnstile::new("model checks", 1, TENANT_PREPARING_MAX) }
    }

    pub(super) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Checks and optimises an upload of `tenant`. Dropping the future aborts this.
    pub(super) async fn prepare(
        &self,
        tenant: &TenantId,
        upload: Staged,
        precision: Precision,
        preparer: &dyn Preparer,
    ) -> Result<Fresh, ModelPushError> {
        let _turn = self.preparing.turn(tenant).await?;
        // The results take about as much room as the upload.
        self.blobs.check_room(upload.bytes).await?;
        let out = tempfile::Builder::new().prefix(STAGED_PREFIX).tempdir_in(self.blobs.folder())?;
        let prepared = match preparer.prepare(upload.path(), precision, out.path()).await {
            Ok(prepared) => prepared,
            // The child process does not report that the disk was full.
            Err(error) if error.code() == ErrorCode::Internal => {
                self.blobs.check_room(0).await?;
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Fresh { upload, out, prepared })
    }

    /// Checks and optimises the upload of `tenant` in `files`, and writes the results there.
    /// Dropping the future aborts this.
    pub(super) async fn prepare_in(
        &self,
        tenant: &TenantId,
        files: &TempDir,
        preparer: &dyn Preparer,
    ) -> Result<Prepared, ModelPushError> {
        let _turn = self.preparing.turn(tenant).await?;
        Ok(preparer.prepare(&files.path().join("upload"), Precision::default(), files.path()).await?)
    }

    /// Makes the upload and its preparation results durable.
    pub(super) async fn keep(&self, fresh: Fresh) -> Result<DurableFiles, ModelPushError> {
        let Fresh { upload, out, prepared } = fresh;
        let upload = self.blobs.keep(upload).await?;
        let blobs = self.blobs.clone();
        let kept: std::io::Result<DurableFiles> = tokio::task::spawn_blocking(move || {
            let json = serde_json::to_vec(&prepared).map_err(std::io::Error::other)?;
            let hash = ContentHash::from_content(&json);
            let files = blobs.in_use().hold(prepared.blobs().chain([hash]));
            keep_all(&prepared, out.path(), blobs.folder())?;
            write(&json, &blobs.path(hash))?;
            Ok(DurableFiles { prepared, hash, holds: [upload, files] })
        })
        .await
        .map_err(std::io::Error::other)?;
        let kept = kept?;
        self.blobs.share(kept.prepared.blobs().chain([kept.hash])).await?;
        Ok(kept)
    }

    /// Reads a preparation result. Without a shared store, the files that it names must exist on
    /// this node.
    pub(super) async fn read_prepared(&self, hash: ContentHash) -> Result<Prepared, ModelPushError> {
        let path = self.blobs.fetch(hash).await?;
        let blobs = self.blobs.clone();
        let read = tokio::task::spawn_blocking(move || {
            let prepared: Prepared =
                serde_json::from_slice(&std::fs::read(path)?).map_err(std::io::Error::other)?;
            if blobs.is_shared() {
                return Ok(prepared);
            }
            for hash in prepared.blobs() {
                if !blobs.is_local(hash)? {
                    return Err(BlobError::Missing(hash));
                }
            }
            Ok(prepared)
        });
        Ok(read.await.map_err(std::io::Error::other)??)
    }

    /// Fetches all files that a load of the model on this platform reads.
    pub(super) async fn fetch(&self, prepared: &Prepared, platform: Platform) -> Result<(), BlobError> {
        futures::stream::iter(prepared.blobs_for(platform).map(|hash| self.blobs.fetch(hash)))
            .buffer_unordered(FETCHES_AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Whether all files of a model have the expected contents. Reads them.
    pub(super) async fn is_intact(&self, files: Vec<ContentHash>) -> Result<bool, ModelPushError> {
        let blobs = self.blobs.clone();
        let read = tokio::task::spawn_blocking(move || {
            files.into_iter().try_fold(true, |intact, hash| Ok(intact && is_intact(&blobs.path(hash), hash)?))
        });
        read.await.map_err(std::io::Error::other)?
    }
}

/// Moves the prepared files from `out` into `folder`. Blocks.
fn keep_all(prepared: &Prepared, out: &Path, folder: &Path) -> std::io::Result<()> {
    for hash in prepared.blobs() {
        let from = out.join(hash.to_string());
        let to = folder.join(hash.to_string());
        if !is_intact(&to, hash)? {
            let file = std::fs::File::open(&from)?;
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.sync_all()?;
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
    // Also syncs the folder, and with it the names of the files written before.
    persist(file, path)
}
