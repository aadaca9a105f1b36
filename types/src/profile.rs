//! What a model costs on a kind of device: as measured by the runs themselves, and by runs that were made to find out.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The measured cost of a model on one kind of device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Bytes of device memory that the model takes while resident.
    pub resident_bytes: u64,
    /// Time to bring it into device memory, by the tier it came from (`memory`, `disk`, `object-store`).
    pub load_time_ns: BTreeMap<String, RunningMean>,
    /// Time of one run, by batch size.
    #[serde(deserialize_with = "by_batch_size")]
    pub run_time_ns: BTreeMap<u32, RunningMean>,
    /// What it did with other threads, batches and runs at once, when it was last profiled; empty if it never was.
    #[serde(default, skip_serializing_if = "<[Measured]>::is_empty")]
    pub measured: Arc<[Measured]>,
}

/// What a model did in one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Threads of each run.
    pub threads: u32,
    /// Items of each run.
    pub batch: u32,
    /// Runs at once.
    pub concurrency: u32,
    /// How many runs were measured.
    pub runs: u64,
    /// What half of the runs took at most, without waiting for the device.
    pub latency_p50_ns: u64,
    /// What 95 of 100 runs took at most.
    pub latency_p95_ns: u64,
    /// Items in a second, waits included.
    pub throughput_per_s: f64,
    /// Memory that it took beside the weights, which all share: its sessions, and of runs under way the inputs, the outputs and what lies between.
    pub memory_bytes: u64,
}

/// A mean that follows change: the first samples count equally, later ones with a weight of at least 1/32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningMean {
    /// How many samples went in.
    pub count: u64,
    /// Their mean, in the unit of the field that holds it.
    pub mean: f64,
}

impl RunningMean {
    /// Take in one sample.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the weight is at most 32 and times are far below 2^52 ns"
    )]
    pub fn add(&mut self, sample_ns: u64) {
        self.count += 1;
        let weight = 1.0 / self.count.min(32) as f64;
        self.mean += (sample_ns as f64 - self.mean) * weight;
    }

    /// The mean as a whole number.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturating is what is wanted"
    )]
    pub fn rounded(self) -> u64 {
        self.mean.round() as u64
    }
}

/// JSON's keys are text. Serde turns them into numbers by itself, but not inside a `#[serde(flatten)]`, which is where a profile travels.
fn by_batch_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, RunningMean>, D::Error> {
    let by_text = BTreeMap::<String, RunningMean>::deserialize(deserializer)?;
    by_text.into_iter().map(|(size, mean)| Ok((size.parse().map_err(D::Error::custom)?, mean))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_back_from_inside_a_flattened_answer() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Inner {
            profile: Profile,
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Outer {
            #[serde(flatten)]
            inner: Inner,
        }
        let mut profile = Profile::default();
        profile.run_time_ns.entry(8).or_default().add(5);
        let answer = Outer { inner: Inner { profile } };
        let json = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Outer>(&json).unwrap(), answer);
    }

    #[test]
    fn a_mean_follows_a_lasting_change() {
        let mut mean = RunningMean::default();
        (0..100).for_each(|_| mean.add(10));
        assert!((mean.mean - 10.0).abs() < 1e-9);
        (0..200).for_each(|_| mean.add(20));
        assert!((mean.mean - 20.0).abs() < 0.1);
    }
}
