//! Health of a node's durable storage: free space, and writes that fail.
//!
//! Requests that store anything are refused while the file system of the data folder has less free
//! space than a minimum. The space below the minimum is for the work that the node has accepted
//! before: records of the registry, and the results of asynchronous invocations.

use parking_lot::Mutex;
use rustix::fs::statvfs;
use std::error::Error;
use std::io;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_datastore::Datastore;

use crate::blobs::STAGED_PREFIX;
use crate::identity::read_marker;

/// Bytes that a probe writes: several blocks of a file system.
const PROBE_BYTES: usize = 64 << 10;

/// Health of the file system of the data folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StorageHealth(Arc<HealthShared>);

#[derive(Debug)]
struct HealthShared {
    folder: PathBuf,
    datastore: Arc<dyn Datastore>,
    free_bytes_min: u64,
    /// Free space at the last probe.
    free_bytes: AtomicU64,
    failed_writes: AtomicU64,
    /// The failure of the last write, until a probe has written successfully.
    write_failure: Mutex<Option<String>>,
    /// The result of the last probe.
    problem: Mutex<Option<String>>,
    /// Folders that must stay in place.
    guarded: Mutex<Vec<FolderGuard>>,
}

/// A folder with a marker of its identity.
#[derive(Debug)]
struct FolderGuard {
    folder: PathBuf,
    /// The identity in the marker, if the folder has one.
    identity: Option<String>,
    /// Device and inode of the folder; `None`: another file system may be mounted there again.
    inode: Option<(u64, u64)>,
}

/// The reason why the node stores nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskFull {
    /// Free space would fall below the minimum.
    #[error(
        "the disk of the node's data folder has {free_bytes} bytes free, and {free_bytes_min} must stay free (gateway.disk_free_bytes_min): free some space on it"
    )]
    BelowMinimum {
        /// Free bytes of the file system.
        free_bytes: u64,
        /// Bytes that must stay free.
        free_bytes_min: u64,
    },
    /// A write found no space, or the quota of the node's user was reached.
    #[error("a disk that the node stores data on is full: free some space on it")]
    NoSpace,
}

/// Whether `error` says that a disk is full or that a quota was reached.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl StorageHealth {
    /// Watches `datastore` and the file system of `folder`. Blocks.
    pub fn open(folder: PathBuf, free_bytes_min: u64, datastore: Arc<dyn Datastore>) -> Self {
        let health = Self(Arc::new(HealthShared {
            folder,
            datastore,
            free_bytes_min,
            free_bytes: AtomicU64::new(0),
            failed_writes: AtomicU64::new(0),
            write_failure: Mutex::default(),
            problem: Mutex::default(),
            guarded: Mutex::default(),
        }));
        health.probe();
        health
    }

    /// Watches whether `folder` keeps its identity, and if `is_local`, whether the folder is the
    /// same as now. Blocks.
    pub fn guard(&self, folder: PathBuf, is_local: bool) -> io::Result<()> {
        let inode = if is_local { Some(inode(&folder)?) } else { None };
        let identity = read_marker(&folder)?;
        self.0.guarded.lock().push(FolderGuard { folder, identity, inode });
        Ok(())
    }

    /// Checks whether `bytes` more can be stored without falling below the minimum of free space.
    /// Blocks for a system call.
    pub fn check_room(&self, bytes: u64) -> Result<(), DiskFull> {
        // If the size is unknown, the write itself reports the fault.
        let Ok(free_bytes) = self.read_free_bytes() else { return Ok(()) };
        let free_bytes_min = self.0.free_bytes_min;
        if free_bytes < free_bytes_min.saturating_add(bytes) {
            return Err(DiskFull::BelowMinimum { free_bytes, free_bytes_min });
        }
        Ok(())
    }

    /// Notes a write that failed. The node is not ready until a probe has written successfully.
    pub fn note_failure(&self, error: &io::Error) {
        self.0.failed_writes.fetch_add(1, Ordering::Relaxed);
        let text = format!("a write to the data folder failed: {error}");
        let before = self.0.write_failure.lock().replace(text.clone());
        if before.is_none() {
            tracing::error!(folder = %self.0.folder.display(), %error, "a write to the data folder failed");
        }
        self.0.problem.lock().get_or_insert(text);
    }

    /// Looks at the free space, and after a failed write whether writes succeed again. Blocks.
    pub fn probe(&self) {
        let found = self.find_problem();
        let mut problem = self.0.problem.lock();
        match (&*problem, &found) {
            (None, Some(now)) => {
                tracing::error!(problem = now, "the node cannot store data: it is not ready");
            }
            (Some(_), None) => tracing::info!("the node can store data again"),
            _ => {}
        }
        *problem = found;
    }

    /// The reason why the node cannot store data, as of the last probe. Does not block.
    pub fn problem(&self) -> Option<String> {
        let failure = self.0.datastore.health().failure;
        failure.as_ref().map(describe).or_else(|| self.0.problem.lock().clone())
    }

    /// Free bytes of the file system, as of the last probe.
    pub fn free_bytes(&self) -> u64 {
        self.0.free_bytes.load(Ordering::Relaxed)
    }

    /// Writes of files and of the datastore that have failed since the start.
    pub fn failed_writes(&self) -> u64 {
        self.0.failed_writes.load(Ordering::Relaxed) + self.0.datastore.health().failed_writes
    }

    fn find_problem(&self) -> Option<String> {
        if let Some(moved) = self.0.guarded.lock().iter().find(|guarded| !guarded.is_in_place()) {
            let folder = moved.folder.display();
            return Some(format!(
                "the folder {folder} was removed or replaced while the node was running: bring it back, or restart the node"
            ));
        }
        if let Err(full) = self.check_room(0) {
            return Some(full.to_string());
        }
        if self.0.write_failure.lock().is_some() {
            if let Err(error) = self.try_write() {
                return Some(format!("a write to the data folder failed: {error}"));
            }
            *self.0.write_failure.lock() = None;
        }
        None
    }

    fn try_write(&self) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(&self.0.folder)?;
        file.write_all(&[0; PROBE_BYTES])?;
        file.as_file().sync_all()
    }

    fn read_free_bytes(&self) -> io::Result<u64> {
        let about = statvfs(&self.0.folder)?;
        let free_bytes = about.f_bavail.saturating_mul(about.f_frsize);
        self.0.free_bytes.store(free_bytes, Ordering::Relaxed);
        Ok(free_bytes)
    }
}

impl FolderGuard {
    fn is_in_place(&self) -> bool {
        let is_same = self.inode.is_none_or(|before| inode(&self.folder).is_ok_and(|now| now == before));
        is_same && read_marker(&self.folder).is_ok_and(|marker| marker == self.identity)
    }
}

fn inode(folder: &Path) -> io::Result<(u64, u64)> {
    let about = std::fs::metadata(folder)?;
    Ok((about.dev(), about.ino()))
}

/// The error with its causes.
fn describe(error: &weir_datastore::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_datastore::MemoryStore;

    #[tokio::test]
    async fn room_is_refused_below_the_minimum_of_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        let open = |min| StorageHealth::open(folder.path().to_owned(), min, store.clone());
        let health = open(1);
        assert_eq!((health.check_room(1), health.problem()), (Ok(()), None));
        assert!(health.free_bytes() > 1);
        assert!(health.check_room(u64::MAX / 2).is_err(), "nothing has that much room");
        let health = open(u64::MAX / 2);
        health.check_room(0).unwrap_err();
        let problem = health.problem().unwrap();
        assert!(problem.contains("gateway.disk_free_bytes_min"), "{problem}");
    }

    #[tokio::test]
    async fn failed_write_is_a_problem_until_a_write_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let health = StorageHealth::open(folder.path().join("data"), 0, Arc::new(MemoryStore::new()));
        health.note_failure(&io::ErrorKind::StorageFull.into());
        health.probe();
        let problem = health.problem().expect("the folder is missing, so that the probe cannot write");
        assert!(problem.contains("a write to the data folder failed"), "{problem}");
        std::fs::create_dir(folder.path().join("data")).unwrap();
        health.probe();
        assert_eq!((health.problem(), health.failed_writes()), (None, 1));
        assert_eq!(
            std::fs::read_dir(folder.path().join("data")).unwrap().count(),
            0,
            "the probe leaves a file"
        );
    }

    #[tokio::test]
    async fn removed_or_replaced_folder_is_a_problem_until_it_is_back() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let away = parent.path().join("away");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("identity"), "id\n").unwrap();
        let health = StorageHealth::open(data.clone(), 0, Arc::new(MemoryStore::new()));
        health.guard(data.clone(), true).unwrap();
        let found = || {
            health.probe();
            health.problem()
        };
        assert_eq!(found(), None);
        std::fs::rename(&data, &away).unwrap();
        let problem = found().unwrap();
        assert!(
            problem.contains(data.to_str().unwrap()) && problem.contains("restart the node"),
            "{problem}"
        );
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("identity"), "id\n").unwrap();
        assert!(found().is_some(), "a copy is another folder");
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&away, &data).unwrap();
        assert_eq!(found(), None);
        std::fs::write(data.join("identity"), "other\n").unwrap();
        assert!(found().is_some(), "it has another identity");
    }
}
