//! Configuration of models and their runs.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_inference::OnnxRuntimeConfig;

const MIB: u64 = 1 << 20;

/// Models: the backend, validation, and the memory and concurrency of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsConfig {
    /// Backend that runs models on the CPU.
    pub backend: BackendKind,
    /// Path of `libonnxruntime.so`, if the library is neither beside the binary nor in the loader's
    /// search path.
    pub onnxruntime: Option<PathBuf>,
    /// Largest model that can be pushed.
    pub model_bytes_max: u64,
    /// Memory limit of resident models, for devices that do not override it.
    pub memory_bytes_max: u64,
    /// Total working memory of model runs, for the tensors between their inputs and outputs.
    pub run_memory_bytes_max: u64,
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

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            backend: BackendKind::default(),
            onnxruntime: None,
            model_bytes_max: 4096 * MIB,
            memory_bytes_max: 4096 * MIB,
            run_memory_bytes_max: 2048 * MIB,
            slots: None,
            run_queue_len_max: 4_096,
            validate_memory_bytes_max: 8192 * MIB,
            validate_cpu_ms_max: 300_000,
        }
    }
}

impl ModelsConfig {
    /// The configuration of ONNX Runtime, which runs models on the CPU and validates them.
    #[must_use]
    pub fn onnx_runtime(&self) -> OnnxRuntimeConfig {
        OnnxRuntimeConfig {
            library: self.onnxruntime.clone(),
            run_memory_bytes_max: self.run_memory_bytes_max,
            prepare_command: None,
            prepare_memory_bytes_max: self.validate_memory_bytes_max,
            prepare_cpu_ms_max: self.validate_cpu_ms_max,
        }
    }
}
