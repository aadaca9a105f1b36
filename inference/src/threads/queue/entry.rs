//! What stands in line.

use super::Key;
use crate::batching::{Batcher, Candidate, Fit};
use crate::interrupt::Interrupt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What may run at once of one model, or of several that take turns, told apart by a number.
#[derive(Clone)]
pub(crate) struct Lane {
    /// Unique among those that the device has had.
    pub(crate) number: u64,
    /// How many of its runs may go on at once.
    pub(crate) slots: LaneSlots,
    /// Says which of its jobs run together; none where each runs alone.
    pub(crate) batcher: Option<Arc<Batcher>>,
}

/// How many runs of a lane may go on at once; at least one. All who hold the lane see a change, which the queue makes under its lock.
#[derive(Debug, Clone)]
pub(crate) struct LaneSlots(Arc<AtomicUsize>);

impl LaneSlots {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(slots.max(1))))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Only for the queue: what stands in line depends on it.
    pub(super) fn set(&self, slots: usize) {
        self.0.store(slots.max(1), Ordering::Relaxed);
    }
}

/// A job as the queue sees it.
pub(crate) struct Entry<T> {
    pub(crate) lane: Lane,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: Arc<Interrupt>,
    /// What it brings to a batch; none for a job that runs alone.
    pub(crate) fit: Option<Fit>,
    pub(crate) job: T,
}

/// Jobs that run together, each with its place in line.
pub(crate) struct Taken<T> {
    pub(crate) lane: Lane,
    pub(crate) jobs: Vec<(Key, Entry<T>)>,
    /// Whether the one job is to be used to find out if its like may run together.
    pub(crate) is_trial: bool,
}

impl<T> Entry<T> {
    /// The job as one that may join a batch. `priority` is that of its place in line.
    pub(super) fn candidate(&self, (priority, _): Key, now: Instant) -> Candidate {
        let ns = |time: Duration| time.as_nanos() as f64;
        Candidate {
            items: self.fit.as_ref().map_or(1, |fit| fit.items),
            bytes: self.fit.as_ref().map_or(0, |fit| fit.bytes),
            priority,
            slack_ns: self.deadline.map_or(f64::INFINITY, |at| ns(at.saturating_duration_since(now))),
            waited_ns: ns(now.saturating_duration_since(self.arrived)),
        }
    }
}
