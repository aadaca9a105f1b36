//! ONNX Runtime on the node's processor.
//!
//! At upload, a limited child process reads the untrusted file, optimises the graph, and writes it as a skeleton and weights in files
//! named by hash ([`prepare_main`]). A resident model is those files mapped into memory once, and one session per slot over them.

mod library;
pub use library::{LibraryError, find_onnxruntime};

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

mod memory;
mod message;
mod onnx;
mod protocol;

use crate::backend::{Backend, Model, ModelSource, Preparer};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::prepare::{PrepareError, Prepared};
use processor::processor;
use runtime::Runtime;
use session::CpuModel;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::TensorStore;
use weir_device::{Arena, Device};
use weir_types::Precision;

/// The argument that makes `weir` a child that prepares a model: it then calls [`prepare_main`] and nothing else.
pub const PREPARE_COMMAND: &str = "__prepare-model";

/// How models run, and are prepared, on the processor.
#[derive(Debug, Clone)]
pub struct OnnxRuntimeConfig {
    /// Where `libonnxruntime.so` is; none to look for it as [`find_onnxruntime`] does.
    pub library: Option<PathBuf>,
    /// Memory that all runs together may use between their inputs and outputs. The first backend of a process sets it for all.
    pub run_memory_bytes_max: u64,
    /// The program that prepares models, and its arguments: this one with [`PREPARE_COMMAND`], unless set.
    pub prepare_command: Option<(PathBuf, Vec<OsString>)>,
    /// Address space of the child that prepares a model.
    pub prepare_memory_bytes_max: u64,
    /// Processor time of the child that prepares a model.
    pub prepare_time_ms_max: u64,
}

/// Runs ONNX models on the processor. The library is looked for when it is first needed, and again until it is there.
pub struct OnnxRuntime {
    config: OnnxRuntimeConfig,
    arena: Arena,
    store: TensorStore,
}

impl OnnxRuntime {
    /// A backend whose outputs live in `arena`.
    #[must_use]
    pub fn new(config: OnnxRuntimeConfig, arena: Arena) -> Self {
        Self { config, arena, store: TensorStore::default() }
    }

    /// Load the library, if that has not happened yet, and say where it was found. Blocks.
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
        Ok(Box::new(CpuModel::load(runtime, source, &self.arena, &self.store)?))
    }

    fn footprint(&self, source: &ModelSource) -> Footprint {
        let Some(variant) = source.prepared.variant_for(&processor()) else {
            return Footprint::own(source.prepared.resident_bytes);
        };
        // What begins a family is like no other.
        let family = self.store.family_of(&source.id().tenant, variant).unwrap_or(u64::MAX);
        variant.footprint(family)
    }

    fn threads_max(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u32::try_from(cores).unwrap_or(u32::MAX)
    }

    fn run_memory_bytes(&self) -> u64 {
        Runtime::opened().map_or(0, Runtime::run_memory_bytes)
    }

    fn trim(&self) {
        if let Some(runtime) = Runtime::opened() {
            runtime.trim();
        }
        memory::release_free();
    }
}
