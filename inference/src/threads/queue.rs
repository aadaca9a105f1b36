//! Which jobs run next. No threads and no clock: the caller locks, waits and tells the time.
//!
//! Models stand in line by the first of their jobs: by its priority, then by its arrival. A model that runs as often as it may leaves the
//! line until one of its runs ends.
//!
//! ```text
//! push -> waits in its lane (model) -> take: the first lane in line that may run chooses the jobs of a run -> running, one run per thread
//!              ^                                                                                                |
//!              +----------------------------- put back: a batch that failed, to run one by one ----------------+-> finish
//! ```

use crate::batching::{Batcher, Candidate, Choice, Fit, Situation};
use crate::interrupt::Interrupt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A job's place in line: its priority, then its arrival.
pub(crate) type Key = (u32, u64);

/// Jobs of a lane that are looked at for one run, for each that the run could have.
const CANDIDATES_PER_PLACE: usize = 8;

/// Other lanes whose first job is looked at, so that none is late for a batch.
const OTHERS_MAX: usize = 8;

/// What may run at once of one model, told apart by a number.
#[derive(Clone)]
pub(crate) struct Lane {
    /// Unique among the models that have been in the device's memory.
    pub(crate) number: u64,
    /// How many of its runs may go on at once; at least one.
    pub(crate) slots: usize,
    /// Says which of its jobs run together; none where each runs alone.
    pub(crate) batcher: Option<Arc<Batcher>>,
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

/// What a free thread is to do.
pub(super) enum Next<T> {
    Run(Taken<T>),
    /// Wait for something to happen, but no longer than until then.
    Wait(Option<Instant>),
}

/// Jobs that wait, and what is known of those that run.
pub(super) struct Queue<T> {
    len_max: usize,
    lanes: HashMap<u64, LaneState<T>>,
    /// The first in line of every lane that may start a run.
    heads: BTreeSet<(Key, u64)>,
    /// Waiting jobs that have a deadline, the earliest first.
    deadlines: BTreeSet<(Instant, Key, u64)>,
    len: usize,
    arrivals: u64,
    /// The jobs that each thread runs.
    running: Vec<Vec<Running>>,
    closed: bool,
}

struct LaneState<T> {
    slots: usize,
    running: usize,
    waiting: BTreeMap<Key, Entry<T>>,
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

/// What a lane does when it is its turn.
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

    /// Put a job in line. A full queue still takes a job that an idle thread can start at once.
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

    /// Start the next run on `thread`.
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

    /// The run on `thread` has ended; `again` are those of its jobs that are to run alone. At most one lane can start a run that could not
    /// before, and `thread` is there to take it: nobody else needs to be woken, unless there are several to run again.
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

    /// Take a waiting job out of line; none when it has started or ended.
    pub(super) fn remove(&mut self, key: Key, lane: u64) -> Option<Entry<T>> {
        self.unlist(lane);
        let entry = self.lanes.get_mut(&lane).and_then(|state| state.waiting.remove(&key));
        self.list(lane);
        let entry = entry?;
        self.forget(key, &entry);
        Some(entry)
    }

    /// Take out what waits past its deadline, and name what runs past it.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<Entry<T>>, Vec<Arc<Interrupt>>) {
        let mut expired = Vec::new();
        while let Some((deadline, key, lane)) =
            self.deadlines.first().copied().filter(|(deadline, ..)| *deadline <= now)
        {
            // Whatever becomes of the job, this deadline has been seen to.
            self.deadlines.remove(&(deadline, key, lane));
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
        self.heads.clear();
        let lanes = self.lanes.values_mut();
        let waiting = lanes.flat_map(|lane| std::mem::take(&mut lane.waiting).into_values()).collect();
        (waiting, self.running.iter().flatten().map(|running| Arc::clone(&running.interrupt)).collect())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Jobs that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What the lane at `place` in line would do with `thread`.
    fn turn(&self, place: usize, number: u64, thread: usize, now: Instant) -> Option<Turn> {
        let lane = self.lanes.get(&number)?;
        let (first, leader) = lane.waiting.first_key_value()?;
        let alone = || Turn::Run { keys: vec![*first], is_trial: false };
        let (Some(fit), Some(batcher)) = (&leader.fit, &leader.lane.batcher) else { return Some(alone()) };
        // Where it is known that each is to run alone, nobody else has to be looked at.
        if batcher.runs_alone(&fit.class) {
            return Some(alone());
        }
        let candidates_max = CANDIDATES_PER_PLACE * batcher.rules().size_max as usize;
        let alike = |entry: &&Entry<T>| entry.fit.as_ref().is_some_and(|other| other.class == fit.class);
        // The first in line and the last: under overload, those between them are the ones that will be late anyway.
        let half = candidates_max / 2;
        let last = lane.waiting.len().saturating_sub(half).min(half);
        let newest: Vec<_> = lane.waiting.iter().rev().take(last).collect();
        let looked_at = lane.waiting.iter().take(half).chain(newest.into_iter().rev());
        let looked_at = looked_at.filter(|(_, entry)| alike(entry));
        let (keys, candidates): (Vec<Key>, Vec<Candidate>) =
            looked_at.map(|(key, entry)| (*key, candidate(*key, entry, now))).unzip();
        let free = |(other, running): (usize, &Vec<Running>)| other != thread && running.is_empty();
        let others_free = self.running.iter().enumerate().filter(|other| free(*other)).count();
        // Every other lane that stands in line could take one of them.
        let others_free = others_free.saturating_sub(self.heads.len() - 1);
        let situation = Situation {
            candidates: &candidates,
            waiting: lane.waiting.len(),
            free_slots: others_free.min(lane.slots.saturating_sub(lane.running + 1)),
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

    /// The priority of the first in line but for the lane at `place`.
    fn others_priority(&self, place: usize) -> Option<u32> {
        let first = self.heads.iter().nth(usize::from(place == 0))?;
        let ((priority, _), _) = first;
        Some(*priority)
    }

    /// How long those that are first in line for other lanes may wait without being late, if each is then run alone.
    fn others_slack_ns(&self, place: usize, now: Instant) -> f64 {
        let others = self.heads.iter().enumerate().filter(|(other, _)| *other != place).take(OTHERS_MAX);
        let slack_ns = others.filter_map(|(_, (key, number))| {
            let entry = self.lanes.get(number)?.waiting.get(key)?;
            let own_ns = entry.fit.as_ref().zip(entry.lane.batcher.as_ref());
            let own_ns = own_ns.and_then(|(fit, batcher)| batcher.alone_ns(fit)).unwrap_or_default();
            Some(candidate(*key, entry, now).slack_ns - own_ns)
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
            running.extend(jobs.iter().map(|(_, entry)| Running {
                deadline: entry.deadline,
                interrupt: Arc::clone(&entry.interrupt),
            }));
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
        let slots = entry.lane.slots;
        let fresh = || LaneState { slots, running: 0, waiting: BTreeMap::new() };
        self.lanes.entry(number).or_insert_with(fresh).waiting.insert(key, entry);
        self.list(number);
        self.len += 1;
    }

    /// Take a lane out of line, before what it has in line changes.
    fn unlist(&mut self, number: u64) {
        let first = self.lanes.get(&number).and_then(|lane| lane.waiting.first_key_value());
        if let Some((key, _)) = first {
            self.heads.remove(&(*key, number));
        }
    }

    /// Put a lane in line if it may start a run; forget it if nothing is left of it.
    fn list(&mut self, number: u64) {
        let Some(lane) = self.lanes.get(&number) else { return };
        match lane.waiting.first_key_value() {
            Some((key, _)) if lane.running < lane.slots => _ = self.heads.insert((*key, number)),
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

fn candidate<T>((priority, _): Key, entry: &Entry<T>, now: Instant) -> Candidate {
    let ns = |time: Duration| time.as_nanos() as f64;
    Candidate {
        items: entry.fit.as_ref().map_or(1, |fit| fit.items),
        bytes: entry.fit.as_ref().map_or(0, |fit| fit.bytes),
        priority,
        slack_ns: entry.deadline.map_or(f64::INFINITY, |at| ns(at.saturating_duration_since(now))),
        waited_ns: ns(now.saturating_duration_since(entry.arrived)),
    }
}

#[cfg(test)]
mod simulated;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::BatchRules;
    use weir_types::{Batching, BatchingMode, ElementType, Port, Profile, Signature};

    fn entry(job: u32, lane: &Lane, deadline: Option<Instant>) -> Entry<u32> {
        let (lane, arrived) = (lane.clone(), Instant::now());
        Entry { lane, arrived, deadline, interrupt: Arc::default(), fit: None, job }
    }

    const WIDE: &Lane = &Lane { number: 0, slots: 64, batcher: None };
    const NARROW: &Lane = &Lane { number: 1, slots: 1, batcher: None };

    fn take(queue: &mut Queue<u32>, thread: usize) -> Option<Entry<u32>> {
        match queue.take(thread, Instant::now()) {
            Next::Run(taken) => taken.jobs.into_iter().next().map(|(_, entry)| entry),
            Next::Wait(_) => None,
        }
    }

    fn drain(queue: &mut Queue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| {
            let entry = take(queue, 0)?;
            queue.finish(0, &entry.lane, Vec::new());
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
        let mut queue = Queue::new(100, 3);
        for (job, lane) in [(1, NARROW), (2, NARROW), (3, NARROW), (4, WIDE)] {
            assert!(queue.push(100, entry(job, lane, None)).is_ok());
        }
        assert_eq!(take(&mut queue, 0).map(|e| e.job), Some(1));
        assert_eq!(take(&mut queue, 1).map(|e| e.job), Some(4));
        assert_eq!(take(&mut queue, 2).map(|e| e.job), None);
        queue.finish(0, NARROW, Vec::new());
        assert_eq!(take(&mut queue, 0).map(|e| e.job), Some(2));
        queue.finish(0, NARROW, Vec::new());
        assert_eq!(take(&mut queue, 0).map(|e| e.job), Some(3));
        queue.finish(0, NARROW, Vec::new());
        queue.finish(1, WIDE, Vec::new());
        assert!(queue.lanes.is_empty(), "lanes without jobs are forgotten");
    }

    #[test]
    fn the_bound_counts_what_waits_and_leaving_makes_room() {
        let mut queue = Queue::new(2, 1);
        assert!(queue.push(1, entry(0, NARROW, None)).is_ok());
        assert!(take(&mut queue, 0).is_some());
        let ready = queue.push(1, entry(1, NARROW, None)).ok().unwrap();
        assert!(queue.push(1, entry(2, NARROW, None)).is_ok());
        assert!(matches!(queue.push(1, entry(3, NARROW, None)), Err(PushError::Full)));
        // Parked jobs count and can leave too.
        assert!(take(&mut queue, 0).is_none());
        assert_eq!(queue.remove(ready, 1).map(|e| e.job), Some(1));
        assert!(queue.remove(ready, 1).is_none());
        assert_eq!(queue.len(), 1);
        assert!(queue.push(1, entry(4, NARROW, None)).is_ok());
    }

    #[test]
    fn deadlines_end_what_waits_and_name_what_runs() {
        let start = Instant::now();
        let after = |ms| Some(start + Duration::from_millis(ms));
        let mut queue = Queue::new(100, 1);
        assert!(queue.push(1, entry(1, WIDE, after(10))).is_ok());
        let running = take(&mut queue, 0).unwrap();
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

    /// A lane of a model of which many items take no longer than one.
    fn flat(number: u64, slots: usize, batching: &Batching) -> Lane {
        let port = |name: &str| Port { name: name.into(), datatype: ElementType::Fp32, shape: vec![None] };
        let signature = Signature { inputs: vec![port("x")], outputs: vec![port("y")] };
        let batching = Batching { mode: BatchingMode::On, ..batching.clone() };
        let rules = BatchRules::of(&signature, &batching).unwrap().unwrap();
        let mut profile = Profile::default();
        for items in [1, 2, 4, 8, 16, 32] {
            let time = profile.run_time_ns.entry(items).or_default();
            (0..2).for_each(|_| time.add(1_000_000));
        }
        Lane { number, slots, batcher: Some(Arc::new(Batcher::new(rules, profile))) }
    }

    fn fitting(job: u32, lane: &Lane, class: u32) -> Entry<u32> {
        let fit = Some(Fit { class: [class].into(), items: 1, bytes: 4 });
        Entry { fit, ..entry(job, lane, None) }
    }

    fn jobs(next: Next<u32>) -> Vec<u32> {
        match next {
            Next::Run(taken) => taken.jobs.into_iter().map(|(_, entry)| entry.job).collect(),
            Next::Wait(_) => Vec::new(),
        }
    }

    #[test]
    fn those_of_a_class_run_together_and_free_slots_share_them() {
        let lane = flat(7, 2, &Batching::default());
        let mut queue = Queue::new(100, 2);
        for job in 0..9 {
            assert!(queue.push(100, fitting(job, &lane, u32::from(job == 4))).is_ok());
        }
        let now = Instant::now();
        assert_eq!(jobs(queue.take(0, now)), [0, 1, 2, 3]);
        assert_eq!(jobs(queue.take(1, now)), [4], "of another class, and next in line");
        assert_eq!(queue.len(), 4);
        queue.finish(0, &lane, Vec::new());
        assert_eq!(jobs(queue.take(0, now)), [5, 6, 7, 8]);
    }

    #[test]
    fn models_take_turns_by_who_came_first_however_many_one_of_them_has_in_line() {
        let (flooded, other) = (flat(7, 1, &Batching::default()), flat(8, 1, &Batching::default()));
        let mut queue = Queue::new(1_000, 1);
        for job in 0..64 {
            assert!(queue.push(100, fitting(job, &flooded, 0)).is_ok());
        }
        assert!(queue.push(100, fitting(1_000, &other, 0)).is_ok());
        for job in 64..500 {
            assert!(queue.push(100, fitting(job, &flooded, 0)).is_ok());
        }
        let now = Instant::now();
        let mut runs = Vec::new();
        while let Next::Run(taken) = queue.take(0, now) {
            queue.finish(0, &taken.lane, Vec::new());
            runs.push(taken.jobs.iter().map(|(_, entry)| entry.job).collect::<Vec<_>>());
        }
        let place = runs.iter().position(|run| run == &[1_000]).unwrap();
        assert_eq!(place, 2, "those that came before it are two batches, and no other goes first");
        assert!(runs.iter().all(|run| run.iter().all(|job| *job < 1_000) || run.len() == 1));
        assert_eq!(runs.iter().flatten().count(), 501);
    }

    #[test]
    fn the_jobs_of_a_batch_that_failed_are_in_line_again_each_alone() {
        let lane = flat(7, 1, &Batching::default());
        let mut queue = Queue::new(3, 1);
        for job in 0..3 {
            assert!(queue.push(100, fitting(job, &lane, 0)).is_ok());
        }
        let now = Instant::now();
        let Next::Run(taken) = queue.take(0, now) else { panic!("nothing was taken") };
        assert_eq!(taken.jobs.len(), 3);
        let keys: Vec<Key> = taken.jobs.iter().map(|(key, _)| *key).collect();
        queue.finish(0, &lane, taken.jobs);
        assert_eq!(queue.remove(keys[1], 7).map(|entry| entry.job), Some(1), "it cannot be withdrawn");
        assert_eq!(drain(&mut queue), [0, 2]);
        assert!(queue.lanes.is_empty() && queue.heads.is_empty());
    }

    #[test]
    fn a_delay_holds_back_only_while_the_device_is_busy_and_only_that_model() {
        let lane = flat(7, 2, &Batching { queue_delay_us_max: 500, ..Batching::default() });
        let mut queue = Queue::new(100, 2);
        assert!(queue.push(100, fitting(0, &lane, 0)).is_ok());
        let now = Instant::now();
        assert_eq!(jobs(queue.take(0, now)), [0], "nothing runs");
        assert!(queue.push(100, Entry { arrived: now, ..fitting(1, &lane, 0) }).is_ok());
        let Next::Wait(Some(until)) = queue.take(1, now) else { panic!("it was not held back") };
        assert!(until > now && until <= now + Duration::from_micros(500), "{:?}", until - now);
        assert!(queue.push(100, entry(2, NARROW, None)).is_ok());
        assert_eq!(jobs(queue.take(1, now)), [2], "another model was held back with it");
        queue.finish(1, NARROW, Vec::new());
        assert_eq!(jobs(queue.take(1, until)), [1], "its time was up");
        assert!(queue.push(100, Entry { arrived: now, ..fitting(3, &lane, 0) }).is_ok());
        queue.finish(0, &lane, Vec::new());
        queue.finish(1, &lane, Vec::new());
        assert_eq!(jobs(queue.take(0, now)), [3], "the device is idle");
    }
}
