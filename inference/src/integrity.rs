//! Integrity check: whether files have the content that their names (hashes) state.
//!
//! Wrong bytes in a model would become wrong answers, so no answer leaves the node before the files
//! that it was computed with are hashed. Hashing overlaps with other slow work (creating sessions,
//! copying to a device). A file is hashed once until it is modified, so reloading a model costs no
//! hashing.

use crate::mapping::{FileIdentity, MappedFile};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, available_parallelism};
use std::time::Instant;
use weir_types::ContentHash;

/// The most files that are remembered as verified; beyond this, the whole set is cleared.
const VERIFIED_MAX: usize = 65_536;

/// One core hashes at a fraction of a bus's speed, so several threads hash on machines with many
/// cores.
const THREADS_MAX: usize = 8;

/// Files that had the content that their names state, at a known state of each file. Cheap to
/// clone.
#[derive(Clone, Default)]
pub struct VerifiedFiles(Arc<Mutex<HashSet<(ContentHash, FileIdentity)>>>);

/// A running check of files on dedicated threads. If dropped early, the threads finish only the
/// files that they have begun.
pub struct IntegrityCheck {
    queue: Arc<CheckQueue>,
    threads: Mutex<Vec<JoinHandle<Option<ContentHash>>>>,
    found: OnceLock<(Result<(), IntegrityError>, Instant)>,
}

/// Work queue of a check's threads.
struct CheckQueue {
    files: Vec<(ContentHash, Arc<MappedFile>)>,
    next: AtomicUsize,
    /// Threads that are still running.
    running: AtomicUsize,
}

/// Why files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntegrityError {
    /// A file has other bytes than those that were pushed.
    #[error("its file {0} has something else in it than was pushed: push the model again")]
    Damaged(ContentHash),
    /// The files cannot be read or hashed.
    #[error("its files cannot be checked: {0}")]
    Unchecked(String),
}

impl VerifiedFiles {
    /// Starts checking the `files` that are not verified yet.
    pub fn check(
        &self,
        files: Vec<(ContentHash, Arc<MappedFile>)>,
    ) -> Result<IntegrityCheck, IntegrityError> {
        let known = self.0.lock();
        let mut unknown: Vec<_> =
            files.into_iter().filter(|(hash, file)| !known.contains(&(*hash, file.identity()))).collect();
        drop(known);
        // Largest first, so that no large file starts when the other threads are done.
        unknown.sort_by_key(|(_, file)| std::cmp::Reverse(file.bytes().len()));
        // The remaining cores run models and functions.
        let cores = available_parallelism().map_or(1, usize::from);
        let count = (cores / 2).clamp(1, THREADS_MAX).min(unknown.len());
        let next = AtomicUsize::new(0);
        let running = AtomicUsize::new(count);
        let queue = Arc::new(CheckQueue { files: unknown, next, running });
        let spawn = |_| {
            let verified = self.clone();
            let queue = queue.clone();
            let thread = Builder::new().name("weir-hash".to_owned());
            thread.spawn(move || {
                let found = verified.look(&queue);
                queue.running.fetch_sub(1, Ordering::Release);
                found
            })
        };
        let threads: io::Result<Vec<_>> = (0..count).map(spawn).collect();
        let threads = threads.map_err(|error| IntegrityError::Unchecked(error.to_string()))?;
        Ok(IntegrityCheck { queue, threads: Mutex::new(threads), found: OnceLock::new() })
    }

    /// Hashes files from the queue until none is left. Returns the first damaged file.
    fn look(&self, queue: &CheckQueue) -> Option<ContentHash> {
        while let Some((hash, file)) = queue.files.get(queue.next.fetch_add(1, Ordering::Relaxed)) {
            if ContentHash::from_content(file.bytes()) != *hash {
                return Some(*hash);
            }
            let mut verified = self.0.lock();
            if verified.len() >= VERIFIED_MAX {
                verified.clear();
            }
            verified.insert((*hash, file.identity()));
        }
        None
    }
}

impl IntegrityCheck {
    /// Waits for the result. Callers wait before they hand out any result computed with the files.
    pub fn wait(&self) -> Result<(), IntegrityError> {
        self.found().0.clone()
    }

    /// Whether the result is known.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.found.get().is_some() || self.queue.running.load(Ordering::Acquire) == 0
    }

    /// Waits for the result, and returns the time at which it was known.
    #[must_use]
    pub fn ended_at(&self) -> Instant {
        self.found().1
    }

    fn found(&self) -> &(Result<(), IntegrityError>, Instant) {
        self.found.get_or_init(|| {
            let threads = std::mem::take(&mut *self.threads.lock());
            // Joins all threads, so that none outlives the check.
            let found: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
            let result = found.into_iter().try_for_each(|found| match found {
                Ok(None) => Ok(()),
                Ok(Some(hash)) => Err(IntegrityError::Damaged(hash)),
                Err(_) => Err(IntegrityError::Unchecked("the check panicked".to_owned())),
            });
            (result, Instant::now())
        })
    }
}

impl Drop for IntegrityCheck {
    fn drop(&mut self) {
        self.queue.next.store(self.queue.files.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn file(folder: &Path, bytes: &[u8]) -> (ContentHash, Arc<MappedFile>) {
        let hash = ContentHash::from_content(bytes);
        let path = folder.join(hash.to_string());
        std::fs::write(&path, bytes).unwrap();
        (hash, Arc::new(MappedFile::open(&path).unwrap()))
    }

    #[test]
    fn files_are_hashed_once_until_modified() {
        let folder = tempfile::tempdir().unwrap();
        let verified = VerifiedFiles::default();
        let files: Vec<_> = (0..20_u8).map(|byte| file(folder.path(), &[byte; 1_000])).collect();
        assert_eq!(verified.check(files.clone()).unwrap().wait(), Ok(()));
        let again = verified.check(files.clone()).unwrap();
        assert!(again.threads.lock().is_empty(), "they are known");
        assert_eq!(again.wait(), Ok(()));

        let (hash, _) = files[7];
        let path = folder.path().join(hash.to_string());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [9; 1_000]).unwrap();
        let changed = (hash, Arc::new(MappedFile::open(&path).unwrap()));
        let check = verified.check([files[6].clone(), changed].into()).unwrap();
        assert_eq!(check.wait(), Err(IntegrityError::Damaged(hash)));
        assert_eq!(check.wait(), Err(IntegrityError::Damaged(hash)), "as often as it is asked");
    }

    #[test]
    fn empty_file_set_passes_check() {
        assert_eq!(VerifiedFiles::default().check(Vec::new()).unwrap().wait(), Ok(()));
    }
}
