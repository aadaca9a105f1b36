//! Memory-mapped files.
#![allow(unsafe_code, reason = "files are mapped")]
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// A file mapped for reading. The file must not change while it is mapped; files named by their
/// hash never change.
pub struct MappedFile {
    start: NonNull<u8>,
    len: usize,
    identity: FileIdentity,
}

/// The most parts of a file that are looked at to estimate how much of it is in memory.
const SAMPLES_MAX: usize = 64;
/// Pages of each part. Files of up to 4 MiB are looked at completely.
const SAMPLE_PAGES: usize = 16;

/// Identity of a file and of its state: it differs once the file is replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

// SAFETY: only its owner unmaps a mapping, and no thread writes to it.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the whole file, and reads it in now rather than at the first access.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with(path, MapFlags::POPULATE)
    }

    /// Maps the whole file; each part is read on its first access, or after [`Self::read_ahead`].
    pub fn unread(path: &Path) -> io::Result<Self> {
        Self::with(path, MapFlags::empty())
    }

    fn with(path: &Path, flags: MapFlags) -> io::Result<Self> {
        let file = File::open(path)?;
        let identity = FileIdentity::from_file(&file)?;
        let len = usize::try_from(identity.bytes).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Self { start: NonNull::dangling(), len, identity });
        }
        let flags = MapFlags::PRIVATE | flags;
        // SAFETY: a new mapping at an address of the kernel's choosing aliases nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, flags, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, len, identity })
    }

    /// Starts reading the file in the background; an access to a part that is not read yet waits for
    /// it. Takes some microseconds per MiB even if the file is in the page cache.
    pub fn read_ahead(&self) {
        if self.len > 0 {
            // SAFETY: the mapping is exactly this range; the advice does not change its contents. If
            // the advice fails, pages are read on access.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::WillNeed) };
        }
    }

    /// Identity of the file when it was mapped.
    #[must_use]
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Bytes of the file that are in memory, in the system's page cache. An estimate for large files,
    /// of which only samples are looked at. Reads nothing.
    pub fn cached_bytes(&self) -> io::Result<u64> {
        let page_bytes = rustix::param::page_size();
        let pages = self.len.div_ceil(page_bytes);
        let stride = pages.div_ceil(SAMPLES_MAX).max(SAMPLE_PAGES);
        let mut states = [0_u8; SAMPLE_PAGES];
        let mut seen = 0_u64;
        let mut cached = 0_u64;
        for first in (0..pages).step_by(stride) {
            let count = SAMPLE_PAGES.min(pages - first);
            // SAFETY: the page is one of the mapping.
            let from = unsafe { self.start.as_ptr().add(first * page_bytes) };
            // SAFETY: the mapping has these pages, and `states` has a byte for each.
            let found = unsafe { libc::mincore(from.cast(), count * page_bytes, states.as_mut_ptr()) };
            if found != 0 {
                return Err(io::Error::last_os_error());
            }
            seen += count as u64;
            cached += states[..count].iter().filter(|state| **state & 1 == 1).count() as u64;
        }
        let bytes = u128::from(self.identity.bytes) * u128::from(cached) / u128::from(seen.max(1));
        Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Contents of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as `self`; an empty one is never
        // read.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl FileIdentity {
    fn from_file(file: &File) -> io::Result<Self> {
        let of = file.metadata()?;
        Ok(Self {
            device: of.dev(),
            inode: of.ino(),
            bytes: of.len(),
            modified: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `with` mapped exactly this range, and no slice of it can exist any more. On
            // an error the range stays mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice as FileAdvice, fadvise, fsync};
    use std::io::Read;

    #[test]
    fn cached_bytes_follow_the_page_cache() {
        // Not in the folder for temporary files, which may be in memory.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        for bytes in [0, 1, 100_000, 40 << 20] {
            std::fs::write(&path, vec![7; bytes]).unwrap();
            let mapped = MappedFile::unread(&path).unwrap();
            assert_eq!(mapped.cached_bytes().unwrap(), bytes as u64, "it was just written");
            let mut file = File::open(&path).unwrap();
            fsync(&file).unwrap();
            fadvise(&file, 0, None, FileAdvice::DontNeed).unwrap();
            assert_eq!(mapped.cached_bytes().unwrap(), 0, "{bytes} bytes");
            fadvise(&file, 0, None, FileAdvice::Random).unwrap();
            let mut half = vec![0; bytes / 2];
            file.read_exact(&mut half).unwrap();
            let cached = mapped.cached_bytes().unwrap();
            assert!(cached.abs_diff(bytes as u64 / 2) <= bytes as u64 / 10, "{cached} of {bytes}");
        }
    }
}
