//! Inference statistics of each version of a model, tensor function or workflow.
//!
//! The statistics of a version exist from its push until the last handle is dropped, like those of
//! a function. They are plain atomics, which `/metrics` ([`super::triton`]) and the statistics of
//! the inference protocol read.

use super::cold_starts::{ModelColdStart, ModelColdStarts};
use super::{size_buckets, time_buckets};
use crate::logs::now_ms;
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use weir_call::{Objective, ObjectiveOutcome};
use weir_inference::{Completion, Execution};
use weir_types::{ErrorCode, Name, TenantId, Version};

/// Batch sizes with separate statistics per version; other sizes count only in the totals.
const BATCH_SIZES_MAX: usize = 64;

/// Version that the statistics belong to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ServedVersion {
    pub(super) tenant: TenantId,
    pub(super) name: Name,
    pub(super) version: Version,
}

/// Statistics of all versions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AllServed(Arc<Mutex<HashMap<ServedVersion, Weak<ServedSeries>>>>);

impl AllServed {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        registry.register_collector(Box::new(all.clone()));
        all
    }

    /// Returns the statistics of one version. All callers share them while any handle exists.
    pub(super) fn series(&self, tenant: &TenantId, name: &Name, version: Version) -> Served {
        let owner = ServedVersion { tenant: tenant.clone(), name: name.clone(), version };
        let mut all = self.0.lock();
        if let Some(series) = all.get(&owner).and_then(Weak::upgrade) {
            return Served(series);
        }
        let series = Arc::new(ServedSeries::new(owner.clone(), self.clone()));
        all.insert(owner, Arc::downgrade(&series));
        Served(series)
    }

    /// Lists the existing statistics, sorted by owner.
    pub(super) fn list(&self) -> Vec<Served> {
        let mut all: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).map(Served).collect();
        all.sort_by(|a, b| a.0.owner.cmp(&b.0.owner));
        all
    }
}

/// Statistics of one version. Cheap to clone and to update.
#[derive(Debug, Clone)]
pub struct Served(Arc<ServedSeries>);

#[derive(Debug)]
pub(super) struct ServedSeries {
    pub(super) owner: ServedVersion,
    /// Counts by outcome: successes, then one count per error code.
    pub(super) outcomes: Vec<AtomicU64>,
    pub(super) seconds: Histogram,
    /// Outcomes of objectives, in the order of [`ObjectiveOutcome::ALL`].
    pub(super) objectives: [AtomicU64; ObjectiveOutcome::ALL.len()],
    pub(super) pending: AtomicU64,
    /// Items; an inference may have several.
    pub(super) items: AtomicU64,
    pub(super) last_ms: AtomicU64,
    pub(super) success: Counter,
    pub(super) fail: Counter,
    pub(super) phases: PhaseCounters,
    pub(super) runs: RunCounters,
    pub(super) cache: CacheCounters,
    pub(super) cold_starts: ModelColdStarts,
    all: AllServed,
}

/// Times of successful inferences, by phase.
#[derive(Debug, Default)]
pub(super) struct PhaseCounters {
    pub(super) queue: Counter,
    pub(super) input: Counter,
    pub(super) infer: Counter,
    pub(super) output: Counter,
}

/// Counts of runs; a run may answer several inferences.
#[derive(Debug)]
pub(super) struct RunCounters {
    pub(super) count: AtomicU64,
    /// Items per run.
    pub(super) items: Histogram,
    /// Inferences answered per run.
    pub(super) requests: Histogram,
    pub(super) input_bytes: AtomicU64,
    pub(super) padding_bytes: AtomicU64,
    /// Times by batch size, at most [`BATCH_SIZES_MAX`].
    batches: Mutex<BTreeMap<u32, BatchTimes>>,
}

/// Lookups in the response cache, with their times.
#[derive(Debug, Default)]
pub(super) struct CacheCounters {
    pub(super) hit: Counter,
    pub(super) miss: Counter,
}

/// Count and total time.
#[derive(Debug, Default)]
pub(super) struct Counter {
    count: AtomicU64,
    time_ns: AtomicU64,
}

/// Values read from a `Counter`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of events counted.
    pub count: u64,
    /// Their total time in nanoseconds.
    pub time_ns: u64,
}

/// Times of the runs of one batch size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTimes {
    pub input: Tally,
    pub infer: Tally,
    pub output: Tally,
}

/// Demand for a model so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DemandTotals {
    /// Inferences, including failed ones and those in progress. Not counted are inferences that
    /// received the response of an equal inference.
    pub asked: u64,
    /// Inferences in `asked` that succeeded.
    pub ended: u64,
    /// Items of the successful inferences.
    pub items: u64,
}

/// Time of one inference, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Items of the inference.
    pub batch: u32,
    /// Wait for a placement and a run slot.
    pub queue: Duration,
    /// Reading the inputs.
    pub input: Duration,
    /// Running.
    pub infer: Duration,
    /// Writing the outputs.
    pub output: Duration,
    /// The run, if it is counted with this inference.
    pub execution: Option<Execution>,
}

impl Times {
    /// Returns the times of a run, without times to read inputs and write outputs.
    pub fn from_completion(batch: u32, run: &Completion) -> Self {
        let Completion { queue_time: queue, run_time: infer, execution, .. } = *run;
        Self { batch, queue, infer, execution, ..Self::default() }
    }
}

impl ServedSeries {
    fn new(owner: ServedVersion, all: AllServed) -> Self {
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
            phases: PhaseCounters::default(),
            runs: RunCounters::new(),
            cache: CacheCounters::default(),
            cold_starts: ModelColdStarts::default(),
            all,
        }
    }

    /// Counts the outcome, and the time since `began`.
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
        self.phases.add(times);
        if let Some(execution) = &times.execution {
            self.runs.add(execution, times);
        }
    }
}

impl PhaseCounters {
    fn add(&self, times: &Times) {
        self.queue.add(times.queue);
        self.input.add(times.input);
        self.infer.add(times.infer);
        self.output.add(times.output);
    }
}

impl RunCounters {
    fn new() -> Self {
        Self {
            count: AtomicU64::default(),
            items: size_buckets(),
            requests: size_buckets(),
            input_bytes: AtomicU64::default(),
            padding_bytes: AtomicU64::default(),
            batches: Mutex::default(),
        }
    }

    fn add(&self, execution: &Execution, times: &Times) {
        let Execution { requests, items, input_bytes, padding_bytes } = *execution;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.items.observe(f64::from(items));
        self.requests.observe(f64::from(requests));
        self.input_bytes.fetch_add(input_bytes, Ordering::Relaxed);
        self.padding_bytes.fetch_add(padding_bytes, Ordering::Relaxed);
        let mut batches = self.batches.lock();
        if batches.len() < BATCH_SIZES_MAX || batches.contains_key(&items) {
            let BatchTimes { input, infer, output } = batches.entry(items).or_default();
            input.add(times.input);
            infer.add(times.infer);
            output.add(times.output);
        }
    }
}

impl Drop for ServedSeries {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        // Keep the entry if the name is in use again.
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
    /// Counts a load of the model that a call waited for.
    pub fn cold_start(&self, cold_start: ModelColdStart) {
        self.0.cold_starts.add(cold_start);
    }
}

impl Served {
    /// Counts an inference that arrived at `began`.
    pub fn begin(&self, began: Instant) -> Serving {
        self.begin_with(began, Objective::default())
    }

    /// Counts an inference that arrived at `began` and has an objective.
    pub fn begin_with(&self, began: Instant, objective: Objective) -> Serving {
        self.0.pending.fetch_add(1, Ordering::Relaxed);
        Serving { series: self.0.clone(), began, objective, has_ended: false }
    }

    pub(super) fn series(&self) -> &ServedSeries {
        &self.0
    }

    /// Returns the end of the last inference, in Unix milliseconds; 0 if there was none.
    pub fn last_ms(&self) -> u64 {
        self.0.last_ms.load(Ordering::Relaxed)
    }

    /// Returns the items of all successful inferences.
    pub fn items(&self) -> u64 {
        self.0.items.load(Ordering::Relaxed)
    }

    /// Returns the demand so far.
    pub fn demand(&self) -> DemandTotals {
        let ServedSeries { success, fail, pending, cache, .. } = &*self.0;
        let ended = success.read().count.saturating_sub(cache.hit.read().count);
        let asked = ended + fail.read().count + pending.load(Ordering::Relaxed);
        DemandTotals { asked, ended, items: self.items() }
    }

    /// Returns the number of runs; a run may answer several inferences.
    pub fn executions(&self) -> u64 {
        self.0.runs.count.load(Ordering::Relaxed)
    }

    /// Returns the successful and the failed inferences, and the time of the successful ones by
    /// phase: queue, inputs, runs and outputs.
    pub fn tallies(&self) -> [Tally; 6] {
        let ServedSeries { success, fail, phases, .. } = &*self.0;
        let PhaseCounters { queue, input, infer, output } = phases;
        [success, fail, queue, input, infer, output].map(Counter::read)
    }

    /// Returns the cache hits and the cache misses, with the time of the lookups.
    pub fn cached(&self) -> [Tally; 2] {
        [self.0.cache.hit.read(), self.0.cache.miss.read()]
    }

    /// Returns the times of runs, by batch size.
    pub fn batches(&self) -> Vec<(u32, BatchTimes)> {
        let batches = self.0.runs.batches.lock();
        batches.iter().map(|(size, batch)| (*size, *batch)).collect()
    }
}

/// An inference in progress. A drop before its end counts it as cancelled.
#[derive(Debug)]
pub struct Serving {
    series: Arc<ServedSeries>,
    began: Instant,
    objective: Objective,
    has_ended: bool,
}

impl Serving {
    /// Counts a successful inference.
    pub fn done(mut self, times: Times) {
        self.has_ended = true;
        self.series.spent(&times);
        self.series.ended(None, self.began, &self.objective);
    }

    /// Counts an inference that got a response made for another, after a lookup of `look`.
    pub fn hit(mut self, look: Duration) {
        self.has_ended = true;
        self.series.cache.hit.add(look);
        self.series.ended(None, self.began, &self.objective);
    }

    /// Counts a cache miss after a lookup of `look`; the inference runs.
    pub fn missed(&self, look: Duration) {
        self.series.cache.miss.add(look);
    }

    /// Ends an inference that another node ran and counts.
    pub fn forwarded(mut self) {
        self.has_ended = true;
        self.series.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a failed inference.
    pub fn failed(mut self, code: ErrorCode) {
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
        all.series(&TenantId::default(), &Name::new("m").unwrap(), Version(1))
    }

    #[test]
    fn inference_is_counted_once_and_a_drop_counts_as_cancelled() {
        let served = served(&AllServed::default());
        let began = Instant::now();
        let execution = Execution { requests: 2, items: 5, input_bytes: 20, padding_bytes: 4 };
        let times = Times { batch: 3, infer: Duration::from_nanos(5), ..Times::default() };
        served.begin(began).done(Times { execution: Some(execution), ..times });
        served.begin(began).failed(ErrorCode::QueueFull);
        let pending = served.begin(began);
        assert_eq!(served.demand(), DemandTotals { asked: 3, ended: 1, items: 3 });
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
    fn statistics_live_until_the_last_handle_is_dropped() {
        let all = AllServed::default();
        let first = served(&all);
        let second = served(&all);
        drop(first);
        second.begin(Instant::now()).failed(ErrorCode::Internal);
        assert_eq!(served(&all).tallies()[1].count, 1);
        drop(second);
        assert!(all.list().is_empty() && all.0.lock().is_empty());
        assert_eq!(served(&all).tallies()[1].count, 0);
    }
}
