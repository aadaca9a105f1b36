//! Puts the contents of an archive into an empty store.

use crate::reader::{BackupContents, BackupSummary, Parts, ReadError, read};
use crate::{BackupHeader, BlobFolder};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::Arc;
use tokio::runtime::Handle;
use weir_datastore::{
    Commit, Compare, Datastore, Key, TRANSACTION_BYTES_MAX, TRANSACTION_OPERATIONS_MAX, Transaction, Write,
};
use weir_types::ContentHash;

/// Size of the pieces in which blobs are stored.
const PIECE_BYTES: usize = 256 << 10;

/// The store of a restored backup, which must be empty.
#[derive(Debug)]
pub struct RestoreTarget {
    /// The folders of blobs.
    pub folders: Vec<BlobFolder>,
    /// The records.
    pub datastore: Arc<dyn Datastore>,
}

/// The reason why a backup was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The archive cannot be used, or the store failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The archive cannot be read again.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Restores the backup in `file`: first all blobs, while everything is checked, and then the records.
/// `progress` receives the number of bytes of `file` that were read. Blocks, on a thread outside of
/// `runtime`.
pub fn restore(
    file: &mut File,
    target: &RestoreTarget,
    runtime: &Handle,
    mut progress: impl FnMut(u64),
) -> Result<BackupSummary, RestoreError> {
    file.rewind()?;
    let counted = CountedFile { file, bytes: 0, progress: &mut progress };
    let summary = read(counted, Parts::All, &mut BlobReceiver { target, runtime })?;
    file.rewind()?;
    let mut records = RecordReceiver { target, runtime, pending: Transaction::new(), pending_bytes: 0 };
    read(&mut *file, Parts::Records, &mut records)?;
    records.commit().map_err(ReadError::Store)?;
    Ok(summary)
}

/// Stores the blobs.
struct BlobReceiver<'a> {
    target: &'a RestoreTarget,
    runtime: &'a Handle,
}

impl BackupContents for BlobReceiver<'_> {
    fn header(&mut self, _header: &BackupHeader) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, _key: Key, _value: Bytes) -> io::Result<()> {
        Ok(())
    }

    fn blob(
        &mut self,
        folder: &str,
        digest: ContentHash,
        bytes: u64,
        contents: &mut dyn Read,
    ) -> io::Result<()> {
        let known = self.target.folders.iter().find(|known| known.name == folder);
        let Some(BlobFolder { blobs, .. }) = known else {
            let text =
                format!("this program knows no files in {folder:?}: use the version that made the backup");
            return Err(io::Error::other(text));
        };
        self.runtime.block_on(async {
            let pieces = futures::stream::iter(Pieces(contents));
            let staged = blobs.stage_accepted(pieces, bytes).await.map_err(io::Error::other)?;
            if staged.digest != digest {
                // The reader reports the damage.
                return Ok(());
            }
            let kept = blobs.keep(staged).await.map_err(io::Error::other)?;
            if blobs.is_shared() {
                tokio::fs::remove_file(blobs.path(digest)).await?;
            }
            drop(kept);
            Ok(())
        })
    }
}

/// Writes the records, in transactions of limited size.
struct RecordReceiver<'a> {
    target: &'a RestoreTarget,
    runtime: &'a Handle,
    pending: Transaction,
    pending_bytes: usize,
}

impl BackupContents for RecordReceiver<'_> {
    fn header(&mut self, _header: &BackupHeader) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, key: Key, value: Bytes) -> io::Result<()> {
        // Each record has a compare and a write with the key.
        let bytes = 2 * key.as_str().len() + value.len();
        let is_full = self.pending.writes.len() == TRANSACTION_OPERATIONS_MAX
            || self.pending_bytes + bytes > TRANSACTION_BYTES_MAX;
        if is_full {
            self.commit()?;
        }
        self.pending_bytes += bytes;
        self.pending.compares.push(Compare::Absent(key.clone()));
        self.pending.writes.push(Write::Put { key, value, lease: None });
        Ok(())
    }

    fn blob(&mut self, _: &str, _: ContentHash, _: u64, _: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}

impl RecordReceiver<'_> {
    fn commit(&mut self) -> io::Result<()> {
        self.pending_bytes = 0;
        let pending = std::mem::take(&mut self.pending);
        if pending.writes.is_empty() {
            return Ok(());
        }
        match self.runtime.block_on(self.target.datastore.commit(pending)).map_err(io::Error::other)? {
            Commit::Done(_) => Ok(()),
            Commit::Conflict => {
                let text = "something else writes to the store while it is restored: stop it, empty the store and restore again";
                Err(io::Error::other(text))
            }
        }
    }
}

/// The pieces of a blob.
struct Pieces<'a>(&'a mut dyn Read);

impl Iterator for Pieces<'_> {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = Vec::new();
        match (&mut self.0).take(PIECE_BYTES as u64).read_to_end(&mut piece) {
            Ok(0) => None,
            Ok(_) => Some(Ok(piece.into())),
            Err(error) => Some(Err(error)),
        }
    }
}

/// A file whose reads are counted.
struct CountedFile<'a, P> {
    file: &'a mut File,
    bytes: u64,
    progress: &'a mut P,
}

impl<P: FnMut(u64)> Read for CountedFile<'_, P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.bytes += len as u64;
        (self.progress)(self.bytes);
        Ok(len)
    }
}
