//! Protects files from sweeps while no record refers to them yet.
//!
//! A sweep removes files that are neither referenced by a record nor held. A hold ends only after
//! the record is written, and a sweep spares every file that was held at any time since before the
//! sweep read the records. So no file falls between the two. Holders and sweeps do not wait for
//! each other, with one exception: a holder waits for the removal of the very file that it needs.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use weir_types::ContentHash;

/// The digests in use in one folder, or in several folders with the same digests. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct InUse(Arc<InUseShared>);

#[derive(Debug, Default)]
struct InUseShared {
    state: Mutex<InUseState>,
    /// Notified whenever a removal or the last sweep has ended.
    removed: Condvar,
}

#[derive(Debug, Default)]
struct InUseState {
    /// The number of holders of each digest. During a sweep, digests without holders stay in the
    /// map.
    holders: HashMap<ContentHash, usize>,
    removing: HashSet<ContentHash>,
    sweeps: usize,
    pauses: usize,
}

/// Protects digests from sweeps until dropped.
#[derive(Debug)]
#[must_use = "a sweep may remove what nobody holds"]
pub struct Hold {
    digests: Vec<ContentHash>,
    shared: Arc<InUseShared>,
}

/// A sweep in progress.
pub struct Sweep {
    shared: Arc<InUseShared>,
    wanted: HashSet<ContentHash>,
    is_paused: bool,
}

/// Pauses sweeps until dropped.
#[derive(Debug)]
#[must_use = "sweeps go on when this is dropped"]
pub struct SweepPause(Arc<InUseShared>);

impl InUse {
    /// Protects `digests` from sweeps. Blocks while one of them is being removed.
    pub fn hold(&self, digests: impl IntoIterator<Item = ContentHash>) -> Hold {
        let digests: Vec<_> = digests.into_iter().collect();
        let mut state = self.0.state.lock();
        while digests.iter().any(|digest| state.removing.contains(digest)) {
            self.0.removed.wait(&mut state);
        }
        for digest in &digests {
            *state.holders.entry(*digest).or_default() += 1;
        }
        drop(state);
        Hold { digests, shared: self.0.clone() }
    }

    /// Starts a sweep of everything that is not in `wanted`. Calls `wanted` once holds are tracked,
    /// so that the sweep misses no hold.
    ///
    /// While sweeps are paused, the sweep removes nothing.
    pub fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> Sweep {
        let is_paused = {
            let mut state = self.0.state.lock();
            let is_paused = state.pauses > 0;
            state.sweeps += usize::from(!is_paused);
            is_paused
        };
        let mut sweep = Sweep { shared: self.0.clone(), wanted: HashSet::new(), is_paused };
        if !is_paused {
            sweep.wanted = wanted();
        }
        sweep
    }

    /// Pauses sweeps. Blocks while a sweep is in progress.
    pub fn pause(&self) -> SweepPause {
        let mut state = self.0.state.lock();
        // From here on, sweeps remove nothing and do not count.
        state.pauses += 1;
        while state.sweeps > 0 {
            self.0.removed.wait(&mut state);
        }
        SweepPause(self.0.clone())
    }
}

impl Sweep {
    /// Whether sweeps were paused when this one began, so that it removes nothing.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Calls `remove` unless `digest` is wanted or held. Blocks while `remove` runs.
    pub fn remove(&self, digest: ContentHash, remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.is_paused || self.wanted.contains(&digest) {
            return Ok(());
        }
        {
            let mut state = self.shared.state.lock();
            if state.holders.contains_key(&digest) || !state.removing.insert(digest) {
                return Ok(());
            }
        }
        let _removing = Removing { shared: &self.shared, digest };
        match remove() {
            // Another sweep has listed the file, too, and was first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if self.is_paused {
            return;
        }
        let mut state = self.shared.state.lock();
        state.sweeps -= 1;
        if state.sweeps == 0 {
            state.holders.retain(|_, holders| *holders > 0);
            self.shared.removed.notify_all();
        }
    }
}

impl Drop for SweepPause {
    fn drop(&mut self) {
        self.0.state.lock().pauses -= 1;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let is_swept = state.sweeps > 0;
        for digest in &self.digests {
            let Some(holders) = state.holders.get_mut(digest) else { continue };
            *holders -= 1;
            if *holders == 0 && !is_swept {
                state.holders.remove(digest);
            }
        }
    }
}

/// Ends the removal of a digest when dropped.
struct Removing<'a> {
    shared: &'a InUseShared,
    digest: ContentHash,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().removing.remove(&self.digest);
        self.shared.removed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removes(sweep: &Sweep, digest: ContentHash) -> bool {
        let mut removed = false;
        let remove = || {
            removed = true;
            Ok(())
        };
        sweep.remove(digest, remove).unwrap();
        removed
    }

    /// Regression test: the deletion of a model failed, because the sweep that followed its event
    /// removed its files first.
    #[test]
    fn file_that_another_sweep_has_removed_is_no_error() {
        let in_use = InUse::default();
        let gone = |kind: io::ErrorKind| {
            let sweep = in_use.sweep(HashSet::new);
            sweep.remove(ContentHash::from_content(b"a"), || Err(kind.into())).is_ok()
        };
        assert!(gone(io::ErrorKind::NotFound) && !gone(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn sweep_spares_wanted_and_held_files() {
        let in_use = InUse::default();
        let [wanted, held, neither] = [b"a", b"b", b"c"].map(|bytes| ContentHash::from_content(bytes));
        let twice = [in_use.hold([held]), in_use.hold([held, wanted])];
        let sweep = in_use.sweep(|| [wanted].into());
        assert_eq!([wanted, held, neither].map(|digest| removes(&sweep, digest)), [false, false, true]);
        drop(sweep);
        let [first, second] = twice;
        drop(first);
        assert!(!removes(&in_use.sweep(HashSet::new), held), "it is held once more");
        drop(second);
        assert!(removes(&in_use.sweep(HashSet::new), held));
        assert_eq!(in_use.0.state.lock().holders.len(), 0);
    }

    /// After the sweep has read the records, a record is written and the hold on its file ends.
    #[test]
    fn sweep_spares_file_whose_record_is_written_meanwhile() {
        let in_use = InUse::default();
        let digest = ContentHash::from_content(b"new");
        let hold = in_use.hold([digest]);
        let sweep = in_use.sweep(HashSet::new);
        drop(hold);
        assert!(!removes(&sweep, digest));
        drop(in_use.hold([digest]));
        assert!(!removes(&sweep, digest));
        drop(sweep);
        assert!(removes(&in_use.sweep(HashSet::new), digest));
    }

    #[test]
    fn hold_waits_for_the_removal_of_its_file() {
        let in_use = InUse::default();
        let digest = ContentHash::from_content(b"old");
        let (began, begun) = std::sync::mpsc::channel();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let gone = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sweep = in_use.sweep(HashSet::new);
            let gone = &gone;
            scope.spawn(move || {
                sweep.remove(digest, || {
                    began.send(()).unwrap();
                    finished.recv().unwrap();
                    gone.store(true, std::sync::atomic::Ordering::SeqCst);
                    Ok(())
                })
            });
            begun.recv().unwrap();
            drop(in_use.hold([ContentHash::from_content(b"another")]));
            finish.send(()).unwrap();
            let _hold = in_use.hold([digest]);
            assert!(gone.load(std::sync::atomic::Ordering::SeqCst));
        });
    }
}
