//! Folder of a worker: links to the files of the worker's models, and nothing else, so that a
//! confined worker can read these files only.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use tempfile::TempDir;
use weir_inference::Prepared;
use weir_types::{ContentHash, Platform};

/// The folder. Removed on drop.
pub(super) struct WorkerFolder {
    folder: TempDir,
    /// Number of loaded models that need a file.
    users: Mutex<HashMap<ContentHash, usize>>,
}

impl WorkerFolder {
    /// Creates an empty folder in `parent`, which must be on the file system of the models' files.
    pub(super) fn create(parent: &Path, prefix: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        Ok(Self { folder, users: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Links the files of a model, which are in `blobs`.
    pub(super) fn add(&self, prepared: &Prepared, blobs: &Path) -> io::Result<()> {
        let mut users = self.users.lock();
        for hash in prepared.blobs_for(Platform::Cpu) {
            let count = users.entry(hash).or_default();
            if *count == 0 {
                let name = hash.to_string();
                match std::fs::hard_link(blobs.join(&name), self.path().join(&name)) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    linked => linked?,
                }
            }
            *count += 1;
        }
        Ok(())
    }

    /// Removes the links of a model that no other loaded model needs.
    pub(super) fn remove(&self, prepared: &Prepared) {
        let mut users = self.users.lock();
        for hash in prepared.blobs_for(Platform::Cpu) {
            let Some(count) = users.get_mut(&hash) else { continue };
            *count -= 1;
            if *count == 0 {
                users.remove(&hash);
                // A link that stays is removed with the folder.
                let _ = std::fs::remove_file(self.path().join(hash.to_string()));
            }
        }
    }
}
