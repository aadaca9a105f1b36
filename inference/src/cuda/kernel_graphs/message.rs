//! What a node and a worker for users' kernels say to each other.

use crate::cuda::process::Part;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a node asks of a worker. Each is answered, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Take hold of a device: the first.
    Open { driver: PathBuf, ordinal: u32, memory_bytes_max: u64 },
    /// Load a graph from the file that preparing it left, to be known by a number.
    Load { graph: u64, file: PathBuf },
    /// Let go of a graph.
    Forget { graph: u64 },
    /// Run a graph, and leave its outputs behind each other from a place on.
    Run { graph: u64, inputs: Vec<Part>, outputs: Vec<usize>, outputs_at: u64 },
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// It is done.
    Done,
    /// It has run, and has taken the device so long. Where the run was to be captured as a graph and was not, it says why.
    Ran { outputs: Vec<Part>, device_time_ns: u64, not_captured: Option<String> },
    /// It cannot run with these inputs.
    Refused(String),
    /// There is not enough memory for it.
    OutOfMemory(String),
    /// It has failed, and others may work.
    Failed(String),
    /// The context is lost, and the worker with it.
    Lost(String),
}
