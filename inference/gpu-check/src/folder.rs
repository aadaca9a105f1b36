//! Temporary folder.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Temporary folder, which is deleted with its contents on drop.
pub(crate) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Creates a folder with a unique name.
    pub(crate) fn new() -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let process = std::process::id();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-doctor-{process}-{number}"));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // On failure, the folder stays in the system's temporary folder, which the system clears.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
