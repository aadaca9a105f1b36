//! How many instances of a model, set up how, meet a rate of requests within a latency, at the least memory.
//!
//! Tetris' dynamic tensor-sharing scaling (seed 004, algorithm 1, "DTS"): of the configurations that were measured, those that keep to the SLO
//! are taken in descending order of throughput per memory, until the rate is met. A batch may have to wait for its last request for as long as
//! it then runs, so that one of more than one item has half the SLO. Where no configuration keeps to the SLO, that is the answer; as it is
//! printed, the algorithm would not end.
//!
//! It is greedy, and so takes the same configuration again and again: at most one instance of it more than the least memory that any choice
//! could do with.

use serde::{Deserialize, Serialize};
use weir_types::Measured;

/// The highest rate that is looked at. With more, numbers of instances and bytes would mean nothing.
const RATE_PER_S_MAX: f64 = 1e9;

/// How an instance is set up, and what it was measured to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Threads of each run.
    pub threads: u32,
    /// Items of each run.
    pub batch: u32,
    /// Runs at once.
    pub concurrency: u32,
    /// What a run takes when so many go on at once.
    pub latency_ns: u64,
    /// Memory that an instance takes.
    pub memory_bytes: u64,
}

/// Instances that meet a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sizing {
    /// How each is set up.
    pub configuration: Configuration,
    /// How many.
    pub instances: u64,
    /// Items per second that they manage together.
    pub throughput_per_s: f64,
    /// Memory that they take together.
    pub memory_bytes: u64,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// Nothing was measured.
    #[error("nothing was measured yet")]
    Nothing,
    /// Every configuration takes too long.
    #[error("no configuration keeps to {slo_ns} ns: the best would keep to {best_ns} ns")]
    Unattainable {
        /// What was asked for.
        slo_ns: u64,
        /// The least SLO that some configuration keeps to.
        best_ns: u64,
    },
    /// The rate is no number of requests.
    #[error("a rate is a number above 0, and at most {RATE_PER_S_MAX:.0}")]
    Rate,
}

/// As slow as all but the slowest of its runs; and no quicker than its throughput says, which short runs have less of than their time alone
/// would allow.
impl From<&Measured> for Configuration {
    fn from(measured: &Measured) -> Self {
        let Measured { threads, batch, concurrency, latency_p95_ns, throughput_per_s, memory_bytes, .. } =
            *measured;
        // Little's law: so many items are under way, and so many end each second.
        let under_way = f64::from(batch) * f64::from(concurrency);
        let cycle_ns =
            if throughput_per_s > 0.0 { under_way * 1e9 / throughput_per_s } else { f64::INFINITY };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let latency_ns = latency_p95_ns.max(cycle_ns.ceil() as u64);
        Self { threads, batch, concurrency, latency_ns, memory_bytes }
    }
}

impl Configuration {
    /// Items per second.
    #[must_use]
    pub fn throughput_per_s(&self) -> f64 {
        f64::from(self.batch) * f64::from(self.concurrency) * 1e9 / self.latency_ns.max(1) as f64
    }

    /// The least SLO that it keeps to.
    #[must_use]
    pub fn slo_ns(&self) -> u64 {
        if self.batch > 1 { self.latency_ns.saturating_mul(2) } else { self.latency_ns }
    }

    fn per_byte(&self) -> f64 {
        self.throughput_per_s() / self.memory_bytes.max(1) as f64
    }
}

/// Choose instances for `rate_per_s` items per second, each of which is to be over within `slo_ns`.
///
/// # Errors
/// If no configuration keeps to the SLO.
pub fn size(rate_per_s: f64, slo_ns: u64, measured: &[Configuration]) -> Result<Sizing, SizingError> {
    if !(rate_per_s > 0.0 && rate_per_s <= RATE_PER_S_MAX) {
        return Err(SizingError::Rate);
    }
    let best_ns = measured.iter().map(Configuration::slo_ns).min().ok_or(SizingError::Nothing)?;
    let keeps = measured.iter().filter(|configuration| configuration.slo_ns() <= slo_ns);
    // Of equals the quicker, and then the smaller.
    let best = keeps.max_by(|a, b| {
        let by_worth = a.per_byte().total_cmp(&b.per_byte());
        by_worth.then(b.latency_ns.cmp(&a.latency_ns)).then(b.memory_bytes.cmp(&a.memory_bytes))
    });
    let configuration = *best.ok_or(SizingError::Unattainable { slo_ns, best_ns })?;
    // What is left of the rate after so many is nothing. Rounding must not ask for one more.
    let exact = rate_per_s / configuration.throughput_per_s();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let instances = ((exact - exact * 1e-12).ceil() as u64).max(1);
    Ok(Sizing {
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

    fn configuration() -> impl Strategy<Value = Configuration> {
        // Latencies that make throughputs whole numbers.
        let latency = prop::sample::select(vec![1_u64, 2, 4, 5, 8, 10, 20]);
        (1_u32..4, 1_u32..4, latency, 1_u64..20).prop_map(|(batch, concurrency, latency, memory_bytes)| {
            Configuration { threads: 1, batch, concurrency, latency_ns: latency * 1_000_000, memory_bytes }
        })
    }

    /// The least memory with which any choice of instances meets the rate: by trying all.
    fn least_memory(rate: u64, slo_ns: u64, measured: &[Configuration]) -> Option<u64> {
        let kept: Vec<_> = measured.iter().filter(|one| one.slo_ns() <= slo_ns).collect();
        // By items per second: the least memory for as many or more.
        let mut least = vec![Some(0_u64)];
        for wanted in 1..=rate {
            let with = |one: &&&Configuration| {
                let rest = (wanted as f64 - one.throughput_per_s()).ceil().max(0.0) as usize;
                Some(least[rest]? + one.memory_bytes)
            };
            least.push(kept.iter().filter_map(|one| with(&one)).min());
        }
        least[rate as usize]
    }

    proptest! {
        /// What is chosen keeps to the SLO and meets the rate, takes at most an instance more than the least there is, and no more at all where
        /// only one configuration will do or the rate is a multiple of what the best one manages.
        #[test]
        fn little_more_than_the_least_memory_is_taken(
            measured in prop::collection::vec(configuration(), 1..6),
            rate in 1_u64..6_000,
            slo_ns in (1_u64..50).prop_map(|ms| ms * 1_000_000),
        ) {
            let least = least_memory(rate, slo_ns, &measured);
            match size(rate as f64, slo_ns, &measured) {
                Err(error) => {
                    prop_assert_eq!(least, None);
                    let best_ns = measured.iter().map(Configuration::slo_ns).min().unwrap();
                    prop_assert_eq!(error, SizingError::Unattainable { slo_ns, best_ns });
                    prop_assert!(size(rate as f64, best_ns, &measured).is_ok());
                }
                Ok(Sizing { configuration, instances, throughput_per_s, memory_bytes }) => {
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
    fn nothing_manages_more_than_was_measured() {
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
        // Six items under way, of which one ends every ten nanoseconds.
        let slowed = Configuration::from(&measured);
        assert_eq!((slowed.latency_ns, slowed.throughput_per_s()), (60, 1e8));
        let quick = Configuration::from(&Measured { throughput_per_s: 1e12, ..measured });
        assert_eq!(quick.latency_ns, 10);
        let stuck = Configuration::from(&Measured { throughput_per_s: 0.0, ..measured });
        assert_eq!((stuck.latency_ns, stuck.slo_ns()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn what_cannot_be_met_is_said_instead_of_looked_for_without_end() {
        let slow = Configuration { threads: 1, batch: 4, concurrency: 1, latency_ns: 30, memory_bytes: 5 };
        assert_eq!(size(1.0, 59, &[slow]), Err(SizingError::Unattainable { slo_ns: 59, best_ns: 60 }));
        assert_eq!(size(1.0, 59, &[]), Err(SizingError::Nothing));
        for rate in [f64::NAN, f64::INFINITY, 1e300, 0.0] {
            assert_eq!(size(rate, 59, &[slow]), Err(SizingError::Rate), "{rate}");
        }
        let one = size(1.0, 60, &[slow]).unwrap();
        assert_eq!((one.instances, one.memory_bytes), (1, 5));
        // Nothing at all takes no time, and nothing overflows.
        let absurd = Configuration { latency_ns: 0, memory_bytes: u64::MAX, batch: u32::MAX, ..slow };
        assert!(size(1e9, u64::MAX, &[absurd]).is_ok());
    }
}
