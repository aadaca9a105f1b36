//! Messages between a node and a worker of models on the CPU. Each request is answered before the
//! next request on the connection is sent.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_inference::Prepared;
use weir_types::{ModelId, TenantId};
use weir_worker::{TensorLocation, WireError};

/// Request of a node. The node assigns the numbers of models, sessions and runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CpuWorkerRequest {
    /// Load ONNX Runtime. The first request.
    Open,
    /// Load a model, whose files are in the worker's folder.
    Load { model: u64, id: ModelId, prepared: Prepared },
    /// Unload a model without sessions.
    Unload { model: u64 },
    /// Open a session of a model, whose runs use this number of threads.
    Session { model: u64, session: u64, threads: u32 },
    /// Close a session.
    Forget { session: u64 },
    /// Run, and write the wanted outputs one after another to the connection's memory.
    Run { session: u64, run: u64, inputs: Vec<TensorLocation>, outputs: Vec<usize> },
    /// Free unused memory.
    Trim,
    /// Report the memory of runs.
    Memory,
}

/// Settings of a worker, which it needs before it loads ONNX Runtime: an argument of its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkerSettings {
    /// The tenant, for process listings.
    pub(super) tenant: TenantId,
    /// Path of ONNX Runtime.
    pub(super) library: PathBuf,
    /// Folder with the files of the worker's models.
    pub(super) folder: PathBuf,
    /// Limit of the worker's open files.
    pub(super) open_files_max: u64,
    /// Limit of the worker's address space.
    pub(super) memory_bytes_max: u64,
    /// Limit of the memory of runs for intermediate tensors.
    pub(super) run_memory_bytes_max: u64,
    /// Limit of the memory for inputs and outputs.
    pub(super) tensor_bytes_max: u64,
    /// End if the system does not provide a layer of confinement.
    pub(super) require_confinement: bool,
}

/// Answer of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CpuWorkerReply {
    /// The request is done.
    Done,
    /// The run is done.
    Ran { outputs: Vec<TensorLocation> },
    /// Memory that runs hold for intermediate tensors.
    Memory { bytes: u64 },
    /// The request failed; later requests can succeed.
    Failed(WireError),
}
