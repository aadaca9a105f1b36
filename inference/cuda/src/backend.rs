//! Backend of a GPU, in the node.

use crate::captured::CaptureFailures;
use crate::chains::{CompilerConfig, INSTRUCTIONS_MIN};
use crate::device::{GpuConfig, IntermediateLimits};
use crate::kernel_graphs::{KernelGraphConfig, KernelGraphs};
use crate::products::LibraryConfig;
use crate::program::FLOPS_MIN;
use crate::worker::{GpuGroup, GpuWorkerModel, HandOvers, ReportedMemory, Supervisor, WorkerConfig};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_device::{Arena, Device};
use weir_inference::{
    Backend, Content, ExecutorFigures, Footprint, HandedOver, InferenceError, LossHook, Model, ModelSource,
    PinnedCacheFigures, SharedPart, Variant,
};
use weir_types::{ContentHash, Platform, TenantId};

/// Configuration of the executor of one GPU.
#[derive(Debug, Clone)]
pub struct CudaConfig {
    /// CUDA driver ordinal of the device.
    pub ordinal: u32,
    /// Device memory for weights and run memory together, in bytes.
    pub memory_bytes_max: u64,
    /// Number of concurrent runs.
    pub slots: usize,
    /// Limits of the intermediates that runs keep on the device for later runs.
    pub intermediates: IntermediateLimits,
    /// Pinned host memory for copies of weights, in bytes, from which evicted models are reloaded;
    /// 0 disables the cache.
    pub pinned_cache_bytes_max: u64,
    /// Path of cuBLASLt, which computes large matrix products. `None`: Weir's own kernels compute
    /// them.
    pub cublas_lt: Option<PathBuf>,
    /// Path of NVRTC, which compiles chains of elementwise operations. `None`: chains are
    /// interpreted.
    pub nvrtc: Option<PathBuf>,
    /// Maximum time of a run. A worker that exceeds it is assumed to hang, and is restarted.
    pub run_time_max: Duration,
    /// GPUs of the node, including this GPU.
    pub group: GpuGroup,
    /// Worker program and its arguments. `None`: this executable with
    /// [`DEVICE_WORKER_COMMAND`](crate::DEVICE_WORKER_COMMAND).
    pub command: Option<(PathBuf, Vec<OsString>)>,
}

/// CUDA backend: runs ONNX models on a GPU that a worker process owns.
pub struct Cuda {
    ordinal: u32,
    driver: PathBuf,
    arena: Arena,
    name: String,
    worker: Supervisor,
    capture_failures: CaptureFailures,
    memory: ReportedMemory,
    /// `None` if kernel graphs are disabled.
    kernel_graphs: Option<KernelGraphs>,
}

impl Cuda {
    /// Starts a worker that opens a device of the driver at this path. Outputs are allocated in
    /// `arena`.
    ///
    /// Blocks for several hundred milliseconds.
    pub fn open(driver: &Path, config: CudaConfig, arena: Arena) -> Result<Self, InferenceError> {
        let CudaConfig { ordinal, memory_bytes_max, slots, intermediates, pinned_cache_bytes_max, .. } =
            config;
        let CudaConfig { cublas_lt, nvrtc, .. } = config;
        let library = cublas_lt.map(|path| LibraryConfig { path, flops_min: FLOPS_MIN });
        let compiler = nvrtc.map(|path| CompilerConfig { path, instructions_min: INSTRUCTIONS_MIN });
        let gpu = GpuConfig {
            ordinal,
            memory_bytes_max,
            slots,
            intermediates,
            pinned_cache_bytes_max,
            library,
            compiler,
        };
        let driver = driver.to_owned();
        let capture_failures = CaptureFailures::new(Device::Cuda { ordinal });
        let memory = ReportedMemory::new(memory_bytes_max);
        let config = WorkerConfig {
            program: config.command,
            driver: driver.clone(),
            gpu,
            run_time_max: config.run_time_max,
            arena: arena.clone(),
            hand_overs: HandOvers::default(),
            capture_failures: capture_failures.clone(),
            memory: memory.clone(),
            group: config.group,
        };
        let (worker, device) = Supervisor::start(config)?;
        device.library.tell_of_products(Device::Cuda { ordinal });
        device.compiler.tell_of_compiler(Device::Cuda { ordinal });
        let name = device.name;
        let kernel_graphs = None;
        Ok(Self { ordinal, driver, arena, name, worker, capture_failures, memory, kernel_graphs })
    }

    /// Enables kernel graphs. Each tenant's kernels run in a separate worker process.
    #[must_use]
    pub fn with_kernel_graphs(mut self, config: KernelGraphConfig) -> Self {
        let driver = self.driver.clone();
        let arena = self.arena.clone();
        self.kernel_graphs = Some(KernelGraphs::new(config, driver, self.ordinal, arena));
        self
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> Device {
        Device::Cuda { ordinal: self.ordinal }
    }

    fn kind(&self) -> String {
        self.name.clone()
    }

    fn runs(&self, form: &Variant) -> bool {
        form.platform == Platform::Cuda && (form.content == Content::Network || self.kernel_graphs.is_some())
    }

    fn on_loss(&self, tell: LossHook) {
        self.worker.on_loss(tell);
    }

    fn in_turn(&self, source: &ModelSource) -> Option<TenantId> {
        // A tenant's worker runs one job at a time. Waiting for the worker must not occupy a run
        // slot of the device.
        let is_run_there = source.prepared.content() == Content::KernelGraph;
        is_run_there.then(|| source.id().tenant.clone())
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        if source.prepared.content() == Content::KernelGraph {
            let off = || {
                InferenceError::Unsupported("this node runs no kernel graphs (kernel_graphs.enabled)".into())
            };
            return self.kernel_graphs.as_ref().ok_or_else(off)?.load(source);
        }
        let arena = self.arena.tenant(&source.id().tenant);
        Ok(Box::new(GpuWorkerModel::load(self.worker.worker()?, source, arena)?))
    }

    fn footprint(&self, source: &ModelSource) -> Footprint {
        if let Some(kernel_graphs) = &self.kernel_graphs
            && source.prepared.content() == Content::KernelGraph
        {
            return kernel_graphs.footprint(source);
        }
        estimate(source)
    }

    fn trim(&self) {
        // Without a worker there is no memory to release.
        if let Ok(worker) = self.worker.worker() {
            worker.trim();
        }
    }

    fn handed_over(&self) -> Option<HandedOver> {
        Some(self.worker.handed_over())
    }

    fn executor(&self) -> Option<ExecutorFigures> {
        let of_kernel_graphs = self.kernel_graphs.as_ref().map_or(0, KernelGraphs::capture_failures);
        Some(ExecutorFigures {
            capture_failures: self.capture_failures.count() + of_kernel_graphs,
            outside_bytes: self.memory.outside_bytes(),
        })
    }

    fn pinned_cache(&self) -> Option<PinnedCacheFigures> {
        Some(self.memory.pinned_cache())
    }

    fn pool_bytes(&self) -> Option<u64> {
        self.memory.pool_bytes()
    }

    fn available_bytes(&self, configured_bytes: u64) -> u64 {
        // Kernel-graph workers allocate outside the pool; the footprints of their models account
        // for that memory.
        let accounted_bytes = self.kernel_graphs.as_ref().map_or(0, KernelGraphs::workers_bytes);
        self.memory.available_bytes(configured_bytes, accounted_bytes)
    }

    fn recover(&self) -> Result<(), InferenceError> {
        self.worker.restart()
    }
}

/// Estimates the device memory of a model from its weight files.
pub(crate) fn estimate(source: &ModelSource) -> Footprint {
    let Some(form) = source.prepared.variants_for(Platform::Cuda).next() else {
        return Footprint::own(source.prepared.weight_bytes);
    };
    let files: BTreeMap<ContentHash, u64> =
        form.weights.iter().map(|weight| (weight.hash, weight.bytes)).collect();
    let parts = files.into_iter().map(|(hash, bytes)| (SharedPart { hash, family: None }, bytes));
    Footprint::new(0, parts)
}
