//! Messages between a node and a worker for kernel graphs.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_worker::TensorLocation;

/// Request of a node. The worker answers every request, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KernelGraphRequest {
    /// Open a device. The first request.
    Open { driver: PathBuf, ordinal: u32, memory_bytes_max: u64 },
    /// Load a graph from its prepared file, under this number.
    Load { graph: u64, file: PathBuf },
    /// Unload a graph.
    Forget { graph: u64 },
    /// Run a graph, and write its outputs one after another, starting at `outputs_at`.
    Run { graph: u64, inputs: Vec<TensorLocation>, outputs: Vec<usize>, outputs_at: u64 },
}

/// Answer of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KernelGraphReply {
    /// The request is done.
    Done,
    /// The run is done, and took this device time. `not_captured` is the reason of a failed capture
    /// as a CUDA graph.
    Ran { outputs: Vec<TensorLocation>, device_time_ns: u64, not_captured: Option<String> },
    /// The graph cannot run with these inputs.
    Refused(String),
    /// There is not enough memory.
    OutOfMemory(String),
    /// The request failed; later requests can succeed.
    Failed(String),
    /// The context is lost, and the worker must be replaced.
    Lost(String),
}
