//! Whether files have in them what they are named by.
//!
//! Wrong bytes in a model would be answers, so no answer leaves that was made with files that were not hashed. Hashing goes on beside what takes time
//! anyway, making sessions or copying to a device, and is done once for a file that nobody has touched since: a model that comes back costs nothing.

use crate::mapping::{FileIdentity, Mapping};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle, available_parallelism};
use std::time::Instant;
use weir_types::ContentHash;

/// Files that are remembered; all are forgotten when there are more.
const VERIFIED_MAX: usize = 65_536;

/// One core hashes at a fraction of a bus's speed, so several do where there are many.
const THREADS_MAX: usize = 8;

/// The files that were found to be what they are named by, as they were then. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Verified(Arc<Mutex<HashSet<(ContentHash, FileIdentity)>>>);

/// Whether some files are what they are named by, which is being found out on threads of its own. Dropped before that, it lets them end with the files that
/// they have begun.
pub(crate) struct Check {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<Option<ContentHash>>>>,
    found: OnceLock<(Result<(), Unsound>, Instant)>,
}

/// What the threads of a check have left to do.
struct Queue {
    files: Vec<(ContentHash, Arc<Mapping>)>,
    next: AtomicUsize,
    /// Threads that have not come to their end.
    running: AtomicUsize,
}

/// Why files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsound {
    #[error("its file {0} has something else in it than was pushed: push the model again")]
    Damaged(ContentHash),
    #[error("its files cannot be checked: {0}")]
    Unchecked(String),
}

impl Verified {
    /// Begin to find out of those `files` that are not known yet.
    pub(crate) fn check(&self, files: Vec<(ContentHash, Arc<Mapping>)>) -> Result<Check, Unsound> {
        let known = self.lock();
        let mut unknown: Vec<_> =
            files.into_iter().filter(|(hash, file)| !known.contains(&(*hash, file.identity()))).collect();
        drop(known);
        // The largest first, so that none begins when the others are done.
        unknown.sort_by_key(|(_, file)| std::cmp::Reverse(file.bytes().len()));
        // The others run models and functions.
        let cores = available_parallelism().map_or(1, usize::from);
        let count = (cores / 2).clamp(1, THREADS_MAX).min(unknown.len());
        let (next, running) = (AtomicUsize::new(0), AtomicUsize::new(count));
        let queue = Arc::new(Queue { files: unknown, next, running });
        let spawn = |_| {
            let (verified, queue) = (self.clone(), Arc::clone(&queue));
            let thread = Builder::new().name("weir-hash".to_owned());
            thread.spawn(move || {
                let found = verified.look(&queue);
                queue.running.fetch_sub(1, Ordering::Release);
                found
            })
        };
        let threads: io::Result<Vec<_>> = (0..count).map(spawn).collect();
        let threads = threads.map_err(|error| Unsound::Unchecked(error.to_string()))?;
        Ok(Check { queue, threads: Mutex::new(threads), found: OnceLock::new() })
    }

    /// Hash what is next until nothing is left. Gives the first that is not what it should be.
    fn look(&self, queue: &Queue) -> Option<ContentHash> {
        while let Some((hash, file)) = queue.files.get(queue.next.fetch_add(1, Ordering::Relaxed)) {
            if ContentHash::of(file.bytes()) != *hash {
                return Some(*hash);
            }
            let mut verified = self.lock();
            if verified.len() >= VERIFIED_MAX {
                verified.clear();
            }
            verified.insert((*hash, file.identity()));
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(ContentHash, FileIdentity)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Wait until it is known. Asked before anything that was made of the files is given to anybody.
    pub(crate) fn wait(&self) -> Result<(), Unsound> {
        self.found().0.clone()
    }

    /// Whether it is known.
    pub(crate) fn has_ended(&self) -> bool {
        self.found.get().is_some() || self.queue.running.load(Ordering::Acquire) == 0
    }

    /// Wait until it is known, and say since when.
    pub(crate) fn ended_at(&self) -> Instant {
        self.found().1
    }

    fn found(&self) -> &(Result<(), Unsound>, Instant) {
        self.found.get_or_init(|| {
            let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
            // All are waited for: none outlives the check.
            let found: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
            let result = found.into_iter().try_for_each(|found| match found {
                Ok(None) => Ok(()),
                Ok(Some(hash)) => Err(Unsound::Damaged(hash)),
                Err(_) => Err(Unsound::Unchecked("the check panicked".to_owned())),
            });
            (result, Instant::now())
        })
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.queue.next.store(self.queue.files.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn file(folder: &Path, bytes: &[u8]) -> (ContentHash, Arc<Mapping>) {
        let hash = ContentHash::of(bytes);
        let path = folder.join(hash.to_string());
        std::fs::write(&path, bytes).unwrap();
        (hash, Arc::new(Mapping::of(&path).unwrap()))
    }

    #[test]
    fn files_are_read_once_and_again_when_they_were_changed() {
        let folder = tempfile::tempdir().unwrap();
        let verified = Verified::default();
        let files: Vec<_> = (0..20_u8).map(|byte| file(folder.path(), &[byte; 1_000])).collect();
        assert_eq!(verified.check(files.clone()).unwrap().wait(), Ok(()));
        let again = verified.check(files.clone()).unwrap();
        assert!(again.threads.lock().unwrap().is_empty(), "they are known");
        assert_eq!(again.wait(), Ok(()));

        let (hash, _) = files[7];
        let path = folder.path().join(hash.to_string());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [9; 1_000]).unwrap();
        let changed = (hash, Arc::new(Mapping::of(&path).unwrap()));
        let check = verified.check([files[6].clone(), changed].into()).unwrap();
        assert_eq!(check.wait(), Err(Unsound::Damaged(hash)));
        assert_eq!(check.wait(), Err(Unsound::Damaged(hash)), "as often as it is asked");
    }

    #[test]
    fn nothing_is_sound() {
        assert_eq!(Verified::default().check(Vec::new()).unwrap().wait(), Ok(()));
    }
}
