//! Archives of a model's folder: `.tar`, `.tar.gz` and `.zip`.
//!
//! The files go to one temporary file without a name, one after the other. The system removes it
//! when the command ends, however it ends. The names in the archive become keys of a table, and never
//! paths on disk.

mod zip;

use super::files::{StoredFile, inside};
use super::section::Section;
use super::{FILES_MAX, MODEL_BYTES_MAX};
use crate::error::Problem;
use crate::output::size;
use flate2::bufread::MultiGzDecoder;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::path::Path;
use std::sync::Arc;
use tar::{EntryType, PaxExtensions};
use zip::ZipReader;

/// Limit of the unpacked files. A model has at most [`MODEL_BYTES_MAX`]; other files may be next to
/// it.
const UNPACKED_BYTES_MAX: u64 = MODEL_BYTES_MAX + (1 << 30);
/// Longest path of a file in an archive.
const PATH_BYTES_MAX: u64 = 4 << 10;
/// Limit of the attributes of a file in a `.tar` archive.
const ATTRIBUTES_BYTES_MAX: u64 = 64 << 10;

/// Format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Tar,
    TarGz,
    Zip,
}

impl Format {
    /// The format that the name of a file says; `None` if the file is no archive.
    pub(super) fn from_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let endings =
            [(".tar", Self::Tar), (".tar.gz", Self::TarGz), (".tgz", Self::TarGz), (".zip", Self::Zip)];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }
}

/// Reason why an archive cannot be unpacked.
#[derive(Debug, thiserror::Error)]
enum ArchiveError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damaged(&'static str),
    #[error("it uses compression method {0}; pack it with deflate")]
    Method(u16),
    #[error("{0:?} leads outside the folder")]
    Outside(String),
    #[error("{0:?} is a link; pack the file that it leads to (tar --dereference)")]
    Link(String),
    #[error("{0:?} is neither a file nor a folder")]
    Kind(String),
    #[error("{0:?} is encrypted")]
    Encrypted(String),
    #[error("{0:?} is a sparse file, or one above 8 GiB")]
    Layout(String),
    #[error("it has {0:?} twice")]
    Twice(String),
    #[error("it has a path that is not UTF-8")]
    Encoding,
    #[error("it has a path or attributes of more than {0} bytes")]
    Head(u64),
    #[error("it has more than {FILES_MAX} files")]
    TooManyFiles,
    #[error("its files take more than {}", size(UNPACKED_BYTES_MAX))]
    TooLarge,
}

/// The files of an unpacked archive.
#[derive(Debug)]
pub(super) struct Archive {
    files: HashMap<String, Section>,
}

impl Archive {
    /// Unpacks the archive at `path`.
    pub(super) fn unpack(path: &Path, format: Format) -> Result<Self, Problem> {
        unpack(path, format).map_err(|error| {
            let problem = Problem::new(format!("cannot unpack {}", path.display()));
            let is_system = matches!(error, ArchiveError::Io(_) | ArchiveError::Damaged(_));
            let problem = problem.because(error);
            if is_system {
                problem.hint("the archive is incomplete, or TMPDIR has no room for its files")
            } else {
                problem
            }
        })
    }

    /// The paths of the files.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The file with this path.
    pub(super) fn get(&self, name: &str) -> Option<StoredFile> {
        self.files.get(name).map(|section| StoredFile::InArchive(name.to_owned(), section.clone()))
    }
}

fn unpack(path: &Path, format: Format) -> Result<Archive, ArchiveError> {
    let archive = Section::open(path)?;
    let mut unpacker =
        Unpacker { spool: BufWriter::new(tempfile::tempfile()?), files: HashMap::new(), bytes: 0 };
    match format {
        Format::Tar => unpacker.tar(BufReader::new(archive))?,
        Format::TarGz => unpacker.tar(MultiGzDecoder::new(BufReader::new(archive)))?,
        Format::Zip => unpacker.zip(archive)?,
    }
    unpacker.finish()
}

/// Copies the files of an archive to one temporary file.
struct Unpacker {
    spool: BufWriter<File>,
    /// Start and length of each file.
    files: HashMap<String, (u64, u64)>,
    bytes: u64,
}

impl Unpacker {
    /// Reads long names and attributes itself, since the library reads them without a limit.
    fn tar(&mut self, archive: impl Read) -> Result<(), ArchiveError> {
        let mut archive = tar::Archive::new(archive);
        let mut long_name = None;
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            let kind = entry.header().entry_type();
            match kind {
                EntryType::GNULongName => {
                    let mut name = head(&mut entry, PATH_BYTES_MAX)?;
                    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
                    long_name = Some(name);
                    continue;
                }
                EntryType::XHeader => {
                    long_name = pax_path(&head(&mut entry, ATTRIBUTES_BYTES_MAX)?)?.or(long_name);
                    continue;
                }
                // Where the link of the next entry leads, which is refused.
                EntryType::GNULongLink | EntryType::XGlobalHeader => continue,
                _ => {}
            }
            let name = match long_name.take() {
                Some(name) => name,
                None => entry.path_bytes().into_owned(),
            };
            let name = text(name)?;
            match kind {
                EntryType::Regular | EntryType::Continuous => self.add(&name, &mut entry)?,
                EntryType::Directory => {}
                EntryType::Link | EntryType::Symlink => return Err(ArchiveError::Link(name)),
                EntryType::GNUSparse => return Err(ArchiveError::Layout(name)),
                _ => return Err(ArchiveError::Kind(name)),
            }
        }
        Ok(())
    }

    fn zip(&mut self, archive: Section) -> Result<(), ArchiveError> {
        let mut archive = ZipReader::new(archive)?;
        while let Some(entry) = archive.next()? {
            let name = text(entry.name.clone())?;
            if entry.is_link {
                return Err(ArchiveError::Link(name));
            }
            if entry.is_encrypted {
                return Err(ArchiveError::Encrypted(name));
            }
            if name.ends_with('/') {
                continue;
            }
            self.add(&name, &mut archive.open(&entry)?)?;
        }
        Ok(())
    }

    fn add(&mut self, path: &str, content: &mut impl Read) -> Result<(), ArchiveError> {
        let name = inside(path).ok_or_else(|| ArchiveError::Outside(path.to_owned()))?;
        if self.files.contains_key(&name) {
            return Err(ArchiveError::Twice(name));
        }
        if self.files.len() == FILES_MAX {
            return Err(ArchiveError::TooManyFiles);
        }
        let bytes_left = UNPACKED_BYTES_MAX - self.bytes;
        let len = io::copy(&mut content.take(bytes_left + 1), &mut self.spool)?;
        if len > bytes_left {
            return Err(ArchiveError::TooLarge);
        }
        self.files.insert(name, (self.bytes, len));
        self.bytes += len;
        Ok(())
    }

    fn finish(self) -> Result<Archive, ArchiveError> {
        let spool = Arc::new(self.spool.into_inner().map_err(io::IntoInnerError::into_error)?);
        let section = |(name, (start, len))| (name, Section::new(spool.clone(), start, len));
        Ok(Archive { files: self.files.into_iter().map(section).collect() })
    }
}

/// Reads the whole content of an entry that describes the next one.
fn head(entry: &mut impl Read, bytes_max: u64) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    entry.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max { Err(ArchiveError::Head(bytes_max)) } else { Ok(bytes) }
}

/// The path in the attributes of a file. Refuses attributes that change how the file is read.
fn pax_path(attributes: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
    let mut path = None;
    for attribute in PaxExtensions::new(attributes) {
        let attribute = attribute?;
        match attribute.key_bytes() {
            b"path" => path = Some(attribute.value_bytes().to_vec()),
            key if key == b"size" || key.starts_with(b"GNU.sparse.") => {
                let name = path.map_or_else(|| Ok("a file".to_owned()), text)?;
                return Err(ArchiveError::Layout(name));
            }
            _ => {}
        }
    }
    Ok(path)
}

fn text(name: Vec<u8>) -> Result<String, ArchiveError> {
    if name.len() as u64 > PATH_BYTES_MAX {
        return Err(ArchiveError::Head(PATH_BYTES_MAX));
    }
    String::from_utf8(name).map_err(|_| ArchiveError::Encoding)
}

#[cfg(test)]
mod tests;
