//! Files in memory.
#![allow(unsafe_code, reason = "files are mapped")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// A file in memory, to read. The file must not be changed meanwhile: files named by their hash never are.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    identity: FileIdentity,
}

/// Which file it is, and as of when: another as soon as somebody has put something else there, or written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

// SAFETY: a mapping is memory that only its owner unmaps, and that nobody writes to.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the whole of a file, and read it in now rather than at the first use.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Self::with(path, MapFlags::POPULATE)
    }

    /// Map the whole of a file, and have it read in from now on: whoever gets to a part first that is not there yet waits for it.
    pub(crate) fn ahead(path: &Path) -> io::Result<Self> {
        let mapping = Self::with(path, MapFlags::empty())?;
        if mapping.len > 0 {
            // SAFETY: `with` mapped exactly this range; the advice changes nothing of what is there. Without it, pages are read as they are met.
            let _ = unsafe { madvise(mapping.start.as_ptr().cast(), mapping.len, Advice::WillNeed) };
        }
        Ok(mapping)
    }

    /// Map the whole of a file, of which nothing is read before it is met.
    pub(crate) fn unread(path: &Path) -> io::Result<Self> {
        Self::with(path, MapFlags::empty())
    }

    fn with(path: &Path, flags: MapFlags) -> io::Result<Self> {
        let file = File::open(path)?;
        let identity = FileIdentity::of(&file)?;
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

    /// Which file it is.
    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// What is in the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is this long and lives as long as we do; an empty one is never read.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl FileIdentity {
    fn of(file: &File) -> io::Result<Self> {
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

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `of` mapped exactly this range, and nobody can have a slice of it any more. An error would leave it mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}
