//! Reader of `.zip` archives: the list of files at the end, and their contents, stored or deflated.

use super::super::section::Section;
use super::ArchiveError;
use flate2::Crc;
use flate2::bufread::DeflateDecoder;
use std::io::{self, BufReader, Read};

/// Length of the record at the end, without its comment.
const END_BYTES: usize = 22;
/// Longest comment of an archive.
const COMMENT_BYTES_MAX: usize = u16::MAX as usize;
/// Length of an entry in the list of files, without its name and extra fields.
const ENTRY_BYTES: usize = 46;
/// Length of the head of a file, without its name and extra fields.
const HEAD_BYTES: usize = 30;
/// Number that stands for one in the field [`ZIP64`].
const IN_ZIP64: u64 = u32::MAX as u64;
/// Extra field with numbers of 64 bits.
const ZIP64: u16 = 1;
/// Maker of an archive whose file attributes are a Unix mode.
const UNIX: u8 = 3;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// Files of an archive. Holds one entry of its list in memory.
pub(super) struct ZipReader {
    list: BufReader<Section>,
    archive: Section,
    files_left: u16,
}

/// A file or folder of an archive.
pub(super) struct ZipEntry {
    pub(super) name: Vec<u8>,
    pub(super) is_encrypted: bool,
    pub(super) is_link: bool,
    method: u16,
    crc: u32,
    packed_bytes: u64,
    bytes: u64,
    head_start: u64,
}

impl ZipReader {
    pub(super) fn new(archive: Section) -> Result<Self, ArchiveError> {
        let tail_bytes = archive.len().min((END_BYTES + COMMENT_BYTES_MAX) as u64);
        let mut tail = Vec::new();
        part(&archive, archive.len() - tail_bytes, tail_bytes)?.read_to_end(&mut tail)?;
        // Searches from the end, since the comment may contain any bytes.
        let is_end = |at: &usize| {
            let end = &tail[*at..];
            end.starts_with(b"PK\x05\x06") && usize::from(u16_at(end, 20)) == end.len() - END_BYTES
        };
        let places = 0..(tail.len() + 1).saturating_sub(END_BYTES);
        let end = &tail[places.rev().find(is_end).ok_or(ArchiveError::Damaged("its end is missing"))?..];
        let files = u16_at(end, 10);
        if files == u16::MAX {
            return Err(ArchiveError::TooManyFiles);
        }
        if u16_at(end, 4) != 0 || u16_at(end, 8) != files {
            return Err(ArchiveError::Damaged("it is a part of an archive"));
        }
        let list = part(&archive, u64::from(u32_at(end, 16)), u64::from(u32_at(end, 12)))?;
        Ok(Self { list: BufReader::new(list), archive, files_left: files })
    }

    /// The next entry of the list of files.
    pub(super) fn next(&mut self) -> Result<Option<ZipEntry>, ArchiveError> {
        if self.files_left == 0 {
            return Ok(None);
        }
        self.files_left -= 1;
        let mut entry = [0; ENTRY_BYTES];
        self.list.read_exact(&mut entry)?;
        if !entry.starts_with(b"PK\x01\x02") {
            return Err(ArchiveError::Damaged("its list of files is damaged"));
        }
        let name = self.take(u16_at(&entry, 28))?;
        let extra = self.take(u16_at(&entry, 30))?;
        self.list.seek_relative(i64::from(u16_at(&entry, 32)))?;
        let mut numbers = [24, 20, 42].map(|at| u64::from(u32_at(&entry, at)));
        read_zip64(&extra, &mut numbers)?;
        let [bytes, packed_bytes, head_start] = numbers;
        let mode = u32_at(&entry, 38) >> 16;
        Ok(Some(ZipEntry {
            name,
            is_encrypted: u16_at(&entry, 8) & 1 != 0,
            is_link: entry[5] == UNIX && mode & 0o170_000 == 0o120_000,
            method: u16_at(&entry, 10),
            crc: u32_at(&entry, 16),
            packed_bytes,
            bytes,
            head_start,
        }))
    }

    fn take(&mut self, len: u16) -> Result<Vec<u8>, ArchiveError> {
        let mut bytes = vec![0; usize::from(len)];
        self.list.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The content of a file.
    pub(super) fn open(&self, entry: &ZipEntry) -> Result<impl Read + use<>, ArchiveError> {
        let mut head = [0; HEAD_BYTES];
        part(&self.archive, entry.head_start, HEAD_BYTES as u64)?.read_exact(&mut head)?;
        if !head.starts_with(b"PK\x03\x04") {
            return Err(ArchiveError::Damaged("the head of a file is damaged"));
        }
        let behind = u64::from(u16_at(&head, 26)) + u64::from(u16_at(&head, 28));
        let start = entry.head_start + HEAD_BYTES as u64 + behind;
        let packed = BufReader::new(part(&self.archive, start, entry.packed_bytes)?);
        let content: Box<dyn Read> = match entry.method {
            STORED => Box::new(packed),
            DEFLATED => Box::new(DeflateDecoder::new(packed)),
            method => return Err(ArchiveError::Method(method)),
        };
        Ok(Checked { content, crc: Crc::new(), expected_crc: entry.crc, bytes_left: entry.bytes })
    }
}

/// A part of the archive.
fn part(archive: &Section, start: u64, len: u64) -> Result<Section, ArchiveError> {
    archive.slice(start, len).ok_or(ArchiveError::Damaged("it is incomplete"))
}

/// Replaces numbers that are in the extra field [`ZIP64`], in the order of the entry's fields there.
fn read_zip64(mut extra: &[u8], numbers: &mut [u64]) -> Result<(), ArchiveError> {
    const DAMAGED: ArchiveError = ArchiveError::Damaged("an extra field is damaged");
    while extra.len() >= 4 {
        let len = usize::from(u16_at(extra, 2));
        let Some((field, rest)) = extra[4..].split_at_checked(len) else { return Err(DAMAGED) };
        if u16_at(extra, 0) == ZIP64 {
            let (wide, _) = field.as_chunks();
            let mut wide = wide.iter().map(|bytes| u64::from_le_bytes(*bytes));
            for number in numbers.iter_mut().filter(|number| **number == IN_ZIP64) {
                *number = wide.next().ok_or(DAMAGED)?;
            }
            return Ok(());
        }
        extra = rest;
    }
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Reader that compares the content with its length and checksum at the end.
struct Checked {
    content: Box<dyn Read>,
    crc: Crc,
    expected_crc: u32,
    bytes_left: u64,
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.crc.update(&buffer[..count]);
        let bytes_left = self.bytes_left.checked_sub(count as u64);
        let is_wrong = match bytes_left {
            None => true,
            Some(left) => {
                self.bytes_left = left;
                count == 0 && !buffer.is_empty() && (left > 0 || self.crc.sum() != self.expected_crc)
            }
        };
        if is_wrong {
            Err(io::Error::other("a file has another checksum or length than the archive says"))
        } else {
            Ok(count)
        }
    }
}
