//! Synchronises a repository after every change.

use super::sync::{RepositorySync, SyncReport};
use crate::error::{Problem, one_line, report};
use crate::output::OutputSettings;
use anyhow::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Interval of the comparisons with the node while no file changes: the node may have been
/// unreachable, or may have lost its models.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);

/// Thread that keeps a node equal to a repository. Ends when it is dropped.
pub(crate) struct RepositoryWatch {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

struct Stop {
    /// Ends reads and uploads, too.
    is_set: Arc<AtomicBool>,
    lock: Mutex<()>,
    changed: Condvar,
}

impl RepositoryWatch {
    /// Synchronises now and after every change.
    pub(crate) fn start(sync: RepositorySync) -> Result<Self> {
        let stop = Arc::new(Stop { is_set: sync.stop(), lock: Mutex::new(()), changed: Condvar::new() });
        let thread = {
            let stop = stop.clone();
            std::thread::Builder::new().name("repository".into()).spawn(move || watch(sync, &stop))?
        };
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Waits for the thread.
    ///
    /// # Errors
    /// The thread panicked. It does not end otherwise.
    pub(crate) fn wait(mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(Problem::new("the watch of the model repository failed").into()),
            _ => Ok(()),
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

fn watch(mut sync: RepositorySync, stop: &Stop) {
    let interval = sync.source.interval();
    let mut pending = Pending::new(interval);
    let mut reporter = Reporter { output: sync.output, shown: BTreeSet::new() };
    sync.output.note(format_args!("watching the models in {}", sync.source));
    loop {
        let result = match sync.files() {
            Ok(files) => {
                let newest = files.iter().filter_map(|(_, state)| state.newest).max();
                let mut hasher = DefaultHasher::new();
                for (name, state) in &files {
                    (name, state.fingerprint).hash(&mut hasher);
                }
                let is_due = pending.is_due(hasher.finish(), newest, SystemTime::now(), Instant::now());
                is_due.then(|| sync.run())
            }
            Err(error) => Some(Err(error)),
        };
        if let Some(result) = result.filter(|_| !stop.is_set.load(Ordering::Relaxed)) {
            reporter.show(&result);
        }
        if stop.wait(interval) {
            return;
        }
    }
}

/// Prints the results of synchronisations. An error of the last result is not printed again.
struct Reporter {
    output: OutputSettings,
    /// Errors of the last result.
    shown: BTreeSet<String>,
}

impl Reporter {
    fn show(&mut self, result: &Result<SyncReport>) {
        let errors: BTreeSet<String> = match result {
            Ok(report) => report.errors().collect(),
            Err(error) => [one_line(error)].into(),
        };
        for error in errors.difference(&self.shown) {
            report(&Problem::new(error).into(), self.output.json);
        }
        self.shown = errors;
        if let Ok(synced) = result
            && self.output.json
            && synced.has_pushed()
        {
            // A closed standard output has no reader.
            let _ = self.output.result(synced, SyncReport::text);
        }
    }
}

/// Decides when the repository is compared with the node.
#[derive(Debug)]
struct Pending {
    /// Interval of the looks.
    interval: Duration,
    /// Fingerprint at the last look.
    last: Option<u64>,
    /// Fingerprint and time of the last comparison.
    compared: Option<(u64, Instant)>,
}

impl Pending {
    fn new(interval: Duration) -> Self {
        Self { interval, last: None, compared: None }
    }

    /// Whether to compare now, at `wall` and `now`, when the files have this fingerprint and the
    /// newest was modified at `newest`. Files that are being copied are not read.
    fn is_due(&mut self, found: u64, newest: Option<SystemTime>, wall: SystemTime, now: Instant) -> bool {
        let is_old =
            newest.is_none_or(|newest| wall.duration_since(newest).is_ok_and(|age| age >= self.interval));
        let is_quiet = self.last.map_or(is_old, |last| last == found);
        self.last = Some(found);
        let is_due = is_quiet
            && self.compared.is_none_or(|(compared, at)| compared != found || now >= at + COMPARE_INTERVAL);
        if is_due {
            self.compared = Some((found, now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_synchronised_when_they_have_ended() {
        let wall = SystemTime::now();
        let now = Instant::now();
        let old = Some(wall - Duration::from_secs(60));
        let mut pending = Pending::new(Duration::from_secs(2));
        assert!(pending.is_due(1, old, wall, now), "at first");
        assert!(!pending.is_due(1, old, wall, now));
        assert!(!pending.is_due(2, old, wall, now), "a copy begins");
        assert!(!pending.is_due(3, old, wall, now), "it goes on");
        assert!(pending.is_due(3, old, wall, now), "it has ended");
        assert!(!pending.is_due(3, old, wall, now));
    }

    #[test]
    fn copy_in_progress_at_the_start_is_awaited() {
        let wall = SystemTime::now();
        let now = Instant::now();
        let mut pending = Pending::new(Duration::from_secs(2));
        assert!(!pending.is_due(1, Some(wall), wall, now));
        assert!(!pending.is_due(2, Some(wall), wall, now));
        assert!(pending.is_due(2, Some(wall), wall, now));
        // Without files, there is nothing to wait for.
        assert!(Pending::new(Duration::from_secs(2)).is_due(1, None, wall, now));
    }

    #[test]
    fn node_is_compared_from_time_to_time() {
        let wall = SystemTime::now();
        let now = Instant::now();
        let mut pending = Pending::new(Duration::from_secs(2));
        assert!(pending.is_due(1, None, wall, now));
        assert!(!pending.is_due(1, None, wall, now + COMPARE_INTERVAL / 2));
        assert!(pending.is_due(1, None, wall, now + COMPARE_INTERVAL));
        assert!(!pending.is_due(1, None, wall, now + COMPARE_INTERVAL));
    }

    #[test]
    fn a_set_stop_ends_the_wait() {
        let stop = Stop { is_set: Arc::default(), lock: Mutex::new(()), changed: Condvar::new() };
        stop.set();
        assert!(stop.wait(Duration::from_secs(600)));
    }
}
