//! Writes an archive while the node serves.

use crate::archive::{ArchiveWriter, blob_name};
use crate::format::{
    BackupFailure, BackupHeader, FAILURE, FORMAT, HEADER, RECORDS, RECORDS_BYTES, RecordLine,
};
use crate::source::FrozenState;
use crate::{BackupError, BackupSource, BlobFolder};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::{Key, LIST_LIMIT_MAX, Prefix};
use weir_storage::blobs::BlobError;
use weir_types::ContentHash;

/// Pieces of the archive that wait for the client.
const PIECES_MAX: usize = 4;

/// Makes the backups of a node, one at a time.
#[derive(Debug)]
pub struct BackupMaker {
    source: Arc<BackupSource>,
    turn: Arc<Semaphore>,
}

/// A backup whose revision is fixed.
pub struct Backup {
    source: Arc<BackupSource>,
    state: FrozenState,
    created_at_ms: u64,
    _turn: OwnedSemaphorePermit,
}

impl BackupMaker {
    /// Makes backups of `source`.
    #[must_use]
    pub fn new(source: BackupSource) -> Self {
        Self { source: Arc::new(source), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Begins a backup, which has every change that was acknowledged before. Fails while another
    /// backup runs.
    pub async fn begin(&self) -> Result<Backup, BackupError> {
        let turn = self.turn.clone().try_acquire_owned().map_err(|_| BackupError::Busy)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let state = self.source.freeze().await?;
        Ok(Backup { source: self.source.clone(), state, created_at_ms, _turn: turn })
    }
}

impl Backup {
    /// The time at which the backup began, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn created_at_ms(&self) -> u64 {
        self.created_at_ms
    }

    /// The archive, which is read as fast as its receiver takes it. Dropping the stream ends the
    /// backup.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (out, pieces) = mpsc::channel(PIECES_MAX);
        let writing = AbortOnDropHandle::new(tokio::spawn(self.write(out)));
        // The stream owns the task.
        stream::unfold((pieces, writing), |(mut pieces, writing)| async move {
            pieces.recv().await.map(|piece| (piece, (pieces, writing)))
        })
    }

    async fn write(self, out: mpsc::Sender<io::Result<Bytes>>) {
        let revision = self.state.snapshot.revision();
        tracing::info!(%revision, "backup begun");
        let mut archive = ArchiveWriter::new(out.clone(), self.created_at_ms);
        let ended = match self.write_files(&mut archive).await {
            Ok(()) => archive.complete().await,
            // Between two files, the archive can still say why it ends.
            Err(FileError::Between(error)) => {
                let failure = BackupFailure { error: error.to_string() };
                let body = serde_json::to_vec(&failure).unwrap_or_default();
                let told = archive.file(FAILURE, body.into()).await;
                if told.is_ok() {
                    // A client that has gone learns nothing either way.
                    let _ = archive.finish().await;
                }
                Err(error)
            }
            Err(FileError::Within(error)) => {
                let _ = out.send(Err(io::Error::other(error.to_string()))).await;
                Err(error)
            }
        };
        match ended {
            Ok(()) => tracing::info!(%revision, "backup complete"),
            Err(BackupError::Gone) => tracing::warn!(%revision, "backup ended early: the client has gone"),
            Err(error) => tracing::error!(%revision, %error, "backup failed"),
        }
        // The client sees the end only when the next backup may begin.
        drop(self);
        drop(out);
    }

    async fn write_files(&self, archive: &mut ArchiveWriter) -> Result<(), FileError> {
        let header = BackupHeader {
            format: FORMAT,
            weir_version: env!("CARGO_PKG_VERSION").to_owned(),
            created_at_ms: self.created_at_ms,
            origin: self.source.origin,
        };
        let header = serde_json::to_vec_pretty(&header).map_err(io::Error::other)?;
        archive.file(HEADER, header.into()).await?;
        self.write_records(archive).await?;
        for folder in &self.source.folders {
            write_blobs(archive, folder).await?;
        }
        Ok(())
    }

    async fn write_records(&self, archive: &mut ArchiveWriter) -> Result<(), FileError> {
        let mut files = 0_u32;
        let mut lines = Vec::new();
        let mut after: Option<Key> = None;
        loop {
            let page = self.state.snapshot.list(&Prefix::all(), after.as_ref(), LIST_LIMIT_MAX).await;
            let page = page.map_err(BackupError::from)?;
            for entry in page.entries.iter().filter(|entry| self.source.has(entry)) {
                serde_json::to_writer(&mut lines, &RecordLine::from(entry)).map_err(io::Error::other)?;
                lines.push(b'\n');
                if lines.len() >= RECORDS_BYTES {
                    files += 1;
                    archive.file(&records_name(files), std::mem::take(&mut lines).into()).await?;
                }
            }
            after = page.more_after;
            if after.is_none() {
                break;
            }
        }
        if !lines.is_empty() {
            archive.file(&records_name(files + 1), lines.into()).await?;
        }
        Ok(())
    }
}

/// The place of an error in an archive.
enum FileError {
    Between(BackupError),
    /// Part of a file is written.
    Within(BackupError),
}

impl<E: Into<BackupError>> From<E> for FileError {
    fn from(error: E) -> Self {
        Self::Between(error.into())
    }
}

fn records_name(number: u32) -> String {
    format!("{RECORDS}{number:06}.jsonl")
}

async fn write_blobs(archive: &mut ArchiveWriter, folder: &BlobFolder) -> Result<(), FileError> {
    let listed = folder.blobs.all().await;
    let listed = listed.map_err(|source| BackupError::List { folder: folder.name, source })?;
    for digest in listed {
        write_blob(archive, folder, digest).await?;
    }
    Ok(())
}

async fn write_blob(
    archive: &mut ArchiveWriter,
    folder: &BlobFolder,
    digest: ContentHash,
) -> Result<(), FileError> {
    let unreadable = |source| BackupError::Blob { folder: folder.name, digest, source };
    let blob = match folder.blobs.read(digest).await {
        // A cluster removed it since it was listed: no record has referred to it for a grace period.
        Err(BlobError::Missing(_)) if folder.blobs.is_shared() => return Ok(()),
        blob => blob.map_err(unreadable)?,
    };
    let mut file = archive.begin(&blob_name(folder.name, digest), blob.bytes).await?;
    let mut pieces = blob.pieces.boxed();
    let copied = async {
        while let Some(piece) = pieces.try_next().await.map_err(unreadable)? {
            archive.append(&mut file, piece).await?;
        }
        archive.end(file).await
    };
    let hash = copied.await.map_err(FileError::Within)?;
    if hash != digest {
        return Err(BackupError::Damaged { folder: folder.name, digest }.into());
    }
    archive.note_blob(folder.name, digest);
    Ok(())
}
