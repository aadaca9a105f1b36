//! Run queue: chooses which jobs run next. No threads and no clock: the caller locks, waits and
//! passes the time.
//!
//! Models are ordered by the priority of their first job, then by its arrival. A model at its limit
//! of concurrent runs leaves the line until one of its runs ends.
//!
//! ```text
//! push -> waits in its lane (model) -> take: the first lane in line -> running, one run per thread
//!                  ^                  that may run chooses the jobs              |
//!                  |                  of a run                                   v
//!                  +--- requeued: jobs of a failed batch, to run alone ------- finish
//! ```

mod entry;
pub(crate) use entry::{Entry, Lane, LaneSlots, Taken};

use crate::batching::{Candidate, Choice, Situation};
use crate::interrupt::Interrupt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Order of a job in the queue: its priority, then its arrival.
pub(crate) type Key = (u32, u64);

/// Jobs of a lane that are examined for one run, per job that the run could have.
const CANDIDATES_PER_PLACE: usize = 8;

/// Other lanes whose first job is examined, so that a batch makes none of them late.
const OTHERS_MAX: usize = 8;

/// Instruction for a free thread.
pub(super) enum Next<T> {
    Run(Taken<T>),
    /// Wait for the queue to change, at most until this time.
    Wait(Option<Instant>),
}

/// Waiting jobs, and the running jobs of each thread.
pub(super) struct Queue<T> {
    len_max: usize,
    lanes: HashMap<u64, LaneState<T>>,
    /// The first job of every lane that may start a run.
    heads: BTreeSet<(Key, u64)>,
    /// Waiting jobs with a deadline, the earliest first.
    deadlines: BTreeSet<(Instant, Key, u64)>,
    len: usize,
    arrivals: u64,
    /// The jobs that each thread runs.
    running: Vec<Vec<Running>>,
    closed: bool,
}

struct LaneState<T> {
    slots: LaneSlots,
    running: usize,
    waiting: BTreeMap<Key, Entry<T>>,
}

#[derive(Clone)]
struct Running {
    deadline: Option<Instant>,
    interrupt: Arc<Interrupt>,
}

/// Why a job was rejected.
pub(super) enum PushError {
    Full,
    Closed,
}

/// Decision for the lane whose turn it is.
enum Turn {
    Run { keys: Vec<Key>, is_trial: bool },
    Wait(Instant),
}

impl<T> Queue<T> {
    pub(super) fn new(len_max: usize, threads: usize) -> Self {
        Self {
            len_max,
            lanes: HashMap::new(),
            heads: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            len: 0,
            arrivals: 0,
            running: vec![Vec::new(); threads],
            closed: false,
        }
    }

    /// Queues a job. A full queue still accepts a job that an idle thread can start immediately.
    pub(super) fn push(&mut self, priority: u32, entry: Entry<T>) -> Result<Key, PushError> {
        if self.closed {
            return Err(PushError::Closed);
        }
        let idle = self.running.iter().filter(|running| running.is_empty()).count();
        if self.len >= self.len_max.saturating_add(idle) {
            return Err(PushError::Full);
        }
        self.arrivals += 1;
        let key = (priority, self.arrivals);
        self.insert(key, entry);
        Ok(key)
    }

    /// Starts the next run on `thread`.
    pub(super) fn take(&mut self, thread: usize, now: Instant) -> Next<T> {
        let mut wakes_at: Option<Instant> = None;
        for (place, (_, number)) in self.heads.iter().enumerate() {
            match self.turn(place, *number, thread, now) {
                Some(Turn::Run { keys, is_trial }) => return self.start(thread, *number, keys, is_trial),
                Some(Turn::Wait(until)) => wakes_at = Some(wakes_at.map_or(until, |at| at.min(until))),
                None => {}
            }
        }
        Next::Wait(wakes_at)
    }

    /// Ends the run on `thread`, and requeues the jobs in `again` to run alone. At most one lane
    /// becomes able to start a run, and `thread` is free to take it, so no other thread needs
    /// waking unless `again` has several jobs.
    pub(super) fn finish(&mut self, thread: usize, lane: &Lane, again: Vec<(Key, Entry<T>)>) {
        if let Some(running) = self.running.get_mut(thread) {
            running.clear();
        }
        self.unlist(lane.number);
        if let Some(state) = self.lanes.get_mut(&lane.number) {
            state.running = state.running.saturating_sub(1);
        }
        self.list(lane.number);
        for (key, entry) in again {
            self.insert(key, Entry { fit: None, ..entry });
        }
    }

    /// Limits a lane to `slots` concurrent runs. Current runs continue.
    pub(super) fn resize(&mut self, lane: &Lane, slots: usize) {
        self.unlist(lane.number);
        lane.slots.set(slots);
        self.list(lane.number);
    }

    /// Removes a waiting job; `None` if it has started or ended.
    pub(super) fn remove(&mut self, key: Key, lane: u64) -> Option<Entry<T>> {
        self.unlist(lane);
        let entry = self.lanes.get_mut(&lane).and_then(|state| state.waiting.remove(&key));
        self.list(lane);
        let entry = entry?;
        self.forget(key, &entry);
        Some(entry)
    }

    /// Removes waiting jobs past their deadline, and returns them with the interrupts of running
    /// jobs past theirs.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<Entry<T>>, Vec<Arc<Interrupt>>) {
        let mut expired = Vec::new();
        while let Some((deadline, key, lane)) =
            self.deadlines.first().copied().filter(|(deadline, ..)| *deadline <= now)
        {
            // The deadline is handled, even if the job is no longer waiting.
            self.deadlines.remove(&(deadline, key, lane));
            expired.extend(self.remove(key, lane));
        }
        let late = |running: &&mut Running| running.deadline.is_some_and(|deadline| deadline <= now);
        let overdue = self.running.iter_mut().flatten().filter(late).map(|running| {
            running.deadline = None;
            running.interrupt.clone()
        });
        (expired, overdue.collect())
    }

    /// The time at which [`Queue::expire`] is next needed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.deadlines.first().map(|(deadline, ..)| *deadline);
        self.running.iter().flatten().filter_map(|running| running.deadline).chain(waiting).min()
    }

    /// Stops accepting jobs; returns the waiting jobs and the interrupts of the running ones.
    pub(super) fn close(&mut self) -> (Vec<Entry<T>>, Vec<Arc<Interrupt>>) {
        self.closed = true;
        self.drain()
    }

    /// Removes all waiting jobs, and returns them with the interrupts of the running ones.
    pub(super) fn drain(&mut self) -> (Vec<Entry<T>>, Vec<Arc<Interrupt>>) {
        self.len = 0;
        self.deadlines.clear();
        self.heads.clear();
        let lanes = self.lanes.values_mut();
        let waiting = lanes.flat_map(|lane| std::mem::take(&mut lane.waiting).into_values()).collect();
        self.lanes.retain(|_, lane| lane.running > 0);
        (waiting, self.running.iter().flatten().map(|running| running.interrupt.clone()).collect())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Number of waiting jobs.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The decision of the lane at `place` in line for `thread`.
    fn turn(&self, place: usize, number: u64, thread: usize, now: Instant) -> Option<Turn> {
        let lane = self.lanes.get(&number)?;
        let (first, leader) = lane.waiting.first_key_value()?;
        let alone = || Turn::Run { keys: vec![*first], is_trial: false };
        let (Some(fit), Some(batcher)) = (&leader.fit, &leader.lane.batcher) else { return Some(alone()) };
        // If each job of this class runs alone, no other job needs to be examined.
        if batcher.runs_alone(&fit.class) {
            return Some(alone());
        }
        let candidates_max = CANDIDATES_PER_PLACE * batcher.rules().size_max as usize;
        let alike = |entry: &&Entry<T>| entry.fit.as_ref().is_some_and(|other| other.class == fit.class);
        // The first jobs in line and the last: under overload, the jobs between them will be late
        // anyway.
        let half = candidates_max / 2;
        let last = lane.waiting.len().saturating_sub(half).min(half);
        let newest: Vec<_> = lane.waiting.iter().rev().take(last).collect();
        let looked_at = lane.waiting.iter().take(half).chain(newest.into_iter().rev());
        let looked_at = looked_at.filter(|(_, entry)| alike(entry));
        let (keys, candidates): (Vec<Key>, Vec<Candidate>) =
            looked_at.map(|(key, entry)| (*key, entry.candidate(*key, now))).unzip();
        let free = |(other, running): (usize, &Vec<Running>)| other != thread && running.is_empty();
        let others_free = self.running.iter().enumerate().filter(|other| free(*other)).count();
        // Each other lane in line could take one of the free threads.
        let others_free = others_free.saturating_sub(self.heads.len() - 1);
        let situation = Situation {
            candidates: &candidates,
            waiting: lane.waiting.len(),
            free_slots: others_free.min(lane.slots.get().saturating_sub(lane.running + 1)),
            is_busy: self.running.iter().any(|running| !running.is_empty()),
            others_priority: self.others_priority(place),
            others_slack_ns: if others_free > 0 { f64::INFINITY } else { self.others_slack_ns(place, now) },
        };
        let positions = match batcher.choose(&fit.class, &situation) {
            Choice::Run(positions) => positions,
            Choice::TryOut => return Some(Turn::Run { keys: vec![*first], is_trial: true }),
            Choice::Wait(for_ns) => {
                return Some(Turn::Wait(now + Duration::from_secs_f64((for_ns / 1e9).max(1e-6))));
            }
        };
        let chosen: Vec<Key> = positions.iter().filter_map(|position| keys.get(*position).copied()).collect();
        Some(if chosen.is_empty() { alone() } else { Turn::Run { keys: chosen, is_trial: false } })
    }

    /// Priority of the first lane in line, except the lane at `place`.
    fn others_priority(&self, place: usize) -> Option<u32> {
        let first = self.heads.iter().nth(usize::from(place == 0))?;
        let ((priority, _), _) = first;
        Some(*priority)
    }

    /// The longest time that the first jobs of other lanes can wait without being late, if each
    /// then runs alone.
    fn others_slack_ns(&self, place: usize, now: Instant) -> f64 {
        let others = self.heads.iter().enumerate().filter(|(other, _)| *other != place).take(OTHERS_MAX);
        let slack_ns = others.filter_map(|(_, (key, number))| {
            let entry = self.lanes.get(number)?.waiting.get(key)?;
            let own_ns = entry.fit.as_ref().zip(entry.lane.batcher.as_ref());
            let own_ns = own_ns.and_then(|(fit, batcher)| batcher.alone_ns(fit)).unwrap_or_default();
            Some(entry.candidate(*key, now).slack_ns - own_ns)
        });
        slack_ns.fold(f64::INFINITY, f64::min)
    }

    fn start(&mut self, thread: usize, number: u64, keys: Vec<Key>, is_trial: bool) -> Next<T> {
        self.unlist(number);
        let mut jobs = Vec::with_capacity(keys.len());
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.running += 1;
            jobs.extend(keys.into_iter().filter_map(|key| Some((key, lane.waiting.remove(&key)?))));
        }
        self.list(number);
        for (key, entry) in &jobs {
            self.forget(*key, entry);
        }
        if let Some(running) = self.running.get_mut(thread) {
            running.extend(
                jobs.iter().map(|(_, entry)| Running {
                    deadline: entry.deadline,
                    interrupt: entry.interrupt.clone(),
                }),
            );
        }
        let lane = jobs.first().map(|(_, entry)| entry.lane.clone());
        lane.map_or(Next::Wait(None), |lane| Next::Run(Taken { lane, jobs, is_trial }))
    }

    fn insert(&mut self, key: Key, entry: Entry<T>) {
        let number = entry.lane.number;
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, key, number));
        }
        self.unlist(number);
        let slots = entry.lane.slots.clone();
        let fresh = || LaneState { slots, running: 0, waiting: BTreeMap::new() };
        self.lanes.entry(number).or_insert_with(fresh).waiting.insert(key, entry);
        self.list(number);
        self.len += 1;
    }

    /// Removes a lane from the line, before its waiting jobs change.
    fn unlist(&mut self, number: u64) {
        let first = self.lanes.get(&number).and_then(|lane| lane.waiting.first_key_value());
        if let Some((key, _)) = first {
            self.heads.remove(&(*key, number));
        }
    }

    /// Adds a lane to the line if it may start a run; forgets it if it has no jobs left.
    fn list(&mut self, number: u64) {
        let Some(lane) = self.lanes.get(&number) else { return };
        match lane.waiting.first_key_value() {
            Some((key, _)) if lane.running < lane.slots.get() => _ = self.heads.insert((*key, number)),
            Some(_) => {}
            None if lane.running == 0 => _ = self.lanes.remove(&number),
            None => {}
        }
    }

    fn forget(&mut self, key: Key, entry: &Entry<T>) {
        self.len -= 1;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, key, entry.lane.number));
        }
    }
}

#[cfg(test)]
mod simulated;

#[cfg(test)]
mod tests;
