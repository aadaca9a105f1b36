//! Capacity planning: how many instances of a model, in which configuration, serve a request rate
//! within a latency limit, at the least memory.
//!
//! This is the dynamic tensor-sharing scaling of the Tetris paper (algorithm 1, "DTS"). Of the
//! measured configurations that meet the SLO, the algorithm takes those with the highest throughput
//! per byte of memory, until they serve the rate. A batch may wait for its last request for as long
//! as it then runs, so a configuration with batches of more than one item has half the SLO as its
//! latency limit. If no configuration meets the SLO, the result is an error; the algorithm as
//! printed would not terminate.
//!
//! The greedy choice takes the same configuration repeatedly. Its memory exceeds the minimum by at
//! most one instance of that configuration.

use serde::{Deserialize, Serialize};
use weir_types::Measured;

/// Maximum supported rate. Above it, the numbers of instances and bytes would be meaningless.
const RATE_PER_S_MAX: f64 = 1e9;

/// An instance's configuration and measured performance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceConfiguration {
    /// Threads per run.
    pub threads: u32,
    /// Items per run.
    pub batch: u32,
    /// Concurrent runs.
    pub concurrency: u32,
    /// Latency of a run with `concurrency` runs in progress.
    pub latency_ns: u64,
    /// Memory per instance.
    pub memory_bytes: u64,
}

/// The instances that serve a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CapacityPlan {
    /// Configuration of each instance.
    pub configuration: InstanceConfiguration,
    /// Number of instances.
    pub instances: u64,
    /// Items per second of all instances together.
    pub throughput_per_s: f64,
    /// Memory of all instances together.
    pub memory_bytes: u64,
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    /// No configuration was measured.
    #[error("no configuration was measured yet")]
    Nothing,
    /// No configuration meets the SLO.
    #[error("no configuration meets an SLO of {slo_ns} ns; the lowest SLO that one meets is {best_ns} ns")]
    Unattainable {
        /// The requested SLO.
        slo_ns: u64,
        /// The lowest SLO that a configuration meets.
        best_ns: u64,
    },
    /// The rate is not a positive number, or too high.
    #[error("a rate is a number above 0 and at most {RATE_PER_S_MAX:.0}")]
    Rate,
}

/// Takes the 95th percentile of the latency, or the latency implied by the measured throughput if
/// that is higher: short runs have a lower throughput than their latency alone would allow.
impl From<&Measured> for InstanceConfiguration {
    fn from(measured: &Measured) -> Self {
        let Measured { threads, batch, concurrency, latency_p95_ns, throughput_per_s, memory_bytes, .. } =
            *measured;
        // Little's law: the items in progress divided by the throughput.
        let under_way = f64::from(batch) * f64::from(concurrency);
        let cycle_ns =
            if throughput_per_s > 0.0 { under_way * 1e9 / throughput_per_s } else { f64::INFINITY };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let latency_ns = latency_p95_ns.max(cycle_ns.ceil() as u64);
        Self { threads, batch, concurrency, latency_ns, memory_bytes }
    }
}

impl InstanceConfiguration {
    /// Items per second.
    #[must_use]
    pub fn throughput_per_s(&self) -> f64 {
        f64::from(self.batch) * f64::from(self.concurrency) * 1e9 / self.latency_ns.max(1) as f64
    }

    /// The lowest SLO that the configuration meets.
    #[must_use]
    pub fn slo_ns(&self) -> u64 {
        if self.batch > 1 { self.latency_ns.saturating_mul(2) } else { self.latency_ns }
    }

    fn per_byte(&self) -> f64 {
        self.throughput_per_s() / self.memory_bytes.max(1) as f64
    }
}

/// Chooses instances for `rate_per_s` items per second, each completed within `slo_ns`.
///
/// # Errors
/// If no configuration meets the SLO.
pub fn plan_capacity(
    rate_per_s: f64,
    slo_ns: u64,
    measured: &[InstanceConfiguration],
) -> Result<CapacityPlan, CapacityError> {
    if !(rate_per_s > 0.0 && rate_per_s <= RATE_PER_S_MAX) {
        return Err(CapacityError::Rate);
    }
    let best_ns = measured.iter().map(InstanceConfiguration::slo_ns).min().ok_or(CapacityError::Nothing)?;
    let keeps = measured.iter().filter(|configuration| configuration.slo_ns() <= slo_ns);
    // Ties go to the lower latency, then to the smaller memory.
    let best = keeps.max_by(|a, b| {
        let by_worth = a.per_byte().total_cmp(&b.per_byte());
        by_worth.then(b.latency_ns.cmp(&a.latency_ns)).then(b.memory_bytes.cmp(&a.memory_bytes))
    });
    let configuration = *best.ok_or(CapacityError::Unattainable { slo_ns, best_ns })?;
    // The tolerance of 1e-12 keeps a rounding error from adding an instance.
    let exact = rate_per_s / configuration.throughput_per_s();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let instances = ((exact - exact * 1e-12).ceil() as u64).max(1);
    Ok(CapacityPlan {
        configuration,
        instances,
        throughput_per_s: configuration.throughput_per_s() * instances as f64,
        memory_bytes: configuration.memory_bytes.saturating_mul(instances),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn configuration() -> impl Strategy<Value = InstanceConfiguration> {
        // Latencies for which throughputs are whole numbers.
        let latency = prop::sample::select(vec![1_u64, 2, 4, 5, 8, 10, 20]);
        (1_u32..4, 1_u32..4, latency, 1_u64..20).prop_map(|(batch, concurrency, latency, memory_bytes)| {
            InstanceConfiguration {
                threads: 1,
                batch,
                concurrency,
                latency_ns: latency * 1_000_000,
                memory_bytes,
            }
        })
    }

    /// The least memory with which any choice of instances serves the rate, by exhaustive search.
    fn least_memory(rate: u64, slo_ns: u64, measured: &[InstanceConfiguration]) -> Option<u64> {
        let kept: Vec<_> = measured.iter().filter(|one| one.slo_ns() <= slo_ns).collect();
        // Least memory by items per second, for at least that rate.
        let mut least = vec![Some(0_u64)];
        for wanted in 1..=rate {
            let with = |one: &&&InstanceConfiguration| {
                let rest = (wanted as f64 - one.throughput_per_s()).ceil().max(0.0) as usize;
                Some(least[rest]? + one.memory_bytes)
            };
            least.push(kept.iter().filter_map(|one| with(&one)).min());
        }
        least[rate as usize]
    }

    proptest! {
        /// The result meets the SLO and serves the rate. It needs at most one instance more than
        /// the minimum memory, and exactly the minimum if a single configuration qualifies or the
        /// rate is a multiple of the best configuration's throughput.
        #[test]
        fn plan_exceeds_least_memory_by_less_than_one_instance(
            measured in prop::collection::vec(configuration(), 1..6),
            rate in 1_u64..6_000,
            slo_ns in (1_u64..50).prop_map(|ms| ms * 1_000_000),
        ) {
            let least = least_memory(rate, slo_ns, &measured);
            match plan_capacity(rate as f64, slo_ns, &measured) {
                Err(error) => {
                    prop_assert_eq!(least, None);
                    let best_ns = measured.iter().map(InstanceConfiguration::slo_ns).min().unwrap();
                    prop_assert_eq!(error, CapacityError::Unattainable { slo_ns, best_ns });
                    prop_assert!(plan_capacity(rate as f64, best_ns, &measured).is_ok());
                }
                Ok(CapacityPlan { configuration, instances, throughput_per_s, memory_bytes }) => {
                    let least = least.unwrap();
                    prop_assert!(configuration.slo_ns() <= slo_ns && throughput_per_s * (1.0 + 1e-9) >= rate as f64);
                    prop_assert!((instances - 1) as f64 * configuration.throughput_per_s() < rate as f64, "one too many");
                    prop_assert!(memory_bytes >= least && memory_bytes < least + configuration.memory_bytes);
                    let kept: Vec<_> = measured.iter().filter(|one| one.slo_ns() <= slo_ns).collect();
                    let is_whole = rate as f64 % configuration.throughput_per_s() == 0.0;
                    if is_whole || kept.iter().all(|one| **one == configuration) {
                        prop_assert_eq!(memory_bytes, least);
                    }
                }
            }
        }
    }

    #[test]
    fn configuration_never_exceeds_measured_throughput() {
        let measured = Measured {
            threads: 1,
            batch: 2,
            concurrency: 3,
            runs: 9,
            latency_p50_ns: 5,
            latency_p95_ns: 10,
            throughput_per_s: 1e8,
            memory_bytes: 7,
        };
        // Little's law: six items in progress, one completed every ten nanoseconds.
        let slowed = InstanceConfiguration::from(&measured);
        assert_eq!((slowed.latency_ns, slowed.throughput_per_s()), (60, 1e8));
        let quick = InstanceConfiguration::from(&Measured { throughput_per_s: 1e12, ..measured });
        assert_eq!(quick.latency_ns, 10);
        let stuck = InstanceConfiguration::from(&Measured { throughput_per_s: 0.0, ..measured });
        assert_eq!((stuck.latency_ns, stuck.slo_ns()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn unattainable_slos_and_invalid_rates_are_errors() {
        let slow =
            InstanceConfiguration { threads: 1, batch: 4, concurrency: 1, latency_ns: 30, memory_bytes: 5 };
        assert_eq!(
            plan_capacity(1.0, 59, &[slow]),
            Err(CapacityError::Unattainable { slo_ns: 59, best_ns: 60 })
        );
        assert_eq!(plan_capacity(1.0, 59, &[]), Err(CapacityError::Nothing));
        for rate in [f64::NAN, f64::INFINITY, 1e300, 0.0] {
            assert_eq!(plan_capacity(rate, 59, &[slow]), Err(CapacityError::Rate), "{rate}");
        }
        let one = plan_capacity(1.0, 60, &[slow]).unwrap();
        assert_eq!((one.instances, one.memory_bytes), (1, 5));
        // A latency of 0 and a saturating amount of memory are accepted.
        let absurd = InstanceConfiguration { latency_ns: 0, memory_bytes: u64::MAX, batch: u32::MAX, ..slow };
        assert!(plan_capacity(1e9, u64::MAX, &[absurd]).is_ok());
    }
}
