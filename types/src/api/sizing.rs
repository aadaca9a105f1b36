//! Measuring a model in several configurations, and choosing one of them.

use crate::{ErrorCode, Measured, Name, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The body of `POST /v1/models/{name}/profile`. Whatever is left out, the node chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileRequest {
    /// Which version; none for the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Threads of each run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// Items of each run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<u32>,
    /// Runs at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub concurrency: Vec<u32>,
    /// How long each configuration is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Leave out larger batches where one does not keep to this already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// By input: how large its dimensions are to be that may vary, in their order, the batch left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dims: BTreeMap<String, Vec<u32>>,
}

/// How far it is: a line of the answer of `POST /v1/models/{name}/profile`, which is newline-delimited JSON. The last is `done` or `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ProfileEvent {
    /// It begins.
    Started {
        /// The version that is measured.
        version: Version,
        /// Where.
        device: String,
        /// Configurations that are to be measured.
        configurations: usize,
        /// Those that would take more processors than there are, and are left out.
        left_out: usize,
        /// How long each is measured.
        duration_ms: u64,
    },
    /// A configuration has been measured.
    Measured {
        /// What came of it.
        #[serde(flatten)]
        measured: Measured,
    },
    /// A configuration could not be measured, or is not worth it.
    Skipped {
        /// Threads of each run.
        threads: u32,
        /// Items of each run.
        batch: u32,
        /// Runs at once.
        concurrency: u32,
        /// Why.
        why: String,
    },
    /// It is over, and what was measured is kept.
    Done {
        /// Configurations that were measured.
        measured: usize,
        /// What kept it from measuring the rest, if anything did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incomplete: Option<String>,
    },
    /// It has failed; what was kept before still is.
    Failed {
        /// Why.
        error: String,
        /// The same, for programs.
        code: ErrorCode,
    },
}

/// What serves a rate of requests within a latency at the least memory: the answer of `GET /v1/models/{name}/size`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSizing {
    /// The model.
    pub name: Name,
    /// Which version.
    pub version: Version,
    /// The kind of device that it was measured on.
    pub kind: String,
    /// Items per second that were asked for.
    pub rate_per_s: f64,
    /// What each of them was to keep to.
    pub slo_ms: f64,
    /// How an instance is set up.
    pub configuration: Measured,
    /// How many.
    pub instances: u64,
    /// Runs at once, of all of them.
    pub sessions: u64,
    /// Items per second that they manage together.
    pub throughput_per_s: f64,
    /// Memory that they take together beside the weights.
    pub memory_bytes: u64,
    /// Memory of the weights and a first session, once on each node.
    pub resident_bytes: u64,
    /// Runs at once on the node's device of that kind.
    pub slots: u32,
}
