//! The devices that a node owns, and the models in their memory.

use crate::config::{BackendKind, NodeConfig};
use anyhow::Context;
use std::sync::Arc;
use weir_device::Arena;
use weir_inference::{Backend, CacheConfig, FakeBackend, ModelCache, OnnxRuntime, OnnxRuntimeConfig};

pub(super) fn model_cache(config: &NodeConfig, arena: &Arena) -> anyhow::Result<ModelCache> {
    let backend: Arc<dyn Backend> = match config.backend {
        BackendKind::Onnxruntime => {
            let config = OnnxRuntimeConfig {
                library: config.onnxruntime.clone(),
                run_memory_bytes_max: config.run_memory_bytes_max,
                prepare_command: None,
                prepare_memory_bytes_max: config.validate_memory_bytes_max,
                prepare_time_ms_max: config.validate_time_ms_max,
            };
            let backend = OnnxRuntime::new(config, arena.clone());
            if let Err(error) = backend.library() {
                // Functions without models work; pushing or opening a model says the same again.
                tracing::warn!(%error, "models cannot run yet");
            }
            Arc::new(backend)
        }
        BackendKind::Fake => Arc::new(FakeBackend::new(arena.clone())),
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cache = CacheConfig {
        capacity_bytes: config.model_memory_bytes_max,
        slots: config.model_slots.map_or(cores, |slots| slots as usize).max(1),
        run_queue_len_max: config.run_queue_len_max,
    };
    ModelCache::start(cache, backend, arena.clone()).context("cannot start the device threads")
}
