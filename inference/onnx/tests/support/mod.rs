//! Test support: a backend with the real ONNX Runtime, models, and tensors.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

pub mod onnx;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use weir_device::Arena;
use weir_inference::{
    CacheConfig, ModelCache, ModelKey, ModelSource, PrepareError, Prepared, Preparer, Profiles, Tensor,
};
use weir_onnx::{CPU_WORKER_COMMAND, CpuWorkerConfig, OnnxRuntime, OnnxRuntimeConfig, OperatorPattern};
use weir_types::{Batching, ElementType, ModelId, Name, Shape, TenantId, Version};

pub const MIB: u64 = 1 << 20;

/// Program with the hidden subcommands of `weir` for models.
const CHILD: &str = env!("CARGO_BIN_EXE_weir-onnx-test-child");

/// A CPU backend, with a folder for prepared models.
pub struct Cpu {
    pub arena: Arena,
    pub backend: Arc<OnnxRuntime>,
    blobs: TempDir,
}

impl Cpu {
    /// The real backend. Fails with instructions if there is no ONNX Runtime.
    pub fn new() -> Self {
        Self::with_config(config())
    }

    pub fn with_prepare_limits(prepare_memory_bytes_max: u64, prepare_cpu_ms_max: u64) -> Self {
        Self::with_config(OnnxRuntimeConfig { prepare_memory_bytes_max, prepare_cpu_ms_max, ..config() })
    }

    /// A backend that allows further operators.
    pub fn with_operators(allowed: &[&str]) -> Self {
        let pattern = |text: &&str| OperatorPattern::try_from((*text).to_owned()).unwrap();
        Self::with_config(OnnxRuntimeConfig {
            operators_allowed: allowed.iter().map(pattern).collect(),
            ..config()
        })
    }

    pub fn with_prepare_command(program: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(Into::into).collect();
        Self::with_config(OnnxRuntimeConfig {
            prepare_command: Some((program.into(), arguments)),
            ..config()
        })
    }

    /// A backend that runs models in worker processes, each run for at most `run_time_max`.
    pub fn with_workers(run_time_max: Duration) -> Self {
        let blobs = tempfile::tempdir().unwrap();
        let config = config();
        let workers = Some(CpuWorkerConfig {
            command: Some((CHILD.into(), vec![CPU_WORKER_COMMAND.into()])),
            folder: blobs.path().to_owned(),
            folder_prefix: ".worker-".to_owned(),
            slots: 4,
            run_time_max,
            memory_bytes_max: 1024 * MIB,
            run_memory_bytes_max: config.run_memory_bytes_max,
            tensor_bytes_max: 256 * MIB,
            require_confinement: false,
        });
        Self::in_folder(OnnxRuntimeConfig { workers, ..config }, blobs)
    }

    fn with_config(config: OnnxRuntimeConfig) -> Self {
        Self::in_folder(config, tempfile::tempdir().unwrap())
    }

    fn in_folder(config: OnnxRuntimeConfig, blobs: TempDir) -> Self {
        let arena = Arena::new(256 * MIB);
        let backend = OnnxRuntime::new(config, arena.clone());
        if let Err(error) = backend.library() {
            panic!("these tests need ONNX Runtime: {error}");
        }
        Self { arena, backend: Arc::new(backend), blobs }
    }

    pub fn blobs(&self) -> &Path {
        self.blobs.path()
    }

    pub async fn prepare(&self, model: &Path) -> Result<Prepared, PrepareError> {
        self.backend.prepare(model, weir_types::Precision::default(), self.blobs()).await
    }

    /// A prepared model, as version 1 of `name`.
    pub async fn source(&self, name: &str, model: &Path) -> Arc<ModelSource> {
        self.source_of(TenantId::default(), name, model).await
    }

    /// A prepared model of a tenant.
    pub async fn source_of(&self, tenant: TenantId, name: &str, model: &Path) -> Arc<ModelSource> {
        let prepared =
            self.prepare(model).await.unwrap_or_else(|error| panic!("{}: {error}", model.display()));
        Arc::new(ModelSource {
            key: ModelKey { id: ModelId { tenant, ..id(name) }, generation: 1 },
            prepared: Arc::new(prepared),
            blobs: self.blobs().to_owned(),
            slots: None,
            batching: Batching::default(),
            meter: weir_inference::Meter::default(),
        })
    }

    pub fn cache(&self, slots: usize) -> ModelCache {
        let config = CacheConfig { capacity_bytes: 1024 * MIB, slots, run_queue_len_max: 100 };
        ModelCache::start(config, self.backend.clone(), self.arena.clone(), Profiles::default()).unwrap()
    }

    pub fn tensor<T: Copy + AsBytes>(&self, dimensions: &[u32], elements: &[T]) -> Tensor {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.bytes()).collect();
        self.raw(T::TYPE, dimensions, &bytes)
    }

    pub fn raw(&self, element_type: ElementType, dimensions: &[u32], bytes: &[u8]) -> Tensor {
        Tensor::new(element_type, Shape::new(dimensions).unwrap(), self.arena.copy_of(bytes).unwrap())
            .unwrap()
    }
}

/// A node's configuration, except for the program that prepares models.
pub fn config() -> OnnxRuntimeConfig {
    OnnxRuntimeConfig {
        library: None,
        run_memory_bytes_max: 128 * MIB,
        prepare_command: Some((CHILD.into(), Vec::new())),
        prepare_memory_bytes_max: 8 << 30,
        prepare_cpu_ms_max: 60_000,
        operators_allowed: Vec::new(),
        workers: None,
    }
}

pub trait AsBytes {
    const TYPE: ElementType;
    fn bytes(self) -> Vec<u8>;
}

macro_rules! as_bytes {
    ($($rust:ty => $element:ident),*) => {
        $(impl AsBytes for $rust {
            const TYPE: ElementType = ElementType::$element;
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        })*
    };
}

as_bytes!(f32 => Fp32, i32 => Int32, i64 => Int64);

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.element_type(), ElementType::Fp32);
    tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

pub fn id(name: &str) -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

/// A model that the tests of all crates share.
pub fn shared_model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
}

/// A model of this crate's tests.
pub fn own_model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}
