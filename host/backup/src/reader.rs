//! Reads and checks an archive.

use crate::archive::sum_line;
use crate::format::{
    BLOBS, BODY_BYTES_MAX, BackupFailure, BackupHeader, FAILURE, FORMAT, HEADER, RECORD_BYTES_MAX, RECORDS,
    RecordLine, SUMS,
};
use bytes::Bytes;
use serde::Serialize;
use std::io::{self, BufRead, BufReader, Read};
use tar::{Archive, EntryType};
use weir_datastore::Key;
use weir_types::{ContentHash, Hasher};

/// Receives the contents of an archive, in its order: the header, all records, all blobs.
pub trait BackupContents {
    /// Receives the header.
    fn header(&mut self, header: &BackupHeader) -> io::Result<()>;

    /// Receives a record.
    fn record(&mut self, key: Key, value: Bytes) -> io::Result<()>;

    /// Receives a blob, whose contents are compared with `digest` afterwards.
    fn blob(
        &mut self,
        folder: &str,
        digest: ContentHash,
        bytes: u64,
        contents: &mut dyn Read,
    ) -> io::Result<()>;
}

/// Keeps nothing: only checks an archive.
#[derive(Debug, Clone, Copy)]
pub struct CheckOnly;

impl BackupContents for CheckOnly {
    fn header(&mut self, _header: &BackupHeader) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, _key: Key, _value: Bytes) -> io::Result<()> {
        Ok(())
    }

    fn blob(&mut self, _: &str, _: ContentHash, _: u64, _: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}

/// The parts of an archive to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// Everything, with all checksums.
    All,
    /// The header and the records, of an archive that was checked before.
    Records,
}

/// The contents of an archive, counted.
#[derive(Debug, Clone, Serialize)]
pub struct BackupSummary {
    /// The header.
    #[serde(flatten)]
    pub header: BackupHeader,
    /// Number of records.
    pub records: u64,
    /// Number of blobs.
    pub blobs: u64,
    /// Size of the blobs.
    pub blob_bytes: u64,
}

/// The reason why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is no archive of this kind.
    #[error("it is no backup of Weir")]
    OtherFile,
    /// The archive has a format of another version.
    #[error("it has format {found}, and this program knows format {FORMAT}: use Weir {weir_version}")]
    OtherFormat {
        /// The version of the format.
        found: u32,
        /// The version of Weir that wrote the archive.
        weir_version: String,
    },
    /// The archive ends early.
    #[error("it is incomplete: make the backup again (the log of the node may have a reason)")]
    Incomplete,
    /// The node did not complete the archive.
    #[error("the node could not complete it: {0}")]
    Failed(String),
    /// A file differs from its checksum or cannot be parsed.
    #[error("its file {0:?} is damaged: use another copy of the backup")]
    Damaged(String),
    /// The archive cannot be read.
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    /// The receiver of the contents failed.
    #[error(transparent)]
    Store(io::Error),
}

/// Reads an archive from its beginning, and checks it. What `contents` receives is valid only if this
/// succeeds. Blocks.
pub fn read(
    source: impl Read,
    parts: Parts,
    contents: &mut dyn BackupContents,
) -> Result<BackupSummary, ReadError> {
    let mut archive = Archive::new(source);
    let mut reader =
        ArchiveReader { contents, summary: None, sums: Hasher::default(), damaged: None, is_complete: false };
    for file in archive.entries().map_err(ReadError::Read)? {
        let is_first = reader.summary.is_none();
        let file = file.map_err(|error| if is_first { ReadError::OtherFile } else { cut_off(error) })?;
        let name = file.path().ok().and_then(|path| path.to_str().map(str::to_owned));
        let name = name.filter(|_| file.header().entry_type() == EntryType::Regular);
        let name = name.ok_or(ReadError::OtherFile)?;
        if parts == Parts::Records && !is_first && !name.starts_with(RECORDS) {
            return reader.summary.ok_or(ReadError::OtherFile);
        }
        let bytes = file.size();
        reader.file(&name, bytes, file)?;
    }
    let summary = reader.summary.ok_or(ReadError::OtherFile)?;
    if let Some(damaged) = reader.damaged {
        return Err(ReadError::Damaged(damaged));
    }
    if reader.is_complete { Ok(summary) } else { Err(ReadError::Incomplete) }
}

struct ArchiveReader<'a> {
    contents: &'a mut dyn BackupContents,
    /// `None` before the header.
    summary: Option<BackupSummary>,
    /// Hash of the lines for the files so far.
    sums: Hasher,
    /// A blob that differs from its name. The node may say why in the next file.
    damaged: Option<String>,
    is_complete: bool,
}

impl ArchiveReader<'_> {
    fn file(&mut self, name: &str, bytes: u64, file: impl Read) -> Result<(), ReadError> {
        let mut file = HashingReader { source: file, hasher: Hasher::default(), bytes: 0, has_failed: false };
        let Some(summary) = &mut self.summary else {
            let header = self.header(name, &mut file);
            // A file that ends early is incomplete rather than damaged.
            let hash = file.finish(bytes)?;
            self.summary = Some(header?);
            self.note(name, hash);
            return Ok(());
        };
        if self.is_complete {
            return Err(ReadError::Damaged(name.to_owned()));
        }
        if let Some(damaged) = self.damaged.take()
            && name != FAILURE
        {
            return Err(ReadError::Damaged(damaged));
        }
        if name == SUMS {
            self.is_complete = file.finish(bytes)? == std::mem::take(&mut self.sums).finish();
            return if self.is_complete { Ok(()) } else { Err(ReadError::Damaged(name.to_owned())) };
        }
        if name == FAILURE {
            let failure: BackupFailure = body(name, &mut file)?;
            return Err(ReadError::Failed(failure.error));
        }
        if name.starts_with(RECORDS) {
            let count = records(name, &mut file, self.contents);
            let hash = file.finish(bytes)?;
            summary.records += count?;
            self.note(name, hash);
            return Ok(());
        }
        let damaged = || ReadError::Damaged(name.to_owned());
        let blob = name.strip_prefix(BLOBS).and_then(|blob| blob.split_once('/'));
        let (folder, digest) = blob.ok_or_else(damaged)?;
        let digest: ContentHash = digest.parse().map_err(|_| damaged())?;
        let received = self.contents.blob(folder, digest, bytes, &mut file);
        // A receiver that failed because the archive cannot be read has not failed itself.
        received.map_err(|error| if file.has_failed { cut_off(error) } else { ReadError::Store(error) })?;
        let hash = file.finish(bytes)?;
        if hash != digest {
            self.damaged = Some(name.to_owned());
            return Ok(());
        }
        summary.blobs += 1;
        summary.blob_bytes += bytes;
        self.note(name, hash);
        Ok(())
    }

    fn header(&mut self, name: &str, file: &mut impl Read) -> Result<BackupSummary, ReadError> {
        if name != HEADER {
            return Err(ReadError::OtherFile);
        }
        let header: BackupHeader = body(name, file)?;
        if header.format != FORMAT {
            let BackupHeader { format: found, weir_version, .. } = header;
            return Err(ReadError::OtherFormat { found, weir_version });
        }
        self.contents.header(&header).map_err(ReadError::Store)?;
        Ok(BackupSummary { header, records: 0, blobs: 0, blob_bytes: 0 })
    }

    fn note(&mut self, name: &str, hash: ContentHash) {
        self.sums.update(sum_line(hash, name).as_bytes());
    }
}

/// Reads a file of records. Returns their number.
fn records(name: &str, file: &mut impl Read, contents: &mut dyn BackupContents) -> Result<u64, ReadError> {
    let damaged = || ReadError::Damaged(name.to_owned());
    let mut file = BufReader::new(file);
    let mut line = Vec::new();
    let mut count = 0;
    loop {
        line.clear();
        let read = (&mut file).take(RECORD_BYTES_MAX).read_until(b'\n', &mut line).map_err(cut_off)?;
        if read == 0 {
            return Ok(count);
        }
        if line.pop() != Some(b'\n') {
            return Err(damaged());
        }
        let record: RecordLine = serde_json::from_slice(&line).map_err(|_| damaged())?;
        let (key, value) = record.into_record().ok_or_else(damaged)?;
        contents.record(key, value).map_err(ReadError::Store)?;
        count += 1;
    }
}

/// Parses a small file.
fn body<T: serde::de::DeserializeOwned>(name: &str, file: &mut impl Read) -> Result<T, ReadError> {
    let mut bytes = Vec::new();
    file.take(BODY_BYTES_MAX).read_to_end(&mut bytes).map_err(cut_off)?;
    serde_json::from_slice(&bytes).map_err(|_| ReadError::Damaged(name.to_owned()))
}

/// The tar reader reports a file that ends early as an error of its own.
fn cut_off(error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::Other | io::ErrorKind::ConnectionReset => {
            ReadError::Incomplete
        }
        _ => ReadError::Read(error),
    }
}

/// Hashes a file of the archive while it is read.
struct HashingReader<R> {
    source: R,
    hasher: Hasher,
    bytes: u64,
    /// Whether a read has failed.
    has_failed: bool,
}

impl<R: Read> HashingReader<R> {
    /// Reads the rest. Returns the hash of the whole file, which has `bytes` bytes.
    fn finish(mut self, bytes: u64) -> Result<ContentHash, ReadError> {
        io::copy(&mut self, &mut io::sink()).map_err(cut_off)?;
        // The tar reader ends a file silently where the archive ends.
        if self.bytes == bytes { Ok(self.hasher.finish()) } else { Err(ReadError::Incomplete) }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer);
        match &read {
            Ok(len) => {
                self.hasher.update(&buffer[..*len]);
                self.bytes += *len as u64;
            }
            Err(error) => self.has_failed = self.has_failed || error.kind() != io::ErrorKind::Interrupted,
        }
        read
    }
}
