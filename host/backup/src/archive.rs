//! A tar file that is written piece by piece, with the checksums of its files.

use crate::BackupError;
use crate::format::SUMS;
use bytes::Bytes;
use std::io;
use tar::{EntryType, Header};
use tokio::sync::mpsc;
use weir_types::{ContentHash, Hasher};

/// Size of the blocks of a tar file.
const BLOCK_BYTES: u64 = 512;
/// Empty blocks at the end of a tar file.
const END: [u8; 2 * BLOCK_BYTES as usize] = [0; 2 * BLOCK_BYTES as usize];
/// Size of the pieces in which long texts are sent.
const PIECE_BYTES: usize = 256 << 10;

/// Writes an archive to a client, whose pace it follows.
pub(crate) struct ArchiveWriter {
    out: mpsc::Sender<io::Result<Bytes>>,
    /// Time of modification of all files, in seconds since the Unix epoch.
    time: u64,
    sums: Vec<ArchivedFile>,
}

/// A file of an archive and its checksum. Blobs have theirs in their name.
enum ArchivedFile {
    Named(String, ContentHash),
    Blob(&'static str, ContentHash),
}

/// A file of an archive that is being written.
pub(crate) struct OpenFile {
    hasher: Hasher,
    bytes: u64,
    left: u64,
}

impl ArchiveWriter {
    pub(crate) fn new(out: mpsc::Sender<io::Result<Bytes>>, created_at_ms: u64) -> Self {
        Self { out, time: created_at_ms / 1_000, sums: Vec::new() }
    }

    /// Writes a whole file.
    pub(crate) async fn file(&mut self, name: &str, body: Bytes) -> Result<(), BackupError> {
        let mut file = self.begin(name, body.len() as u64).await?;
        self.append(&mut file, body).await?;
        let hash = self.end(file).await?;
        self.sums.push(ArchivedFile::Named(name.to_owned(), hash));
        Ok(())
    }

    /// Begins a file of this size.
    pub(crate) async fn begin(&mut self, name: &str, bytes: u64) -> Result<OpenFile, BackupError> {
        let mut header = Header::new_gnu();
        header.set_path(name)?;
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        header.set_cksum();
        self.send(Bytes::copy_from_slice(header.as_bytes())).await?;
        Ok(OpenFile { hasher: Hasher::default(), bytes, left: bytes })
    }

    /// Appends a piece to a file. Hashes it on a thread for blocking work.
    pub(crate) async fn append(&mut self, file: &mut OpenFile, piece: Bytes) -> Result<(), BackupError> {
        let left = file.left.checked_sub(piece.len() as u64);
        file.left = left.ok_or_else(|| io::Error::other("a file grew while it was read"))?;
        let mut hasher = std::mem::take(&mut file.hasher);
        let hashed = piece.clone();
        let hashing = tokio::task::spawn_blocking(move || {
            hasher.update(&hashed);
            hasher
        });
        file.hasher = hashing.await.map_err(io::Error::other)?;
        self.send(piece).await
    }

    /// Ends a file. Returns its checksum.
    pub(crate) async fn end(&mut self, file: OpenFile) -> Result<ContentHash, BackupError> {
        if file.left > 0 {
            return Err(io::Error::other("a file ended early").into());
        }
        let padding = file.bytes.next_multiple_of(BLOCK_BYTES) - file.bytes;
        if padding > 0 {
            self.send(Bytes::from_static(&END).slice(..usize::try_from(padding).unwrap_or_default())).await?;
        }
        Ok(file.hasher.finish())
    }

    /// Notes the checksum of a blob that was written under its hash.
    pub(crate) fn note_blob(&mut self, folder: &'static str, digest: ContentHash) {
        self.sums.push(ArchivedFile::Blob(folder, digest));
    }

    /// Writes the checksums, and ends a complete archive.
    pub(crate) async fn complete(mut self) -> Result<(), BackupError> {
        let sums = std::mem::take(&mut self.sums);
        let bytes = sums.iter().map(|file| file.sum_line().len() as u64).sum();
        let mut file = self.begin(SUMS, bytes).await?;
        let mut piece = String::new();
        for line in sums.iter().map(ArchivedFile::sum_line) {
            piece.push_str(&line);
            if piece.len() >= PIECE_BYTES {
                self.append(&mut file, std::mem::take(&mut piece).into()).await?;
            }
        }
        self.append(&mut file, piece.into()).await?;
        self.end(file).await?;
        self.finish().await
    }

    /// Writes the empty blocks at the end.
    pub(crate) async fn finish(self) -> Result<(), BackupError> {
        self.send(Bytes::from_static(&END)).await
    }

    async fn send(&self, piece: Bytes) -> Result<(), BackupError> {
        self.out.send(Ok(piece)).await.map_err(|_| BackupError::Gone)
    }
}

impl ArchivedFile {
    fn sum_line(&self) -> String {
        match self {
            Self::Named(name, hash) => sum_line(*hash, name),
            Self::Blob(folder, hash) => sum_line(*hash, &blob_name(folder, *hash)),
        }
    }
}

/// A line of the checksums, as `sha256sum` prints it.
pub(crate) fn sum_line(hash: ContentHash, name: &str) -> String {
    format!("{hash}  {name}\n")
}

/// The name of a blob in an archive.
pub(crate) fn blob_name(folder: &str, digest: ContentHash) -> String {
    format!("{}{folder}/{digest}", crate::format::BLOBS)
}
