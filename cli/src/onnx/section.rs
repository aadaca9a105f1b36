//! Parts of files on disk.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

/// Part of a file on disk, which is read like a separate file.
#[derive(Debug, Clone)]
pub(super) struct Section {
    file: Arc<File>,
    start: u64,
    len: u64,
    position: u64,
}

impl Section {
    /// Opens a whole file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        Ok(Self::new(Arc::new(file), 0, meta.len()))
    }

    /// The part of `file` with `len` bytes from `start`.
    pub(super) fn new(file: Arc<File>, start: u64, len: u64) -> Self {
        Self { file, start, len, position: 0 }
    }

    /// `len` bytes from `start` of this part; `None` if it ends before them.
    pub(super) fn slice(&self, start: u64, len: u64) -> Option<Self> {
        start.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Self::new(self.file.clone(), self.start + start, len))
    }

    /// Length of the part.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.len.saturating_sub(self.position);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..wanted], self.start + self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(distance) => self.len.checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
