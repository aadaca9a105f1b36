//! Model profiling and capacity planning.

use crate::{ErrorCode, Measured, Name, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Body of `POST /v1/models/{name}/profile`. The node chooses the values of absent fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileRequest {
    /// Version; `None` for the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Threads per run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// Items per run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<u32>,
    /// Concurrent runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub concurrency: Vec<u32>,
    /// Measurement time per configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Latency bound. Once a batch size exceeds the bound, larger batches are skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// Sizes of the variable dimensions by input name, in order, without the batch dimension.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dims: BTreeMap<String, Vec<u32>>,
}

/// Progress of a profiling request: one line of the newline-delimited JSON that `POST
/// /v1/models/{name}/profile` returns. The last line is `done` or `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ProfileEvent {
    /// Profiling started.
    Started {
        /// Version under measurement.
        version: Version,
        /// Device of the measurement.
        device: String,
        /// Number of configurations to measure.
        configurations: usize,
        /// Number of configurations left out because they need more processors than the device has.
        left_out: usize,
        /// Measurement time per configuration.
        duration_ms: u64,
    },
    /// One configuration was measured.
    Measured {
        /// Result of the measurement.
        #[serde(flatten)]
        measured: Measured,
    },
    /// One configuration was skipped, because it failed or because measuring it is not worthwhile.
    Skipped {
        /// Threads per run.
        threads: u32,
        /// Items per run.
        batch: u32,
        /// Concurrent runs.
        concurrency: u32,
        /// Reason.
        why: String,
    },
    /// Profiling finished and its results are stored.
    Done {
        /// Number of measured configurations.
        measured: usize,
        /// Reason why the remaining configurations were not measured, if some were not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incomplete: Option<String>,
    },
    /// Profiling failed; earlier results are kept.
    Failed {
        /// Description of the failure.
        error: String,
        /// Error code for programs.
        code: ErrorCode,
    },
}

/// Smallest deployment, by memory, that serves a request rate within a latency. Response of `GET
/// /v1/models/{name}/capacity`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCapacity {
    /// Name of the model.
    pub name: Name,
    /// Version of the model.
    pub version: Version,
    /// Kind of the measured device.
    pub kind: String,
    /// Requested rate, in items per second.
    pub rate_per_s: f64,
    /// Requested latency bound per item.
    pub slo_ms: f64,
    /// Configuration of one instance.
    pub configuration: Measured,
    /// Number of instances.
    pub instances: u64,
    /// Concurrent runs over all instances.
    pub sessions: u64,
    /// Throughput of all instances together, in items per second.
    pub throughput_per_s: f64,
    /// Memory of all instances together, without the weights.
    pub memory_bytes: u64,
    /// Memory of the weights and a first session, needed once per node.
    pub resident_bytes: u64,
    /// Limit of concurrent runs on the node's device of this kind.
    pub slots: u32,
}
