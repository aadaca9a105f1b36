//! Run queue: chooses which jobs run next. No threads and no clock: the caller locks, waits and
//! passes the time.
//!
//! Tenants take turns, by the run time that they have had ([`TenantOrder`]). While several tenants
//! use the device, batches are short, since nothing interrupts a run. The models of a tenant
//! are ordered by the priority of their first job, then by its arrival. A model at its limit of
//! concurrent runs leaves the line until one of its runs ends.
//!
//! A full queue rejects a job, unless another tenant has more jobs waiting: then the last of those
//! makes room.
//!
//! ```text
//! push -> waits in its lane (model) -> take: the first lane in line -> running, one run per thread
//!                  ^                  that may run chooses the jobs              |
//!                  |                  of a run                                   v
//!                  +--- requeued: jobs of a failed batch, to run alone ------- finish
//! ```

mod entry;
pub(crate) use entry::{Lane, LaneSlots, QueueEntry, Taken};
mod tenants;
use tenants::TenantOrder;

use crate::batching::{BatchChoice, Situation, WaitingRequest};
use crate::interrupt::Interrupt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_types::TenantId;

/// Order of a job among those of its tenant: its priority, then its arrival.
pub(crate) type JobOrder = (u32, u64);

/// Jobs of a lane that are examined for one run, per job that the run could have.
const CANDIDATES_PER_PLACE: usize = 8;

/// Other lanes whose first job is examined, so that a batch makes none of them late.
const OTHERS_MAX: usize = 8;

/// The longest run of more than one short job while several tenants use the device. A job of another
/// tenant waits for at most one such run of each thread. Longer runs save little on most models.
const SHARED_RUN_TIME_MAX: Duration = Duration::from_millis(5);

/// Instruction for a free thread.
pub(super) enum ThreadInstruction<T> {
    Run(Taken<T>),
    /// Wait for the queue to change, at most until this time.
    Wait(Option<Instant>),
}

/// Waiting jobs, and the running jobs of each thread.
pub(super) struct JobQueue<T> {
    len_max: usize,
    lanes: HashMap<u64, LaneState<T>>,
    tenants: TenantOrder,
    /// Waiting jobs with a deadline, the earliest first.
    deadlines: BTreeSet<(Instant, JobOrder, u64)>,
    len: usize,
    arrivals: u64,
    /// The run of each thread.
    running: Vec<ThreadRun>,
    closed: bool,
}

struct LaneState<T> {
    tenant: TenantId,
    slots: LaneSlots,
    /// Time of the lane's last run.
    run_time: Duration,
    running: usize,
    waiting: BTreeMap<JobOrder, QueueEntry<T>>,
}

/// The run of a thread; without jobs while the thread is free.
#[derive(Clone, Default)]
struct ThreadRun {
    jobs: Vec<Running>,
    began: Option<Instant>,
    /// Run time that the tenant was charged with.
    charged_ns: u64,
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
enum LaneDecision {
    Run { keys: Vec<JobOrder>, is_trial: bool },
    Wait(Instant),
}

impl<T> JobQueue<T> {
    pub(super) fn new(len_max: usize, threads: usize) -> Self {
        Self {
            len_max,
            lanes: HashMap::new(),
            tenants: TenantOrder::default(),
            deadlines: BTreeSet::new(),
            len: 0,
            arrivals: 0,
            running: vec![ThreadRun::default(); threads],
            closed: false,
        }
    }

    /// Queues a job. A full queue still accepts a job that an idle thread can start immediately,
    /// and a job of a tenant with a smaller share of the queue than another. Then it also returns
    /// the job that had to leave the queue.
    pub(super) fn push(
        &mut self,
        priority: u32,
        entry: QueueEntry<T>,
    ) -> Result<(JobOrder, Option<QueueEntry<T>>), PushError> {
        if self.closed {
            return Err(PushError::Closed);
        }
        let idle = self.running.iter().filter(|running| running.jobs.is_empty()).count();
        let mut displaced = None;
        if self.len >= self.len_max.saturating_add(idle) {
            let (key, lane) = self.tenants.displaced_by(&entry.lane.tenant).ok_or(PushError::Full)?;
            displaced = self.remove(key, lane);
        }
        self.arrivals += 1;
        self.tenants.arrives(&entry.lane.tenant, entry.arrived);
        let key = (priority, self.arrivals);
        self.insert(key, entry);
        Ok((key, displaced))
    }

    /// Starts the next run on `thread`.
    pub(super) fn take(&mut self, thread: usize, now: Instant) -> ThreadInstruction<T> {
        let mut wakes_at: Option<Instant> = None;
        let run = self.tenants.lanes().find_map(|(_, _, number)| match self.turn(number, thread, now)? {
            LaneDecision::Run { keys, is_trial } => Some((number, keys, is_trial)),
            LaneDecision::Wait(until) => {
                wakes_at = Some(wakes_at.map_or(until, |at| at.min(until)));
                None
            }
        });
        match run {
            Some((number, keys, is_trial)) => self.start(thread, number, keys, is_trial, now),
            None => ThreadInstruction::Wait(wakes_at),
        }
    }

    /// Ends the run on `thread`, and requeues the jobs in `again` to run alone. At most one lane
    /// becomes able to start a run, and `thread` is free to take it, so no other thread needs
    /// waking unless `again` has several jobs.
    pub(super) fn finish(
        &mut self,
        thread: usize,
        lane: &Lane,
        again: Vec<(JobOrder, QueueEntry<T>)>,
        now: Instant,
    ) {
        let ended = self.running.get_mut(thread).map(std::mem::take).unwrap_or_default();
        let time = ended.began.map(|began| now.saturating_duration_since(began)).unwrap_or_default();
        self.tenants.ends(&lane.tenant, ended.charged_ns, time);
        self.unlist(lane.number);
        if let Some(state) = self.lanes.get_mut(&lane.number) {
            state.running = state.running.saturating_sub(1);
            state.run_time = time;
        }
        self.list(lane.number);
        for (key, entry) in again {
            self.insert(key, QueueEntry { fit: None, ..entry });
        }
    }

    /// Limits a lane to `slots` concurrent runs. Current runs continue.
    pub(super) fn resize(&mut self, lane: &Lane, slots: usize) {
        self.unlist(lane.number);
        lane.slots.set(slots);
        self.list(lane.number);
    }

    /// Removes a waiting job; `None` if it has started or ended.
    pub(super) fn remove(&mut self, key: JobOrder, lane: u64) -> Option<QueueEntry<T>> {
        self.unlist(lane);
        let entry = self.lanes.get_mut(&lane).and_then(|state| state.waiting.remove(&key));
        self.list(lane);
        let entry = entry?;
        self.forget(key, &entry);
        Some(entry)
    }

    /// Removes waiting jobs past their deadline, and returns them with the interrupts of running
    /// jobs past theirs.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<QueueEntry<T>>, Vec<Arc<Interrupt>>) {
        let mut expired = Vec::new();
        while let Some((deadline, key, lane)) =
            self.deadlines.first().copied().filter(|(deadline, ..)| *deadline <= now)
        {
            // The deadline is handled, even if the job is no longer waiting.
            self.deadlines.remove(&(deadline, key, lane));
            expired.extend(self.remove(key, lane));
        }
        let late = |running: &&mut Running| running.deadline.is_some_and(|deadline| deadline <= now);
        let running = self.running.iter_mut().flat_map(|run| &mut run.jobs);
        let overdue = running.filter(late).map(|running| {
            running.deadline = None;
            running.interrupt.clone()
        });
        (expired, overdue.collect())
    }

    /// The time at which [`JobQueue::expire`] is next needed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.deadlines.first().map(|(deadline, ..)| *deadline);
        self.running_jobs().filter_map(|running| running.deadline).chain(waiting).min()
    }

    /// Stops accepting jobs; returns the waiting jobs and the interrupts of the running ones.
    pub(super) fn close(&mut self) -> (Vec<QueueEntry<T>>, Vec<Arc<Interrupt>>) {
        self.closed = true;
        self.drain()
    }

    /// Removes all waiting jobs, and returns them with the interrupts of the running ones.
    pub(super) fn drain(&mut self) -> (Vec<QueueEntry<T>>, Vec<Arc<Interrupt>>) {
        self.len = 0;
        self.deadlines.clear();
        self.tenants.clear_waiting();
        let lanes = self.lanes.values_mut();
        let waiting = lanes.flat_map(|lane| std::mem::take(&mut lane.waiting).into_values()).collect();
        self.lanes.retain(|_, lane| lane.running > 0);
        (waiting, self.running_jobs().map(|running| running.interrupt.clone()).collect())
    }

    fn running_jobs(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().flat_map(|run| &run.jobs)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Number of waiting jobs.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The decision of a lane in line for `thread`.
    fn turn(&self, number: u64, thread: usize, now: Instant) -> Option<LaneDecision> {
        let lane = self.lanes.get(&number)?;
        let (first, leader) = lane.waiting.first_key_value()?;
        let alone = || LaneDecision::Run { keys: vec![*first], is_trial: false };
        let (Some(fit), Some(batcher)) = (&leader.fit, &leader.lane.batcher) else { return Some(alone()) };
        // If each job of this class runs alone, no other job needs to be examined.
        if batcher.runs_alone(&fit.class) {
            return Some(alone());
        }
        let candidates_max = CANDIDATES_PER_PLACE * batcher.rules().size_max as usize;
        let alike = |entry: &&QueueEntry<T>| entry.fit.as_ref().is_some_and(|other| other.class == fit.class);
        // The first jobs in line and the last: under overload, the jobs between them will be late
        // anyway.
        let half = candidates_max / 2;
        let last = lane.waiting.len().saturating_sub(half).min(half);
        let newest: Vec<_> = lane.waiting.iter().rev().take(last).collect();
        let looked_at = lane.waiting.iter().take(half).chain(newest.into_iter().rev());
        let looked_at = looked_at.filter(|(_, entry)| alike(entry));
        let (keys, candidates): (Vec<JobOrder>, Vec<WaitingRequest>) =
            looked_at.map(|(key, entry)| (*key, entry.candidate(*key, now))).unzip();
        let free = |(other, run): (usize, &ThreadRun)| other != thread && run.jobs.is_empty();
        let others_free = self.running.iter().enumerate().filter(|other| free(*other)).count();
        // Each other lane in line could take one of the free threads.
        let others_free = others_free.saturating_sub(self.tenants.lanes_len().saturating_sub(1));
        let situation = Situation {
            candidates: &candidates,
            waiting: lane.waiting.len(),
            free_slots: others_free.min(lane.slots.get().saturating_sub(lane.running + 1)),
            is_busy: self.running_jobs().next().is_some(),
            others_priority: self.tenants.first_of_others(&lane.tenant, number).map(|(priority, _)| priority),
            others_slack_ns: if others_free > 0 { f64::INFINITY } else { self.others_slack_ns(number, now) },
            run_ns_max: if self.tenants.is_used_by_others(&lane.tenant, now) {
                SHARED_RUN_TIME_MAX.as_nanos() as f64
            } else {
                f64::INFINITY
            },
        };
        let positions = match batcher.choose(&fit.class, &situation) {
            BatchChoice::Run(positions) => positions,
            BatchChoice::TryOut => return Some(LaneDecision::Run { keys: vec![*first], is_trial: true }),
            BatchChoice::Wait(for_ns) => {
                return Some(LaneDecision::Wait(now + Duration::from_secs_f64((for_ns / 1e9).max(1e-6))));
            }
        };
        let chosen: Vec<JobOrder> =
            positions.iter().filter_map(|position| keys.get(*position).copied()).collect();
        Some(if chosen.is_empty() { alone() } else { LaneDecision::Run { keys: chosen, is_trial: false } })
    }

    /// The longest time that the first jobs of other lanes can wait without being late, if each
    /// then runs alone.
    fn others_slack_ns(&self, number: u64, now: Instant) -> f64 {
        let others = self.tenants.lanes().filter(|(_, _, other)| *other != number).take(OTHERS_MAX);
        let slack_ns = others.filter_map(|(_, key, number)| {
            let entry = self.lanes.get(&number)?.waiting.get(&key)?;
            let own_ns = entry.fit.as_ref().zip(entry.lane.batcher.as_ref());
            let own_ns = own_ns.and_then(|(fit, batcher)| batcher.alone_ns(fit)).unwrap_or_default();
            Some(entry.candidate(key, now).slack_ns - own_ns)
        });
        slack_ns.fold(f64::INFINITY, f64::min)
    }

    fn start(
        &mut self,
        thread: usize,
        number: u64,
        keys: Vec<JobOrder>,
        is_trial: bool,
        now: Instant,
    ) -> ThreadInstruction<T> {
        self.unlist(number);
        let mut jobs = Vec::with_capacity(keys.len());
        let mut charged_ns = 0;
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.running += 1;
            charged_ns = self.tenants.starts(&lane.tenant, lane.run_time);
            jobs.extend(keys.into_iter().filter_map(|key| Some((key, lane.waiting.remove(&key)?))));
        }
        self.list(number);
        for (key, entry) in &jobs {
            self.forget(*key, entry);
        }
        if let Some(run) = self.running.get_mut(thread) {
            let running = |(_, entry): &(JobOrder, QueueEntry<T>)| Running {
                deadline: entry.deadline,
                interrupt: entry.interrupt.clone(),
            };
            *run = ThreadRun { jobs: jobs.iter().map(running).collect(), began: Some(now), charged_ns };
        }
        let lane = jobs.first().map(|(_, entry)| entry.lane.clone());
        lane.map_or(ThreadInstruction::Wait(None), |lane| {
            ThreadInstruction::Run(Taken { lane, jobs, is_trial })
        })
    }

    fn insert(&mut self, key: JobOrder, entry: QueueEntry<T>) {
        let number = entry.lane.number;
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, key, number));
        }
        self.unlist(number);
        let Lane { tenant, slots, .. } = entry.lane.clone();
        self.tenants.waits(&tenant, key, number);
        let fresh =
            || LaneState { tenant, slots, run_time: Duration::ZERO, running: 0, waiting: BTreeMap::new() };
        self.lanes.entry(number).or_insert_with(fresh).waiting.insert(key, entry);
        self.list(number);
        self.len += 1;
    }

    /// Removes a lane from the line, before its waiting jobs change.
    fn unlist(&mut self, number: u64) {
        let Some(lane) = self.lanes.get(&number) else { return };
        if let Some((key, _)) = lane.waiting.first_key_value() {
            self.tenants.unlist(&lane.tenant, *key, number);
        }
    }

    /// Adds a lane to the line if it may start a run; forgets it if it has no jobs left.
    fn list(&mut self, number: u64) {
        let Some(lane) = self.lanes.get(&number) else { return };
        match lane.waiting.first_key_value() {
            Some((key, _)) if lane.running < lane.slots.get() => {
                self.tenants.list(&lane.tenant, *key, number);
            }
            Some(_) => {}
            None if lane.running == 0 => _ = self.lanes.remove(&number),
            None => {}
        }
    }

    fn forget(&mut self, key: JobOrder, entry: &QueueEntry<T>) {
        self.len -= 1;
        self.tenants.leaves(&entry.lane.tenant, key, entry.lane.number);
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, key, entry.lane.number));
        }
    }
}

#[cfg(test)]
mod fairness;

#[cfg(test)]
mod simulated;

#[cfg(test)]
mod tests;
