//! Configuration of models and their runs.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use weir_onnx::{CpuWorkerConfig, OnnxRuntimeConfig, OperatorPattern};
use weir_storage::blobs::STAGED_PREFIX;

const MIB: u64 = 1 << 20;

/// Models: the backend, validation, and the memory and concurrency of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsConfig {
    /// Backend that runs models on the CPU.
    pub backend: BackendKind,
    /// Where models run on the CPU: `process`, in a worker process per tenant, or `in-process`. None:
    /// `process` as soon as the node has a token file, belongs to a cluster or listens beyond
    /// loopback.
    pub isolation: Option<Isolation>,
    /// Refuses to start a node whose system does not provide every layer of confinement for worker
    /// processes.
    pub require_confinement: bool,
    /// Operators that models may use in addition to those of `ai.onnx`, of `ai.onnx.ml`, and of
    /// `com.microsoft` that ONNX Runtime's optimizer makes: `DOMAIN.OPERATOR`, `DOMAIN.*`, or `*`.
    pub operators_allowed: Vec<OperatorPattern>,
    /// Path of `libonnxruntime.so`, if the library is neither next to the executable nor in the
    /// loader's search path.
    pub onnxruntime: Option<PathBuf>,
    /// Time after its last use at which a model leaves the memory of an accelerator, for models
    /// whose manifest has no `keep_alive_ms`. On the CPU, such models stay until room is needed.
    pub keep_alive_ms: u64,
    /// Largest model that can be pushed.
    pub model_bytes_max: u64,
    /// Versions of a model that are kept. A push removes the oldest ones above it that are neither
    /// the newest nor in use. 0: all versions are kept.
    pub versions_keep: usize,
    /// Memory limit of resident models, for devices that do not override it.
    pub memory_bytes_max: u64,
    /// Total working memory of model runs, for the tensors between their inputs and outputs.
    pub run_memory_bytes_max: u64,
    /// Maximum time of a run in a worker process. A worker whose run takes longer is stopped.
    pub run_wall_ms_max: u64,
    /// Concurrent model runs, for devices that do not override it. None: one per core on the CPU, 4
    /// on a GPU.
    pub slots: Option<u32>,
    /// Model runs that may wait for a run slot.
    pub run_queue_len_max: usize,
    /// Memory limit of the process that validates and optimizes a model.
    pub validate_memory_bytes_max: u64,
    /// CPU time limit of the process that validates and optimizes a model.
    pub validate_cpu_ms_max: u64,
}

/// Model backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// ONNX Runtime on the CPU.
    #[default]
    Onnxruntime,
    /// Models that declare their own load and run times; for tests and scheduler experiments.
    Fake,
}

/// Where models run on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// In a worker process per tenant: a hostile model ends its worker, and nothing else.
    Process,
    /// In the node's process: the least overhead, for models that the node's operator trusts.
    InProcess,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            backend: BackendKind::default(),
            isolation: None,
            require_confinement: false,
            operators_allowed: Vec::new(),
            onnxruntime: None,
            keep_alive_ms: 900_000,
            model_bytes_max: 4096 * MIB,
            versions_keep: 10,
            memory_bytes_max: 4096 * MIB,
            run_memory_bytes_max: 2048 * MIB,
            run_wall_ms_max: 300_000,
            slots: None,
            run_queue_len_max: 4_096,
            validate_memory_bytes_max: 8192 * MIB,
            validate_cpu_ms_max: 300_000,
        }
    }
}

impl ModelsConfig {
    /// The configuration of ONNX Runtime, which runs models on the CPU and validates them. `workers`
    /// are the worker processes that run them, if any.
    #[must_use]
    pub fn onnx_runtime(&self, workers: Option<CpuWorkerConfig>) -> OnnxRuntimeConfig {
        OnnxRuntimeConfig {
            workers,
            operators_allowed: self.operators_allowed.clone(),
            library: self.onnxruntime.clone(),
            run_memory_bytes_max: self.run_memory_bytes_max,
            prepare_command: None,
            prepare_memory_bytes_max: self.validate_memory_bytes_max,
            prepare_cpu_ms_max: self.validate_cpu_ms_max,
        }
    }

    /// The configuration of worker processes for `slots` concurrent runs. Their folders are in
    /// `folder`, in addition to the models' files; each may hold `tensor_bytes_max` of inputs and
    /// outputs.
    #[must_use]
    pub fn cpu_workers(&self, folder: PathBuf, slots: usize, tensor_bytes_max: u64) -> CpuWorkerConfig {
        CpuWorkerConfig {
            command: None,
            folder,
            folder_prefix: STAGED_PREFIX.to_owned(),
            slots,
            run_time_max: Duration::from_millis(self.run_wall_ms_max),
            memory_bytes_max: self.memory_bytes_max,
            run_memory_bytes_max: self.run_memory_bytes_max,
            tensor_bytes_max,
            require_confinement: self.require_confinement,
        }
    }
}
