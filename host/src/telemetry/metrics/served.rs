//! What is counted for each version of a model or tensor function that is asked for inferences.
//!
//! A version's numbers are there from its push until the last who counts for it lets go, as a function's are. They are plain atomics, read by
//! `/metrics` ([`super::triton`]) and by the protocol's statistics.

use super::{size_buckets, time_buckets};
use crate::objective::{Objective, Outcome};
use crate::telemetry::logs::now_ms;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use weir_inference::{Completion, Execution};
use weir_types::{ErrorCode, Name, TenantId, Version};

/// Batch sizes told apart for one version; others count only among all.
const BATCH_SIZES_MAX: usize = 64;

/// Whose numbers they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Owner {
    pub(super) tenant: TenantId,
    pub(super) name: Name,
    pub(super) version: Version,
}

/// The numbers of all versions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AllServed(Arc<Mutex<HashMap<Owner, Weak<Series>>>>);

impl AllServed {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        registry.register_collector(Box::new(all.clone()));
        all
    }

    /// The numbers of one version; the same for all who ask while one of them still counts.
    pub(super) fn of(&self, tenant: &TenantId, name: &Name, version: Version) -> Served {
        let owner = Owner { tenant: tenant.clone(), name: name.clone(), version };
        let mut all = self.lock();
        if let Some(series) = all.get(&owner).and_then(Weak::upgrade) {
            return Served(series);
        }
        let series = Arc::new(Series::new(owner.clone(), self.clone()));
        all.insert(owner, Arc::downgrade(&series));
        Served(series)
    }

    /// Those there are now, in the order of their names.
    pub(super) fn list(&self) -> Vec<Served> {
        let mut all: Vec<_> = self.lock().values().filter_map(Weak::upgrade).map(Served).collect();
        all.sort_by(|a, b| a.0.owner.cmp(&b.0.owner));
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Weak<Series>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of one version. Cheap to clone and to update.
#[derive(Debug, Clone)]
pub(crate) struct Served(Arc<Series>);

#[derive(Debug)]
pub(super) struct Series {
    pub(super) owner: Owner,
    /// By outcome: those that ended well, then one for each code.
    pub(super) outcomes: Vec<AtomicU64>,
    pub(super) seconds: Histogram,
    /// What became of objectives, by [`Outcome::ALL`].
    pub(super) objectives: [AtomicU64; Outcome::ALL.len()],
    pub(super) pending: AtomicU64,
    /// Items, of which an inference may have several.
    pub(super) items: AtomicU64,
    pub(super) last_ms: AtomicU64,
    pub(super) success: Counter,
    pub(super) fail: Counter,
    pub(super) queue: Counter,
    pub(super) input: Counter,
    pub(super) infer: Counter,
    pub(super) output: Counter,
    /// Runs, of which each may have answered several inferences.
    pub(super) executions: AtomicU64,
    /// The items of each run.
    pub(super) run_items: Histogram,
    /// The inferences that each run answered.
    pub(super) run_requests: Histogram,
    pub(super) input_bytes: AtomicU64,
    pub(super) padding_bytes: AtomicU64,
    pub(super) cache_hit: Counter,
    pub(super) cache_miss: Counter,
    batches: Mutex<BTreeMap<u32, Batch>>,
    all: AllServed,
}

/// How often, and how long in all.
#[derive(Debug, Default)]
pub(super) struct Counter {
    count: AtomicU64,
    time_ns: AtomicU64,
}

/// A [`Counter`] as it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) time_ns: u64,
}

/// What runs of one size took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) input: Tally,
    pub(crate) infer: Tally,
    pub(crate) output: Tally,
}

/// What a model was asked for so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Inferences, those under way and those that failed included; not those that were given an answer made for an equal one.
    pub(crate) asked: u64,
    /// Those of them that ended well.
    pub(crate) ended: u64,
    /// Their items.
    pub(crate) items: u64,
}

/// Where the time of one inference went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Items that it worked on.
    pub(crate) batch: u32,
    /// Waiting for a placement and a slot.
    pub(crate) queue: Duration,
    /// Reading its inputs.
    pub(crate) input: Duration,
    /// Running.
    pub(crate) infer: Duration,
    /// Writing its outputs.
    pub(crate) output: Duration,
    /// The run, if this is the inference to count it with.
    pub(crate) execution: Option<Execution>,
}

impl Times {
    /// Those of a run whose tensors were there and stay there.
    pub(crate) fn of(batch: u32, run: &Completion) -> Self {
        let Completion { queue_time: queue, run_time: infer, execution, .. } = *run;
        Self { batch, queue, infer, execution, ..Self::default() }
    }
}

impl Series {
    fn new(owner: Owner, all: AllServed) -> Self {
        let outcomes = (0..=ErrorCode::ALL.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            owner,
            outcomes,
            seconds: time_buckets(),
            objectives: Default::default(),
            pending: AtomicU64::default(),
            items: AtomicU64::default(),
            last_ms: AtomicU64::default(),
            success: Counter::default(),
            fail: Counter::default(),
            queue: Counter::default(),
            input: Counter::default(),
            infer: Counter::default(),
            output: Counter::default(),
            executions: AtomicU64::default(),
            run_items: size_buckets(),
            run_requests: size_buckets(),
            input_bytes: AtomicU64::default(),
            padding_bytes: AtomicU64::default(),
            cache_hit: Counter::default(),
            cache_miss: Counter::default(),
            batches: Mutex::default(),
            all,
        }
    }

    /// Count the outcome and the time since `began`.
    fn ended(&self, failed: Option<ErrorCode>, began: Instant, objective: &Objective) {
        let time = began.elapsed();
        if let Some(outcome) = objective.outcome(failed, time) {
            self.objectives[outcome as usize].fetch_add(1, Ordering::Relaxed);
        }
        let place = failed.and_then(|code| ErrorCode::ALL.iter().position(|known| *known == code));
        if let Some(outcome) = self.outcomes.get(place.map_or(0, |place| place + 1)) {
            outcome.fetch_add(1, Ordering::Relaxed);
        }
        self.seconds.observe(time.as_secs_f64());
        if failed.is_none() { &self.success } else { &self.fail }.add(time);
        self.last_ms.store(now_ms(), Ordering::Relaxed);
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    fn spent(&self, times: &Times) {
        self.items.fetch_add(u64::from(times.batch.max(1)), Ordering::Relaxed);
        self.queue.add(times.queue);
        self.input.add(times.input);
        self.infer.add(times.infer);
        self.output.add(times.output);
        if let Some(execution) = &times.execution {
            self.ran(execution, times);
        }
    }

    fn ran(&self, execution: &Execution, times: &Times) {
        let Execution { requests, items, input_bytes, padding_bytes } = *execution;
        self.executions.fetch_add(1, Ordering::Relaxed);
        self.run_items.observe(f64::from(items));
        self.run_requests.observe(f64::from(requests));
        self.input_bytes.fetch_add(input_bytes, Ordering::Relaxed);
        self.padding_bytes.fetch_add(padding_bytes, Ordering::Relaxed);
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if batches.len() < BATCH_SIZES_MAX || batches.contains_key(&items) {
            let Batch { input, infer, output } = batches.entry(items).or_default();
            input.add(times.input);
            infer.add(times.infer);
            output.add(times.output);
        }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // Unless the name is in use again.
        if all.get(&self.owner).is_some_and(|series| series.strong_count() == 0) {
            all.remove(&self.owner);
        }
    }
}

impl Counter {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.time_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Tally {
        Tally { count: self.count.load(Ordering::Relaxed), time_ns: self.time_ns.load(Ordering::Relaxed) }
    }
}

impl Tally {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time_ns += nanoseconds(time);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Served {
    /// An inference has been asked for at `began`.
    pub(crate) fn begin(&self, began: Instant) -> Serving {
        self.begin_with(began, Objective::default())
    }

    /// The same for one that has something to keep to.
    pub(crate) fn begin_with(&self, began: Instant, objective: Objective) -> Serving {
        self.0.pending.fetch_add(1, Ordering::Relaxed);
        Serving { series: self.0.clone(), began, objective, has_ended: false }
    }

    pub(super) fn series(&self) -> &Series {
        &self.0
    }

    /// When the last inference ended, in Unix milliseconds; 0 if there was none.
    pub(crate) fn last_ms(&self) -> u64 {
        self.0.last_ms.load(Ordering::Relaxed)
    }

    /// Items over all inferences that ended well.
    pub(crate) fn items(&self) -> u64 {
        self.0.items.load(Ordering::Relaxed)
    }

    /// What it was asked for so far.
    pub(crate) fn demand(&self) -> Demand {
        let Series { success, fail, pending, cache_hit, .. } = &*self.0;
        let ended = success.read().count.saturating_sub(cache_hit.read().count);
        let asked = ended + fail.read().count + pending.load(Ordering::Relaxed);
        Demand { asked, ended, items: self.items() }
    }

    /// Runs; one may have answered several inferences.
    pub(crate) fn executions(&self) -> u64 {
        self.0.executions.load(Ordering::Relaxed)
    }

    /// Inferences that ended well and those that failed, and where the time of the former went: queue, inputs, runs and outputs.
    pub(crate) fn tallies(&self) -> [Tally; 6] {
        let Series { success, fail, queue, input, infer, output, .. } = &*self.0;
        [success, fail, queue, input, infer, output].map(Counter::read)
    }

    /// Inferences that were given an answer made for an equal one, and those that looked for one and ran; with the time that looking took.
    pub(crate) fn cached(&self) -> [Tally; 2] {
        [self.0.cache_hit.read(), self.0.cache_miss.read()]
    }

    /// Where the time of runs went, by their items.
    pub(crate) fn batches(&self) -> Vec<(u32, Batch)> {
        let batches = self.0.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.iter().map(|(size, batch)| (*size, *batch)).collect()
    }
}

/// An inference under way. One that is dropped was cancelled.
#[derive(Debug)]
pub(crate) struct Serving {
    series: Arc<Series>,
    began: Instant,
    objective: Objective,
    has_ended: bool,
}

impl Serving {
    /// It has ended well.
    pub(crate) fn done(mut self, times: Times) {
        self.has_ended = true;
        self.series.spent(&times);
        self.series.ended(None, self.began, &self.objective);
    }

    /// It was given an answer made for an equal one, found within `look`.
    pub(crate) fn hit(mut self, look: Duration) {
        self.has_ended = true;
        self.series.cache_hit.add(look);
        self.series.ended(None, self.began, &self.objective);
    }

    /// It looked for an answer made for an equal one for as long as `look`, and runs.
    pub(crate) fn missed(&self, look: Duration) {
        self.series.cache_miss.add(look);
    }

    /// Another node has run it, and counts it.
    pub(crate) fn passed_on(mut self) {
        self.has_ended = true;
        self.series.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// It has failed.
    pub(crate) fn failed(mut self, code: ErrorCode) {
        self.has_ended = true;
        self.series.ended(Some(code), self.began, &self.objective);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.has_ended {
            self.series.ended(Some(ErrorCode::Cancelled), self.began, &self.objective);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(all: &AllServed) -> Served {
        all.of(&TenantId::default(), &Name::new("m").unwrap(), Version(1))
    }

    #[test]
    fn each_inference_ends_once_and_one_that_is_dropped_was_cancelled() {
        let served = served(&AllServed::default());
        let began = Instant::now();
        let execution = Execution { requests: 2, items: 5, input_bytes: 20, padding_bytes: 4 };
        let times = Times { batch: 3, infer: Duration::from_nanos(5), ..Times::default() };
        served.begin(began).done(Times { execution: Some(execution), ..times });
        served.begin(began).failed(ErrorCode::QueueFull);
        let pending = served.begin(began);
        assert_eq!(served.demand(), Demand { asked: 3, ended: 1, items: 3 });
        assert_eq!(served.series().pending.load(Ordering::Relaxed), 1);
        drop(pending);
        let [success, fail, _, _, infer, _] = served.tallies();
        assert_eq!((success.count, fail.count, infer), (1, 2, Tally { count: 1, time_ns: 5 }));
        assert_eq!((served.items(), served.series().pending.load(Ordering::Relaxed)), (3, 0));
        served.begin(began).done(Times { batch: 2, ..times });
        assert_eq!((served.items(), served.executions()), (5, 1), "it was counted with the other");
        assert_eq!(served.batches().iter().map(|(size, _)| *size).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn numbers_go_with_the_last_who_counts() {
        let all = AllServed::default();
        let (first, second) = (served(&all), served(&all));
        drop(first);
        second.begin(Instant::now()).failed(ErrorCode::Internal);
        assert_eq!(served(&all).tallies()[1].count, 1);
        drop(second);
        assert!(all.list().is_empty() && all.lock().is_empty());
        assert_eq!(served(&all).tallies()[1].count, 0);
    }
}
