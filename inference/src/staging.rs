//! The storage tiers of a model's files before a load reads them.

use crate::mapping::MappedFile;
use crate::prepare::Variant;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use weir_types::ContentHash;

/// Bytes of a model's files, by storage tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileBytes {
    /// In the node's memory: in the system's page cache, or in the pinned cache of a device.
    pub memory: u64,
    /// On the node's disk only.
    pub disk: u64,
    /// Not on the node. A file of unknown size counts as one byte.
    pub absent: u64,
}

impl FileBytes {
    /// Looks up the files that loads of these forms read from the folder `blobs`. Blocks, but reads
    /// no file.
    pub fn look<'a>(forms: impl IntoIterator<Item = &'a Variant>, blobs: &Path) -> Self {
        let mut files: BTreeMap<ContentHash, u64> = BTreeMap::new();
        for form in forms {
            files.extend(form.weight_files());
            files.entry(form.skeleton).or_default();
        }
        let mut found = Self::default();
        for (hash, bytes) in files {
            found.add(&blobs.join(hash.to_string()), bytes);
        }
        found
    }

    /// Adds a file, which is expected to have `bytes` bytes; 0 if that is unknown.
    fn add(&mut self, path: &Path, bytes: u64) {
        match MappedFile::unread(path).and_then(|file| Ok((file.bytes().len() as u64, file.cached_bytes()?)))
        {
            Ok((bytes, cached)) => {
                self.memory += cached.min(bytes);
                self.disk += bytes.saturating_sub(cached);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.absent += bytes.max(1),
            // The load reports the error.
            Err(_) => self.disk += bytes,
        }
    }

    /// Counts bytes that the load copied from the pinned cache, although their files may be on disk.
    pub(crate) fn add_pinned(&mut self, bytes: u64) {
        let moved = bytes.saturating_sub(self.memory).min(self.disk);
        self.memory += moved;
        self.disk -= moved;
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.memory.saturating_add(self.disk).saturating_add(self.absent)
    }

    /// Name of the place with most of the bytes, as in profiles.
    #[must_use]
    pub fn most(&self) -> &'static str {
        let Self { memory, disk, absent } = *self;
        if absent > memory.max(disk) {
            "object-store"
        } else if memory > disk {
            "memory"
        } else {
            "disk"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_weights_count_as_memory_once() {
        let mut found = FileBytes { memory: 10, disk: 90, absent: 0 };
        found.add_pinned(10);
        assert_eq!(found, FileBytes { memory: 10, disk: 90, absent: 0 }, "the same bytes");
        found.add_pinned(70);
        assert_eq!((found.memory, found.disk, found.most()), (70, 30, "memory"));
        found.add_pinned(1_000);
        assert_eq!((found.memory, found.disk, found.total()), (100, 0, 100));
    }

    #[test]
    fn missing_files_are_absent() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = FileBytes::default();
        found.add(&folder.path().join("a"), 7);
        found.add(&folder.path().join("b"), 0);
        assert_eq!((found, found.most()), (FileBytes { memory: 0, disk: 0, absent: 8 }, "object-store"));
    }
}
