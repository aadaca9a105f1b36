//! Settings of the engine.

use crate::operators::OperatorPattern;
use crate::worker::CpuWorkerConfig;
use std::ffi::OsString;
use std::path::PathBuf;

/// Settings for preparing and running models on the processor.
#[derive(Debug, Clone)]
pub struct OnnxRuntimeConfig {
    /// Path of `libonnxruntime.so`; `None`: search for it as
    /// [`find_onnxruntime`](crate::find_onnxruntime) does.
    pub library: Option<PathBuf>,
    /// Limit of the memory that all runs together may use for intermediate tensors. The first
    /// backend of a process sets it for all.
    pub run_memory_bytes_max: u64,
    /// Program that prepares models, and its arguments; `None`: the current program with
    /// [`PREPARE_COMMAND`](crate::PREPARE_COMMAND).
    pub prepare_command: Option<(PathBuf, Vec<OsString>)>,
    /// Limit of the preparing child's address space.
    pub prepare_memory_bytes_max: u64,
    /// Limit of the preparing child's processor time.
    pub prepare_cpu_ms_max: u64,
    /// Operators that models may use in addition to those of the standard and the optimiser, as
    /// patterns.
    pub operators_allowed: Vec<OperatorPattern>,
    /// The worker processes that run models; `None`: models run in this process.
    pub workers: Option<CpuWorkerConfig>,
}
