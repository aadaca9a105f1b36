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

    /// Maps the whole file, and starts reading it in the background; an access to a part that is
    /// not read yet waits for it.
    pub fn ahead(path: &Path) -> io::Result<Self> {
        let mapping = Self::with(path, MapFlags::empty())?;
        if mapping.len > 0 {
            // SAFETY: `with` mapped exactly this range; the advice does not change its contents. If
            // the advice fails, pages are read on access.
            let _ = unsafe { madvise(mapping.start.as_ptr().cast(), mapping.len, Advice::WillNeed) };
        }
        Ok(mapping)
    }

    /// Maps the whole file; each part is read on its first access.
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

    /// Identity of the file when it was mapped.
    #[must_use]
    pub fn identity(&self) -> FileIdentity {
        self.identity
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
