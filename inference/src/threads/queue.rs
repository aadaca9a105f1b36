//! Which job runs next. No threads and no clock: the caller locks, waits and tells the time.
//!
//! ```text
//! push -> ready (by priority, then in order of arrival) -> take -> running, one per device thread -> finish
//!           ^                                    |
//!           |         its lane (model) is full   v
//!           +----- a run of the lane ends --- parked
//! ```

use crate::interrupt::Interrupt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// A job's place in line: its priority, then its arrival.
pub(super) type Key = (u32, u64);

/// What may run at once of one model, told apart by a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Unique among the models that have been in the device's memory.
    pub(crate) number: u64,
    /// How many of its jobs may run at once; at least one.
    pub(crate) slots: usize,
}

/// A job as the queue sees it.
pub(super) struct Entry<T> {
    pub(super) lane: Lane,
    pub(super) deadline: Option<Instant>,
    pub(super) interrupt: Arc<Interrupt>,
    pub(super) job: T,
}

/// Jobs that wait, and what is known of those that run.
pub(super) struct Queue<T> {
    len_max: usize,
    ready: BTreeMap<Key, Entry<T>>,
    lanes: HashMap<u64, LaneState<T>>,
    /// Waiting jobs that have a deadline, the earliest first.
    deadlines: BTreeSet<(Instant, Key, u64)>,
    len: usize,
    arrivals: u64,
    running: Vec<Option<Running>>,
    closed: bool,
}

struct LaneState<T> {
    running: usize,
    parked: BTreeMap<Key, Entry<T>>,
}

impl<T> Default for LaneState<T> {
    fn default() -> Self {
        Self { running: 0, parked: BTreeMap::new() }
    }
}

#[derive(Clone)]
struct Running {
    deadline: Option<Instant>,
    interrupt: Arc<Interrupt>,
}

/// Why a job was not taken in.
pub(super) enum PushError {
    Full,
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(len_max: usize, threads: usize) -> Self {
        Self {
            len_max,
            ready: BTreeMap::new(),
            lanes: HashMap::new(),
            deadlines: BTreeSet::new(),
            len: 0,
            arrivals: 0,
            running: vec![None; threads],
            closed: false,
        }
    }

    /// Put a job in line. A full queue still takes a job that an idle thread can start at once.
    pub(super) fn push(&mut self, priority: u32, entry: Entry<T>) -> Result<Key, PushError> {
        if self.closed {
            return Err(PushError::Closed);
        }
        let idle = self.running.iter().filter(|running| running.is_none()).count();
        if self.len >= self.len_max.saturating_add(idle) {
            return Err(PushError::Full);
        }
        self.arrivals += 1;
        let key = (priority, self.arrivals);
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, key, entry.lane.number));
        }
        self.ready.insert(key, entry);
        self.len += 1;
        Ok(key)
    }

    /// Start the next job on `thread`; none when nothing can start now.
    pub(super) fn take(&mut self, thread: usize) -> Option<Entry<T>> {
        loop {
            let (key, entry) = self.ready.pop_first()?;
            let lane = self.lanes.entry(entry.lane.number).or_default();
            if lane.running >= entry.lane.slots {
                lane.parked.insert(key, entry);
                continue;
            }
            lane.running += 1;
            self.forget(key, &entry);
            if let Some(running) = self.running.get_mut(thread) {
                *running =
                    Some(Running { deadline: entry.deadline, interrupt: Arc::clone(&entry.interrupt) });
            }
            return Some(entry);
        }
    }

    /// The job that `thread` ran has ended. At most one parked job becomes ready, and `thread` is there to take the next: nobody else needs
    /// to be woken.
    pub(super) fn finish(&mut self, thread: usize, lane: Lane) {
        if let Some(running) = self.running.get_mut(thread) {
            *running = None;
        }
        let Some(state) = self.lanes.get_mut(&lane.number) else { return };
        state.running = state.running.saturating_sub(1);
        if let Some((key, entry)) = state.parked.pop_first() {
            self.ready.insert(key, entry);
        } else if state.running == 0 {
            self.lanes.remove(&lane.number);
        }
    }

    /// Take a waiting job out of line; none when it has started or ended.
    pub(super) fn remove(&mut self, key: Key, lane: u64) -> Option<Entry<T>> {
        let parked = |queue: &mut Self| queue.lanes.get_mut(&lane)?.parked.remove(&key);
        let entry = self.ready.remove(&key).or_else(|| parked(self))?;
        self.forget(key, &entry);
        Some(entry)
    }

    /// Take out what waits past its deadline, and name what runs past it.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<Entry<T>>, Vec<Arc<Interrupt>>) {
        let mut expired = Vec::new();
        while let Some((_, key, lane)) =
            self.deadlines.first().copied().filter(|(deadline, ..)| *deadline <= now)
        {
            expired.extend(self.remove(key, lane));
        }
        let late = |running: &&mut Running| running.deadline.is_some_and(|deadline| deadline <= now);
        let overdue = self.running.iter_mut().flatten().filter(late).map(|running| {
            running.deadline = None;
            Arc::clone(&running.interrupt)
        });
        (expired, overdue.collect())
    }

    /// When [`Queue::expire`] is next of use.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.deadlines.first().map(|(deadline, ..)| *deadline);
        self.running.iter().flatten().filter_map(|running| running.deadline).chain(waiting).min()
    }

    /// Take in no more; hands out what waited and what runs.
    pub(super) fn close(&mut self) -> (Vec<Entry<T>>, Vec<Arc<Interrupt>>) {
        self.closed = true;
        self.len = 0;
        self.deadlines.clear();
        let parked = self.lanes.values_mut().flat_map(|lane| std::mem::take(&mut lane.parked).into_values());
        let waiting = parked.chain(std::mem::take(&mut self.ready).into_values()).collect();
        (waiting, self.running.iter().flatten().map(|running| Arc::clone(&running.interrupt)).collect())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Jobs that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn forget(&mut self, key: Key, entry: &Entry<T>) {
        self.len -= 1;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, key, entry.lane.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn entry(job: u32, lane: Lane, deadline: Option<Instant>) -> Entry<u32> {
        Entry { lane, deadline, interrupt: Arc::default(), job }
    }

    const WIDE: Lane = Lane { number: 0, slots: 64 };

    fn drain(queue: &mut Queue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| {
            let entry = queue.take(0)?;
            queue.finish(0, entry.lane);
            Some(entry.job)
        })
        .collect()
    }

    #[test]
    fn urgent_jobs_go_first_and_equals_in_order_of_arrival() {
        let mut queue = Queue::new(100, 1);
        for (job, priority) in [(1, 100), (2, 1), (3, 100), (4, 7), (5, 1)] {
            assert!(queue.push(priority, entry(job, WIDE, None)).is_ok());
        }
        assert_eq!(drain(&mut queue), [2, 5, 4, 1, 3]);
    }

    #[test]
    fn a_full_model_does_not_hold_up_the_others_and_keeps_its_order() {
        let narrow = Lane { number: 1, slots: 1 };
        let mut queue = Queue::new(100, 3);
        for (job, lane) in [(1, narrow), (2, narrow), (3, narrow), (4, WIDE)] {
            assert!(queue.push(100, entry(job, lane, None)).is_ok());
        }
        assert_eq!(queue.take(0).map(|e| e.job), Some(1));
        assert_eq!(queue.take(1).map(|e| e.job), Some(4));
        assert_eq!(queue.take(2).map(|e| e.job), None);
        queue.finish(0, narrow);
        assert_eq!(queue.take(0).map(|e| e.job), Some(2));
        queue.finish(0, narrow);
        assert_eq!(queue.take(0).map(|e| e.job), Some(3));
        queue.finish(0, narrow);
        queue.finish(1, WIDE);
        assert!(queue.lanes.is_empty(), "lanes without jobs are forgotten");
    }

    #[test]
    fn the_bound_counts_what_waits_and_leaving_makes_room() {
        let narrow = Lane { number: 1, slots: 1 };
        let mut queue = Queue::new(2, 1);
        assert!(queue.push(1, entry(0, narrow, None)).is_ok());
        assert!(queue.take(0).is_some());
        let ready = queue.push(1, entry(1, narrow, None)).ok().unwrap();
        assert!(queue.push(1, entry(2, narrow, None)).is_ok());
        assert!(matches!(queue.push(1, entry(3, narrow, None)), Err(PushError::Full)));
        // Parked jobs count and can leave too.
        assert!(queue.take(0).is_none());
        assert_eq!(queue.remove(ready, 1).map(|e| e.job), Some(1));
        assert!(queue.remove(ready, 1).is_none());
        assert_eq!(queue.len(), 1);
        assert!(queue.push(1, entry(4, narrow, None)).is_ok());
    }

    #[test]
    fn deadlines_end_what_waits_and_name_what_runs() {
        let start = Instant::now();
        let after = |ms| Some(start + Duration::from_millis(ms));
        let mut queue = Queue::new(100, 1);
        assert!(queue.push(1, entry(1, WIDE, after(10))).is_ok());
        let running = queue.take(0).unwrap();
        for (job, deadline) in [(2, after(20)), (3, after(5)), (4, None)] {
            assert!(queue.push(1, entry(job, WIDE, deadline)).is_ok());
        }
        assert_eq!(queue.next_deadline(), after(5));
        let (expired, overdue) = queue.expire(start + Duration::from_millis(12));
        assert_eq!(expired.iter().map(|e| e.job).collect::<Vec<_>>(), [3]);
        assert!(overdue.len() == 1 && Arc::ptr_eq(&overdue[0], &running.interrupt));
        // It is named once, and the next look is due for the next deadline.
        assert_eq!(queue.next_deadline(), after(20));
        assert_eq!(queue.len(), 2);
    }
}
