//! ONNX Runtime backend for the node's processor.
//!
//! At upload, a child process with limits reads the untrusted file, optimises the graph, and writes
//! a skeleton and weights in files named by their hash ([`prepare_main`]). A resident model
//! consists of these files, each mapped into memory once, and of one session per run slot over
//! them.

mod child;
pub use child::prepare_main;

mod optimise;
mod preparer;
mod scan;
mod split;

mod plan;
mod processor;
mod runtime;
mod session;
mod signature;
mod store;
mod value;
mod weights;

mod worker;
use worker::Workers;
pub use worker::{CPU_WORKER_COMMAND, CpuWorkerConfig, cpu_worker_main};

mod memory;
mod message;
mod onnx;
mod protocol;

use crate::backend::{Backend, Model, ModelKey, ModelSource, Preparer};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::library::{LibraryError, find_onnxruntime};
use crate::prepare::{PrepareError, Prepared};
use processor::processor;
use runtime::Runtime;
use session::CpuModel;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use store::TensorStore;
use weir_device::{Arena, Device};
use weir_types::Precision;

/// Argument that makes `weir` a child process that prepares a model: it then only calls
/// [`prepare_main`].
pub const PREPARE_COMMAND: &str = "__prepare-model";

/// Settings for preparing and running models on the processor.
#[derive(Debug, Clone)]
pub struct OnnxRuntimeConfig {
    /// Path of `libonnxruntime.so`; `None`: search for it as [`find_onnxruntime`] does.
    pub library: Option<PathBuf>,
    /// Limit of the memory that all runs together may use for intermediate tensors. The first
    /// backend of a process sets it for all.
    pub run_memory_bytes_max: u64,
    /// Program that prepares models, and its arguments; `None`: the current program with
    /// [`PREPARE_COMMAND`].
    pub prepare_command: Option<(PathBuf, Vec<OsString>)>,
    /// Limit of the preparing child's address space.
    pub prepare_memory_bytes_max: u64,
    /// Limit of the preparing child's processor time.
    pub prepare_cpu_ms_max: u64,
    /// The worker processes that run models; `None`: models run in this process.
    pub workers: Option<CpuWorkerConfig>,
}

/// Runs ONNX models on the processor. The library is searched for on first use, and again on each
/// use until it is found.
pub struct OnnxRuntime {
    config: OnnxRuntimeConfig,
    arena: Arena,
    store: TensorStore,
    workers: OnceLock<Arc<Workers>>,
}

impl OnnxRuntime {
    /// Creates a backend whose outputs are allocated in `arena`.
    #[must_use]
    pub fn new(config: OnnxRuntimeConfig, arena: Arena) -> Self {
        Self { config, arena, store: TensorStore::default(), workers: OnceLock::new() }
    }

    /// Loads the library if it is not loaded yet, and returns its path. Blocks.
    pub fn library(&self) -> Result<PathBuf, LibraryError> {
        let path = find_onnxruntime(self.config.library.as_deref())?;
        Runtime::open(&path, self.config.run_memory_bytes_max)?;
        Ok(path)
    }
}

#[async_trait::async_trait]
impl Preparer for OnnxRuntime {
    async fn prepare(&self, file: &Path, precision: Precision, out: &Path) -> Result<Prepared, PrepareError> {
        let library = find_onnxruntime(self.config.library.as_deref()).map_err(Arc::new)?;
        preparer::prepare(&self.config, &library, (file, precision), out).await
    }
}

impl Backend for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        let path = find_onnxruntime(self.config.library.as_deref()).map_err(Arc::new)?;
        let runtime = Runtime::open(&path, self.config.run_memory_bytes_max).map_err(Arc::new)?;
        if let Some(config) = &self.config.workers {
            let workers = self.workers.get_or_init(|| Arc::new(Workers::new(config.clone(), path)));
            return workers.load(source, &self.arena, &self.store);
        }
        Ok(Box::new(CpuModel::load(runtime, source, &self.arena, &self.store)?))
    }

    fn footprint(&self, source: &ModelSource) -> Footprint {
        let Some(variant) = source.prepared.variant_for(&processor()) else {
            return Footprint::own(source.prepared.resident_bytes);
        };
        // A model that would start a new family gets an unused family number.
        let family = self.store.family_of(&source.id().tenant, variant).unwrap_or(u64::MAX);
        variant.footprint(family)
    }

    fn threads_max(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u32::try_from(cores).unwrap_or(u32::MAX)
    }

    fn run_memory_bytes(&self) -> u64 {
        if let Some(workers) = self.workers.get() {
            return workers.run_memory_bytes();
        }
        Runtime::opened().map_or(0, Runtime::run_memory_bytes)
    }

    fn quarantine(&self, key: &ModelKey) -> Option<Arc<str>> {
        self.workers.get()?.quarantine(key)
    }

    fn release(&self, key: &ModelKey) -> bool {
        self.workers.get().is_some_and(|workers| workers.release(key))
    }

    fn trim(&self) {
        if let Some(workers) = self.workers.get() {
            workers.trim();
        }
        if let Some(runtime) = Runtime::opened() {
            runtime.trim();
        }
        memory::release_free();
    }
}
