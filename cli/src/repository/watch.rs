//! Synchronises a repository after every change.

use super::folder::fingerprint;
use super::sync::{RepositorySync, SyncReport};
use crate::error::one_line;
use anyhow::Result;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of the looks at the repository. Polling also works on network file systems, which do
/// not report the changes of other machines.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time after a failure until the next attempt without a change, such as for a node that restarts.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Thread that keeps a node equal to a repository. Ends when it is stopped or dropped, after the
/// upload in progress.
pub(crate) struct RepositoryWatch {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    is_set: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl RepositoryWatch {
    /// Synchronises now and after every change.
    pub(crate) fn start(sync: RepositorySync) -> Result<Self> {
        let stop = Arc::new(Stop::default());
        let thread = {
            let stop = stop.clone();
            std::thread::Builder::new().name("repository".into()).spawn(move || watch(&sync, &stop))?
        };
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Waits for the thread, which ends after a panic only, or when this is dropped.
    pub(crate) fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for RepositoryWatch {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // The thread has reported its failures already.
            let _ = thread.join();
        }
    }
}

impl Stop {
    fn set(&self) {
        let _lock = self.lock.lock();
        self.is_set.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits for `time`, or for the stop. Returns whether the thread should end.
    fn wait(&self, time: Duration) -> bool {
        let mut lock = self.lock.lock();
        if !self.is_set.load(Ordering::Relaxed) {
            self.changed.wait_for(&mut lock, time);
        }
        self.is_set.load(Ordering::Relaxed)
    }
}

fn watch(sync: &RepositorySync, stop: &Stop) {
    let mut pending = Pending::default();
    let mut shown = String::new();
    loop {
        if pending.is_due(fingerprint(&sync.folder), Instant::now()) {
            let result = sync.run(&stop.is_set);
            let has_failed = result.as_ref().map_or(true, |report| report.failed() > 0);
            pending.done(has_failed.then(|| Instant::now() + RETRY_AFTER));
            let text = result.as_ref().map_or_else(one_line, SyncReport::text);
            // A retry that fails like the attempt before is no news.
            if text != shown {
                sync.output.note(format_args!("{}: {}", sync.folder.display(), text.trim_end()));
                shown = text;
            }
        }
        if stop.wait(INTERVAL) {
            return;
        }
    }
}

/// Decides when the repository is synchronised: at first, when its files have changed and then not
/// for an interval, and some time after a failure.
#[derive(Debug, Default)]
struct Pending {
    /// Fingerprint at the last look.
    last: Option<u64>,
    /// Fingerprint at the last synchronisation.
    synced: Option<u64>,
    retry_at: Option<Instant>,
}

impl Pending {
    /// Whether to synchronise now, when the files have the fingerprint `found`.
    fn is_due(&mut self, found: u64, now: Instant) -> bool {
        // Files that are being copied are not read. The first look has nothing to compare with.
        let is_quiet = self.last.is_none_or(|last| last == found);
        self.last = Some(found);
        is_quiet && (self.synced != Some(found) || self.retry_at.is_some_and(|at| at <= now))
    }

    fn done(&mut self, retry_at: Option<Instant>) {
        self.synced = self.last;
        self.retry_at = retry_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_synchronised_when_they_have_ended() {
        let now = Instant::now();
        let mut pending = Pending::default();
        assert!(pending.is_due(1, now), "at first");
        pending.done(None);
        assert!(!pending.is_due(1, now));
        assert!(!pending.is_due(2, now), "a copy begins");
        assert!(!pending.is_due(3, now), "it goes on");
        assert!(pending.is_due(3, now), "it has ended");
        pending.done(None);
        assert!(!pending.is_due(3, now));
    }

    #[test]
    fn failures_are_repeated_after_a_while() {
        let now = Instant::now();
        let mut pending = Pending::default();
        assert!(pending.is_due(1, now));
        pending.done(Some(now + RETRY_AFTER));
        assert!(!pending.is_due(1, now + RETRY_AFTER / 2));
        assert!(pending.is_due(1, now + RETRY_AFTER));
        pending.done(None);
        assert!(!pending.is_due(1, now + 2 * RETRY_AFTER));
    }

    #[test]
    fn a_set_stop_ends_the_wait() {
        let stop = Stop::default();
        stop.set();
        assert!(stop.wait(Duration::from_secs(600)));
    }
}
