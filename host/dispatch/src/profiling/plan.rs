//! Selects the configurations to measure, and the time for each. Pure functions of plain data.

use std::time::Duration;
use weir_types::api::ProfileRequest;
use weir_types::{Batching, Measured};

/// The limit of configurations per request.
const CONFIGURATIONS_MAX: usize = 64;
/// The default time to measure one configuration.
const DURATION_MS_DEFAULT: u64 = 1_000;
const DURATION_MS_MAX: u64 = 10_000;
/// The limit of the total measuring time.
const ALL_DURATIONS_MS_MAX: u64 = 300_000;
/// The default batch sizes.
const BATCHES: [u32; 4] = [1, 2, 4, 8];
/// The limit of threads in the default configurations.
const THREADS_UNASKED_MAX: u32 = 8;

/// The parameters of a configuration to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// The number of threads of one run.
    pub(crate) threads: u32,
    /// The batch size: the number of items in one run.
    pub batch: u32,
    /// The number of concurrent runs.
    pub(crate) concurrency: u32,
}

/// The resources for the measured runs.
#[derive(Debug, Clone, Copy)]
pub struct ProfilingResources {
    /// The maximum number of threads for one run.
    pub threads_max: u32,
    /// The number of concurrent runs on the device.
    pub slots: u32,
    /// Whether the model supports batches.
    pub takes_batches: bool,
}

/// The configurations to measure, in this order: for equal threads and concurrency, the batch size
/// increases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfilingPlan {
    /// The configurations, at least one.
    pub configurations: Vec<Configuration>,
    /// The number of requested combinations that need more cores than the device has.
    pub left_out: usize,
    /// The time to measure each configuration.
    pub duration: Duration,
    /// The latency objective: after a configuration that misses it, larger batches are skipped.
    slo: Option<Duration>,
}

/// The reason why a request cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfilingPlanError {
    /// A parameter of the request is out of bounds.
    #[error("{what} = {value} is not within 1 to {max}: {why}")]
    Bounds {
        /// The parameter, such as `threads`.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The largest valid value.
        max: u64,
        /// The origin of the limit, such as `the device's slots`, for the message.
        why: &'static str,
    },
    /// Every requested combination needs more than the device's number of processors.
    #[error(
        "every combination of these threads and concurrency takes more than the {0} processors of the device at once; reduce one of them"
    )]
    NoRoom(u32),
    /// The request has more configurations than the limit.
    #[error(
        "the request has {0} configurations; the limit is {CONFIGURATIONS_MAX}; request fewer values of threads, batch or concurrency"
    )]
    TooMany(usize),
    /// The total measuring time exceeds the limit.
    #[error(
        "{configurations} configurations of {duration_ms} ms take longer than the {ALL_DURATIONS_MS_MAX} ms that a model may be profiled for; ask for fewer, or for a shorter duration_ms"
    )]
    TooLong {
        /// The number of configurations.
        configurations: usize,
        /// The time to measure each configuration.
        duration_ms: u64,
    },
}

impl Configuration {
    /// Whether it differs from `other` only in a larger batch.
    pub fn is_larger_batch_than(&self, other: &Self) -> bool {
        self.threads == other.threads && self.concurrency == other.concurrency && self.batch > other.batch
    }
}

impl ProfilingPlan {
    /// Plans the configurations that a client requests, within `room`.
    pub fn for_request(
        request: &ProfileRequest,
        room: &ProfilingResources,
    ) -> Result<Self, ProfilingPlanError> {
        let batch_max = if room.takes_batches { Batching::SIZE_MAX_CAP } else { 1 };
        let threads = list("threads", &request.threads, room.threads_max, "the device's processors", || {
            doubling(room.threads_max.min(THREADS_UNASKED_MAX))
        })?;
        let why = if room.takes_batches { "the largest batch" } else { "the model has no batch dimension" };
        let batches = list("batch", &request.batch, batch_max, why, || {
            BATCHES.into_iter().filter(|batch| *batch <= batch_max).collect()
        })?;
        let concurrency =
            list("concurrency", &request.concurrency, room.slots, "the device's slots", || {
                let mut ends = vec![1, room.slots];
                ends.dedup();
                ends
            })?;
        let duration_ms = request.duration_ms.unwrap_or(DURATION_MS_DEFAULT);
        bounds("duration_ms", duration_ms, DURATION_MS_MAX, "for each configuration")?;
        if let Some(slo_ms) = request.slo_ms {
            bounds("slo_ms", slo_ms, u64::MAX, "an SLO of 0 ms cannot be met")?;
        }

        let asked = threads.len() * batches.len() * concurrency.len();
        let processors = room.threads_max.max(room.slots);
        let pairs = threads.iter().flat_map(|threads| concurrency.iter().map(|runs| (*threads, *runs)));
        let pairs = pairs.filter(|(threads, runs)| threads.saturating_mul(*runs) <= processors);
        let configurations: Vec<_> = pairs
            .flat_map(|(threads, concurrency)| {
                batches.iter().map(move |batch| Configuration { threads, batch: *batch, concurrency })
            })
            .collect();
        if configurations.is_empty() {
            return Err(ProfilingPlanError::NoRoom(processors));
        }
        if configurations.len() > CONFIGURATIONS_MAX {
            return Err(ProfilingPlanError::TooMany(configurations.len()));
        }
        if duration_ms * configurations.len() as u64 > ALL_DURATIONS_MS_MAX {
            return Err(ProfilingPlanError::TooLong { configurations: configurations.len(), duration_ms });
        }
        Ok(Self {
            left_out: asked - configurations.len(),
            configurations,
            duration: Duration::from_millis(duration_ms),
            slo: request.slo_ms.map(Duration::from_millis),
        })
    }

    /// Whether this configuration misses the objective, so that larger batches are skipped.
    pub fn is_missed_by(&self, measured: &Measured) -> bool {
        let slo_ns = self.slo.map(|slo| slo.as_nanos());
        slo_ns.is_some_and(|slo_ns| {
            u128::from(weir_scheduler::InstanceConfiguration::from(measured).slo_ns()) > slo_ns
        })
    }
}

/// The requested values, sorted and without duplicates; the default if there are none.
fn list(
    what: &'static str,
    asked: &[u32],
    max: u32,
    why: &'static str,
    default: impl FnOnce() -> Vec<u32>,
) -> Result<Vec<u32>, ProfilingPlanError> {
    if asked.is_empty() {
        return Ok(default());
    }
    // A list that is longer than the limit of configurations has too many values or duplicates.
    let mut list = asked.to_vec();
    list.sort_unstable();
    list.dedup();
    list.iter().try_for_each(|value| bounds(what, u64::from(*value), u64::from(max), why))?;
    Ok(list)
}

fn bounds(what: &'static str, value: u64, max: u64, why: &'static str) -> Result<(), ProfilingPlanError> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err(ProfilingPlanError::Bounds { what, value, max, why })
    }
}

/// The powers of two below `max`, and `max`.
fn doubling(max: u32) -> Vec<u32> {
    let mut list: Vec<u32> = std::iter::successors(Some(1_u32), |last| last.checked_mul(2))
        .take_while(|value| *value < max)
        .collect();
    list.push(max.max(1));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: ProfilingResources = ProfilingResources { threads_max: 4, slots: 4, takes_batches: true };

    fn plan(json: &str, room: &ProfilingResources) -> Result<ProfilingPlan, ProfilingPlanError> {
        ProfilingPlan::for_request(&serde_json::from_str(json).unwrap(), room)
    }

    fn triples(plan: &ProfilingPlan) -> Vec<(u32, u32, u32)> {
        plan.configurations.iter().map(|one| (one.threads, one.batch, one.concurrency)).collect()
    }

    #[test]
    fn default_plan_covers_what_the_device_has_room_for() {
        let all = plan("{}", &ROOM).unwrap();
        let pairs: Vec<_> = all.configurations.iter().map(|one| (one.threads, one.concurrency)).collect();
        let expected = [(1, 1), (1, 4), (2, 1), (4, 1)];
        assert_eq!(pairs, expected.iter().flat_map(|pair| [*pair; 4]).collect::<Vec<_>>());
        assert_eq!((all.left_out, all.duration), (8, Duration::from_secs(1)));
        let small =
            plan("{}", &ProfilingResources { threads_max: 1, slots: 1, takes_batches: false }).unwrap();
        assert_eq!(triples(&small), [(1, 1, 1)]);
        // For any realistic number of cores, the default plan stays within all limits.
        for processors in 1..512 {
            let room = ProfilingResources { threads_max: processors, slots: processors, takes_batches: true };
            assert!(plan("{}", &room).is_ok(), "{processors}");
        }
    }

    #[test]
    fn requested_values_are_sorted_and_deduplicated() {
        let asked =
            plan(r#"{"threads":[2,1,2],"batch":[4],"concurrency":[2],"duration_ms":10}"#, &ROOM).unwrap();
        assert_eq!(triples(&asked), [(1, 4, 2), (2, 4, 2)]);
    }

    #[test]
    fn invalid_requests_are_rejected_with_the_reason() {
        for (json, why) in [
            (r#"{"threads":[5]}"#, "threads = 5 is not within 1 to 4"),
            (r#"{"threads":[0]}"#, "threads = 0"),
            (r#"{"concurrency":[8]}"#, "the device's slots"),
            (r#"{"batch":[1025]}"#, "batch = 1025"),
            (r#"{"duration_ms":0}"#, "duration_ms = 0"),
            (r#"{"duration_ms":10001}"#, "duration_ms = 10001"),
            (r#"{"slo_ms":0}"#, "slo_ms = 0"),
            (r#"{"threads":[4],"concurrency":[2]}"#, "more than the 4 processors"),
            (
                r#"{"threads":[1,2],"concurrency":[1,2],"duration_ms":10000,"batch":[1,2,3,4,5,6,7,8]}"#,
                "take longer",
            ),
        ] {
            let error = plan(json, &ROOM).unwrap_err().to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
        let batches: Vec<String> = (1..=65).map(|batch| batch.to_string()).collect();
        let many =
            format!(r#"{{"threads":[1],"concurrency":[1],"duration_ms":1,"batch":[{}]}}"#, batches.join(","));
        assert_eq!(plan(&many, &ROOM), Err(ProfilingPlanError::TooMany(65)));
        let alone = ProfilingResources { takes_batches: false, ..ROOM };
        assert!(plan(r#"{"batch":[2]}"#, &alone).unwrap_err().to_string().contains("no batch dimension"));
    }

    #[test]
    fn batch_that_misses_the_slo_excludes_larger_batches_only() {
        let plan = plan(r#"{"slo_ms":10}"#, &ROOM).unwrap();
        let measured = |batch, latency_ms: u64| Measured {
            threads: 1,
            batch,
            concurrency: 1,
            runs: 1,
            latency_p50_ns: 1,
            latency_p95_ns: latency_ms * 1_000_000,
            throughput_per_s: f64::INFINITY,
            memory_bytes: 1,
        };
        // In the worst case, a batch waits for as long as it runs.
        assert_eq!(
            [(1, 10), (1, 11), (2, 5), (2, 6)].map(|(b, ms)| plan.is_missed_by(&measured(b, ms))),
            [false, true, false, true]
        );
        let one = Configuration { threads: 1, batch: 2, concurrency: 1 };
        assert!(Configuration { batch: 4, ..one }.is_larger_batch_than(&one));
        assert!(!Configuration { batch: 4, threads: 2, ..one }.is_larger_batch_than(&one));
        assert!(!one.is_larger_batch_than(&one));
    }
}
