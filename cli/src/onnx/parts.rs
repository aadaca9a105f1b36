//! A file in parts of other files.

use super::files::StoredFile;
use super::section::Section;
use super::{Piece, total};
use std::collections::VecDeque;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::ops::Range;

/// A file of [`ModelParts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIndex(usize);

impl FileIndex {
    /// The ONNX file.
    pub(super) const MODEL: Self = Self(0);
}

/// A model in parts of several files.
#[derive(Debug)]
pub(crate) struct ModelParts {
    files: Vec<StoredFile>,
    pieces: VecDeque<Piece>,
}

impl ModelParts {
    pub(super) fn new(model: StoredFile) -> Self {
        Self { files: vec![model], pieces: VecDeque::new() }
    }

    /// Adds a file with weights.
    pub(super) fn add_file(&mut self, file: StoredFile) -> FileIndex {
        self.files.push(file);
        FileIndex(self.files.len() - 1)
    }

    pub(super) fn set(&mut self, pieces: Vec<Piece>) {
        self.pieces = pieces.into();
    }

    /// Length of the model.
    pub(crate) fn length_bytes(&self) -> u64 {
        total(&self.pieces)
    }

    /// Reads the model from its start.
    pub(crate) fn reader(self) -> PartsReader {
        PartsReader { parts: self, open: None }
    }
}

/// Reader of [`ModelParts`].
#[derive(Debug)]
pub(crate) struct PartsReader {
    parts: ModelParts,
    /// The file of the last part. The weights of a model are usually in one file.
    open: Option<(FileIndex, Section)>,
}

impl PartsReader {
    /// Reads bytes at the start of `range` of a file.
    fn read_file(&mut self, index: FileIndex, range: &Range<u64>, buffer: &mut [u8]) -> io::Result<usize> {
        let stored =
            self.parts.files.get(index.0).ok_or_else(|| io::Error::other("there is no such file"))?;
        let mut file = match self.open.take() {
            Some((open, file)) if open == index => file,
            _ => stored.open()?,
        };
        file.seek(SeekFrom::Start(range.start))?;
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(buffer.len());
        let count = file.read(&mut buffer[..wanted])?;
        if count == 0 {
            let text = format!("{stored} became shorter while it was sent");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        self.open = Some((index, file));
        Ok(count)
    }
}

impl Read for PartsReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while let Some(piece) = self.parts.pieces.pop_front() {
            if piece.len() == 0 {
                continue;
            }
            let (count, rest) = match piece {
                Piece::Bytes(mut bytes) => {
                    let count = bytes.len().min(buffer.len());
                    buffer[..count].copy_from_slice(&bytes[..count]);
                    bytes.drain(..count);
                    (count, Piece::Bytes(bytes))
                }
                Piece::File(index, range) => {
                    let count = self.read_file(index, &range, buffer)?;
                    (count, Piece::File(index, range.start + count as u64..range.end))
                }
            };
            self.parts.pieces.push_front(rest);
            return Ok(count);
        }
        Ok(0)
    }
}
