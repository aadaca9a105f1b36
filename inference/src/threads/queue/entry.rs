//! Entries of the run queue.

use super::JobOrder;
use crate::batching::{Batcher, Fit, WaitingRequest};
use crate::interrupt::Interrupt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_types::TenantId;

/// A group of jobs in the run queue that share a limit on concurrent runs: the jobs of one model,
/// or of several models of one tenant that take turns. `number` identifies the lane.
#[derive(Clone)]
pub(crate) struct Lane {
    /// Unique among all lanes that the device has had.
    pub(crate) number: u64,
    /// The tenant that the jobs count for.
    pub(crate) tenant: TenantId,
    /// Limit on concurrent runs.
    pub(crate) slots: LaneSlots,
    /// Decides which jobs run together; `None`: each job runs alone.
    pub(crate) batcher: Option<Arc<Batcher>>,
}

/// Limit on the concurrent runs of a lane; at least one. All holders of the lane share the value,
/// which only the queue changes, under its lock.
#[derive(Debug, Clone)]
pub(crate) struct LaneSlots(Arc<AtomicUsize>);

impl LaneSlots {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(slots.max(1))))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Only for the queue, because its order depends on the value.
    pub(super) fn set(&self, slots: usize) {
        self.0.store(slots.max(1), Ordering::Relaxed);
    }
}

/// A job in the queue.
pub(crate) struct QueueEntry<T> {
    pub(crate) lane: Lane,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: Arc<Interrupt>,
    /// Batch class and size; `None` for a job that runs alone.
    pub(crate) fit: Option<Fit>,
    pub(crate) job: T,
}

/// Jobs that run together, each with its place in line.
pub(crate) struct Taken<T> {
    pub(crate) lane: Lane,
    pub(crate) jobs: Vec<(JobOrder, QueueEntry<T>)>,
    /// Whether the run of this single job includes a trial of batching its class.
    pub(crate) is_trial: bool,
}

impl<T> QueueEntry<T> {
    /// The job as a candidate for a batch. `priority` is the priority of its place in line.
    pub(super) fn candidate(&self, (priority, _): JobOrder, now: Instant) -> WaitingRequest {
        let ns = |time: Duration| time.as_nanos() as f64;
        WaitingRequest {
            items: self.fit.as_ref().map_or(1, |fit| fit.items),
            bytes: self.fit.as_ref().map_or(0, |fit| fit.bytes),
            priority,
            slack_ns: self.deadline.map_or(f64::INFINITY, |at| ns(at.saturating_duration_since(now))),
            waited_ns: ns(now.saturating_duration_since(self.arrived)),
        }
    }
}
