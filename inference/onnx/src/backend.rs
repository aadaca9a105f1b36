//! Backend of the CPU: loads models in this process, or in the workers of their tenants.

use crate::config::OnnxRuntimeConfig;
use crate::library::{LibraryError, find_onnxruntime};
use crate::processor::processor;
use crate::runtime::Runtime;
use crate::session::CpuModel;
use crate::store::WeightStore;
use crate::worker::Workers;
use crate::{memory, preparer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use weir_device::{Arena, Device};
use weir_inference::{
    Backend, Footprint, InferenceError, Model, ModelKey, ModelSource, PrepareError, Prepared, Preparer,
    Variant,
};
use weir_types::Precision;

/// Runs ONNX models on the processor. The library is searched for on first use, and again on each
/// use until it is found.
pub struct OnnxRuntime {
    config: OnnxRuntimeConfig,
    arena: Arena,
    store: WeightStore,
    workers: OnceLock<Arc<Workers>>,
}

impl OnnxRuntime {
    /// Creates a backend whose outputs are allocated in `arena`.
    #[must_use]
    pub fn new(config: OnnxRuntimeConfig, arena: Arena) -> Self {
        Self { config, arena, store: WeightStore::default(), workers: OnceLock::new() }
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
        let library = find_onnxruntime(self.config.library.as_deref())?;
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
        let path = find_onnxruntime(self.config.library.as_deref())?;
        let runtime = Runtime::open(&path, self.config.run_memory_bytes_max)?;
        let arena = self.arena.tenant(&source.id().tenant);
        if let Some(config) = &self.config.workers {
            let workers = self.workers.get_or_init(|| Arc::new(Workers::new(config.clone(), path)));
            return workers.load(source, &arena, &self.store);
        }
        Ok(Box::new(CpuModel::load(runtime, source, &arena, &self.store)?))
    }

    fn form<'a>(&self, prepared: &'a Prepared) -> Option<&'a Variant> {
        prepared.variant_for(&processor())
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
