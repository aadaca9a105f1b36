//! Which files a sweep has to leave alone although no record refers to them: those that somebody is about to refer to.
//!
//! A sweep removes what is neither wanted by a record nor held. Holding ends only once the record is there, and a sweep spares what was
//! held at any time since before it looked at the records, so that no file falls between the two. Nobody waits for a sweep, or it for
//! them, except for the removal of the very file they want.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weir_types::ContentHash;

/// The digests in use in a folder, or in several that go by the same digests. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct InUse(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Told whenever a removal has ended.
    removed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many hold each digest. While a sweep goes on, those that nobody holds any more stay.
    holders: HashMap<ContentHash, usize>,
    removing: HashSet<ContentHash>,
    sweeps: usize,
}

/// Keeps sweeps from some digests until it drops.
#[derive(Debug)]
#[must_use = "a sweep may remove what nobody holds"]
pub(crate) struct Hold {
    digests: Vec<ContentHash>,
    shared: Arc<Shared>,
}

/// A sweep under way.
pub(crate) struct Sweep {
    shared: Arc<Shared>,
    wanted: HashSet<ContentHash>,
}

impl InUse {
    /// Keep sweeps from `digests`. Blocks while one of them is being removed.
    pub(crate) fn hold(&self, digests: impl IntoIterator<Item = ContentHash>) -> Hold {
        let digests: Vec<_> = digests.into_iter().collect();
        let mut state = self.0.lock();
        while digests.iter().any(|digest| state.removing.contains(digest)) {
            state = self.0.removed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for digest in &digests {
            *state.holders.entry(*digest).or_default() += 1;
        }
        drop(state);
        Hold { digests, shared: self.0.clone() }
    }

    /// Begin a sweep of everything but what is `wanted`, which is asked once no hold can be missed.
    pub(crate) fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> Sweep {
        self.0.lock().sweeps += 1;
        let mut sweep = Sweep { shared: self.0.clone(), wanted: HashSet::new() };
        sweep.wanted = wanted();
        sweep
    }
}

impl Sweep {
    /// Call `remove` unless `digest` is wanted or held. Blocks for as long as `remove` does.
    pub(crate) fn remove(
        &self,
        digest: ContentHash,
        remove: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if self.wanted.contains(&digest) {
            return Ok(());
        }
        {
            let mut state = self.shared.lock();
            if state.holders.contains_key(&digest) || !state.removing.insert(digest) {
                return Ok(());
            }
        }
        let _removing = Removing { shared: &self.shared, digest };
        remove()
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.sweeps -= 1;
        if state.sweeps == 0 {
            state.holders.retain(|_, holders| *holders > 0);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
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

/// Ends the removal of a digest on drop.
struct Removing<'a> {
    shared: &'a Shared,
    digest: ContentHash,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.shared.lock().removing.remove(&self.digest);
        self.shared.removed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn what_is_wanted_or_held_stays() {
        let in_use = InUse::default();
        let [wanted, held, neither] = [b"a", b"b", b"c"].map(|bytes| ContentHash::of(bytes));
        let twice = [in_use.hold([held]), in_use.hold([held, wanted])];
        let sweep = in_use.sweep(|| [wanted].into());
        assert_eq!([wanted, held, neither].map(|digest| removes(&sweep, digest)), [false, false, true]);
        drop(sweep);
        let [first, second] = twice;
        drop(first);
        assert!(!removes(&in_use.sweep(HashSet::new), held), "it is held once more");
        drop(second);
        assert!(removes(&in_use.sweep(HashSet::new), held));
        assert_eq!(in_use.0.lock().holders.len(), 0);
    }

    /// The sweep has looked at the records; then a record is written and its file let go of.
    #[test]
    fn a_file_that_gets_its_record_during_a_sweep_stays() {
        let in_use = InUse::default();
        let digest = ContentHash::of(b"new");
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
    fn who_wants_a_file_that_is_being_removed_waits_until_it_is_gone() {
        let in_use = InUse::default();
        let digest = ContentHash::of(b"old");
        let (began, begun) = std::sync::mpsc::channel();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let gone = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (sweep, gone) = (in_use.sweep(HashSet::new), &gone);
            scope.spawn(move || {
                sweep.remove(digest, || {
                    began.send(()).unwrap();
                    finished.recv().unwrap();
                    gone.store(true, std::sync::atomic::Ordering::SeqCst);
                    Ok(())
                })
            });
            begun.recv().unwrap();
            drop(in_use.hold([ContentHash::of(b"another")]));
            finish.send(()).unwrap();
            let _hold = in_use.hold([digest]);
            assert!(gone.load(std::sync::atomic::Ordering::SeqCst));
        });
    }
}
