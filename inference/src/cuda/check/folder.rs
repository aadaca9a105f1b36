//! A folder for as long as it is needed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// It goes, with all that is in it, when this is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// One like no other.
    pub(super) fn new() -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("weir-doctor-{process}-{number}"));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left in a folder that the system clears.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
