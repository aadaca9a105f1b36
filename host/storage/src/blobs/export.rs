//! Reads all blobs, for backups.

use super::files::blocking;
use super::{BlobError, Blobs, SweepPause, blobs_in, shared};
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use std::fs::File;
use std::io::{ErrorKind, Read};
use weir_types::ContentHash;

/// Size of the pieces in which a blob is read.
const PIECE_BYTES: usize = 256 << 10;

/// The contents of a blob, not verified: the reader has to compare their hash with the digest.
pub struct BlobContents {
    /// Size.
    pub bytes: u64,
    /// Contents.
    pub pieces: BoxStream<'static, Result<Bytes, BlobError>>,
}

impl Blobs {
    /// The digests of all blobs, in order: of the shared store, with those that are set aside
    /// there, or of the folder if there is no shared store.
    pub async fn all(&self) -> Result<Vec<ContentHash>, BlobError> {
        let mut digests = match &self.shared {
            Some(shared) => shared.all().await?,
            None => {
                let folder = self.folder.clone();
                blocking(move || blobs_in(&folder)?.collect::<std::io::Result<Vec<_>>>()).await?
            }
        };
        digests.sort_unstable();
        digests.dedup();
        Ok(digests)
    }

    /// Opens a blob: of the shared store, or of the folder if there is no shared store.
    pub async fn read(&self, digest: ContentHash) -> Result<BlobContents, BlobError> {
        let Some(shared) = &self.shared else { return self.read_local(digest).await };
        let found = match shared.get(digest).await {
            Err(object_store::Error::NotFound { .. }) => return Err(BlobError::Missing(digest)),
            found => found?,
        };
        let bytes = found.meta.size;
        Ok(BlobContents { bytes, pieces: shared::pieces(found).map_err(BlobError::from).boxed() })
    }

    async fn read_local(&self, digest: ContentHash) -> Result<BlobContents, BlobError> {
        let path = self.path(digest);
        let opened = blocking(move || {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        })
        .await;
        let (file, bytes) = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(BlobError::Missing(digest)),
            opened => opened?,
        };
        let pieces = stream::try_unfold(file, async |file| {
            let (piece, file) = blocking(move || next_piece(file)).await?;
            Ok::<_, BlobError>((!piece.is_empty()).then_some((piece, file)))
        });
        Ok(BlobContents { bytes, pieces: pieces.boxed() })
    }

    /// Pauses sweeps: no local blob is removed until the result is dropped. Sweeps in the meantime do
    /// nothing, and later ones make up for them.
    pub async fn pause_sweeps(&self) -> std::io::Result<SweepPause> {
        let in_use = self.in_use.clone();
        blocking(move || Ok(in_use.pause())).await
    }
}

/// Reads the next piece of a file; empty at the end. Blocks.
fn next_piece(mut file: File) -> std::io::Result<(Bytes, File)> {
    let mut piece = BytesMut::zeroed(PIECE_BYTES);
    let mut len = 0;
    while len < PIECE_BYTES {
        match file.read(&mut piece[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    piece.truncate(len);
    Ok((piece.freeze(), file))
}
