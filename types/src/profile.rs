//! Measured cost of a model on a kind of device, from regular runs and from profiling runs.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The measured cost of a model on one kind of device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Bytes of device memory that the model takes while resident.
    pub resident_bytes: u64,
    /// Time to load the model into device memory, by the tier of its files: `memory` or
    /// `disk`.
    pub load_time_ns: BTreeMap<String, RunningMean>,
    /// Time of one run, by batch size.
    #[serde(deserialize_with = "by_batch_size")]
    pub run_time_ns: BTreeMap<u32, RunningMean>,
    /// Results of the latest profiling over threads, batch sizes and concurrency; empty if the
    /// model was never profiled.
    #[serde(default, skip_serializing_if = "<[Measured]>::is_empty")]
    pub measured: Arc<[Measured]>,
}

/// Measured performance of a model in one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Threads per run.
    pub threads: u32,
    /// Items per run.
    pub batch: u32,
    /// Concurrent runs.
    pub concurrency: u32,
    /// Number of measured runs.
    pub runs: u64,
    /// Median run time, without waiting for the device.
    pub latency_p50_ns: u64,
    /// 95th percentile of the run time.
    pub latency_p95_ns: u64,
    /// Throughput in items per second, waits included.
    pub throughput_per_s: f64,
    /// Memory without the shared weights: sessions, and the inputs, outputs and intermediate
    /// results of active runs.
    pub memory_bytes: u64,
}

/// Exponentially weighted mean. The first 32 samples count equally; each later sample has a weight
/// of 1/32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningMean {
    /// Number of samples.
    pub count: u64,
    /// Mean of the samples, in the unit of the containing field.
    pub mean: f64,
}

impl RunningMean {
    /// Adds one sample.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the weight is at most 32 and times are far below 2^52 ns"
    )]
    pub fn add(&mut self, sample_ns: u64) {
        self.count += 1;
        let weight = 1.0 / self.count.min(32) as f64;
        self.mean += (sample_ns as f64 - self.mean) * weight;
    }

    /// The mean, rounded to an integer.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "values out of range saturate"
    )]
    pub fn rounded(self) -> u64 {
        self.mean.round() as u64
    }
}

/// Reads a map keyed by batch size. JSON keys are text, and serde does not parse numeric keys
/// inside `#[serde(flatten)]`, which contains the profile.
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
