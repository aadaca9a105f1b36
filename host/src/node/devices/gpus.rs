//! The GPUs that the driver reports.

use crate::config::{DeviceConfig, DeviceName, GpuLibraries, KernelGraphsConfig, NodeConfig};
use crate::node::open_files::OpenFiles;
use anyhow::{Context, bail};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir_cuda::{
    Cuda, CudaConfig, GpuGroup, IntermediateLimits, KernelGraphConfig, KernelGraphPreparer,
    KernelGraphPreparerConfig,
};
use weir_device::cuda::{DeviceInfo, Devices, Library, Monitor, Search, Unavailable, locate_library};
use weir_device::{Arena, GpuFigures};
use weir_inference::{Backend, CacheConfig, Preparer};
use weir_telemetry::gpus::{GpuMonitor, GpuSource};

/// The default share of a GPU's memory that Weir uses: the driver needs some memory, and other
/// processes may.
const MEMORY_SHARE: f64 = 0.9;
/// The divisor for the share of that memory that is reserved for working memory of runs.
const RUNS_SHARE: u64 = 4;
/// The default number of concurrent runs.
pub(in crate::node) const SLOTS: u32 = 4;

/// The GPUs, or the reason why there are none.
pub(super) struct Gpus {
    devices: Result<Arc<Devices>, Unavailable>,
    search: Search,
    /// Located when the first GPU is opened.
    cublas_lt: OnceLock<Option<PathBuf>>,
    nvrtc: OnceLock<Option<PathBuf>>,
    group: GpuGroup,
}

impl Gpus {
    /// Discovers the GPUs. Never fails: an error is reported when a GPU is opened.
    pub(super) fn find() -> Self {
        let search = Search::from_environment();
        let devices = Devices::discover(&search).map(Arc::new);
        Self {
            devices,
            search,
            cublas_lt: OnceLock::new(),
            nvrtc: OnceLock::new(),
            group: GpuGroup::default(),
        }
    }

    /// Adds the GPUs to the monitor for the metrics.
    pub(super) fn tell(&self, monitor: &GpuMonitor) {
        if let Ok(devices) = &self.devices {
            monitor.watch(Arc::new(DriverFigures(Monitor::new(devices))));
        }
    }

    /// A default setting for each GPU. Without GPUs: an empty list and a line in the log.
    pub(super) fn all(&self) -> Vec<DeviceConfig> {
        match &self.devices {
            Ok(devices) => devices
                .infos()
                .iter()
                .map(|info| DeviceConfig::new(DeviceName::Cuda(Some(info.ordinal))))
                .collect(),
            // The usual case of a machine without a GPU.
            Err(unavailable @ Unavailable::NotFound { .. }) => {
                tracing::info!(
                    "no NVIDIA driver: models run on the CPU (`weir doctor` lists the searched places)"
                );
                tracing::debug!(%unavailable, "no NVIDIA driver");
                Vec::new()
            }
            Err(unavailable) => {
                tracing::info!(%unavailable, "no usable GPU: models run on the CPU");
                Vec::new()
            }
        }
    }

    /// Opens the GPU of a setting.
    pub(super) fn open(
        &self,
        device: &DeviceConfig,
        ordinal: u32,
        node: &NodeConfig,
        arena: &Arena,
    ) -> anyhow::Result<(Arc<dyn Backend>, CacheConfig)> {
        let devices = match &self.devices {
            Ok(devices) => devices,
            Err(unavailable) => bail!("device {}: {unavailable}", device.device),
        };
        let Some(info) = devices.infos().iter().find(|info| info.ordinal == ordinal) else {
            let count = devices.infos().len();
            bail!("device {}: it does not exist; the driver reports {count}, from cuda:0", device.device);
        };
        if node.gpu.run_wall_ms_max == 0 {
            bail!("gpu.run_wall_ms_max is at least 1");
        }
        let memory_bytes_max = memory_bytes(device, info);
        let slots = slots(device, node) as usize;
        let config = CudaConfig {
            ordinal,
            memory_bytes_max,
            slots,
            intermediates: IntermediateLimits {
                free_percent_max: node.intermediates.free_percent_max,
                len_max: node.intermediates.len_max,
                spilled_bytes_max: node.intermediates.spilled_bytes_max,
            },
            pinned_cache_bytes_max: node.gpu.pinned_cache_bytes_max,
            cublas_lt: self.library(Library::CublasLt, devices, node.gpu.libraries),
            nvrtc: self.library(Library::Nvrtc, devices, node.gpu.libraries),
            run_time_max: Duration::from_millis(node.gpu.run_wall_ms_max),
            group: self.group.clone(),
            command: None,
        };
        let cuda = Cuda::open(devices.driver_path(), config, arena.clone());
        let cuda = cuda.with_context(|| format!("device {}: {} cannot be used", device.device, info.name))?;
        let cuda = if node.kernel_graphs.enabled { cuda.with_kernel_graphs(kernels(node)) } else { cuda };
        tracing::info!(device = %device.device, name = info.name, memory_bytes_max, slots, "GPU found");
        let capacity_bytes = memory_bytes_max - memory_bytes_max / RUNS_SHARE;
        let run_queue_len_max = node.models.run_queue_len_max;
        Ok((Arc::new(cuda), CacheConfig { capacity_bytes, slots, run_queue_len_max }))
    }

    /// The path of a library that the driver supports, if there is one. Otherwise logs the reason
    /// once, whatever the number of devices.
    fn library(&self, library: Library, devices: &Devices, libraries: GpuLibraries) -> Option<PathBuf> {
        if libraries == GpuLibraries::None {
            return None;
        }
        let (found, name, without) = match library {
            Library::CublasLt => {
                (&self.cublas_lt, "cuBLASLt", "Weir's own kernels compute all products of matrices")
            }
            Library::Nvrtc => (&self.nvrtc, "NVRTC", "chains of elementwise operations are interpreted"),
        };
        let look = || match locate_library(library, &self.search, devices.driver_major()) {
            Ok(path) => Some(path),
            Err(unavailable @ Unavailable::NotFound { .. }) => {
                tracing::debug!(%unavailable, "{without}");
                None
            }
            Err(unavailable) => {
                tracing::warn!(%unavailable, "{name} is not used: {without}");
                None
            }
        };
        found.get_or_init(look).clone()
    }
}

/// Adds the file descriptors of those `devices` that are GPUs.
pub(super) fn with_files(files: OpenFiles, devices: &[DeviceConfig], node: &NodeConfig) -> OpenFiles {
    let gpus = devices.iter().filter(|device| matches!(device.device, DeviceName::Cuda(_)));
    let slots = gpus.clone().map(|device| slots(device, node)).max();
    files.with_gpus(gpus.count(), slots)
}

/// The number of concurrent runs on a GPU.
fn slots(device: &DeviceConfig, node: &NodeConfig) -> u32 {
    device.slots.or(node.models.slots).unwrap_or(SLOTS).max(1)
}

/// The driver as a source of figures.
struct DriverFigures(Monitor);

impl GpuSource for DriverFigures {
    fn read(&self) -> Vec<GpuFigures> {
        self.0.read()
    }
}

/// The preparer that checks kernel graphs, if they are enabled. Devices of this node, or of other
/// nodes in its cluster, run them.
pub(super) fn kernel_graphs(node: &NodeConfig) -> anyhow::Result<Option<Arc<dyn Preparer>>> {
    let config = &node.kernel_graphs;
    if !config.enabled {
        return Ok(None);
    }
    if config.run_wall_ms_max == 0 || config.memory_bytes_max == 0 {
        bail!("kernel_graphs: run_wall_ms_max and memory_bytes_max are at least 1");
    }
    Ok(Some(Arc::new(KernelGraphPreparer::new(KernelGraphPreparerConfig {
        compile_memory_bytes_max: config.compile_memory_bytes_max,
        compile_cpu_ms_max: config.compile_cpu_ms_max,
    }))))
}

/// The settings for running kernel graphs on a device.
fn kernels(node: &NodeConfig) -> KernelGraphConfig {
    let KernelGraphsConfig { run_wall_ms_max, memory_bytes_max, context_bytes, .. } = node.kernel_graphs;
    let run_time_max = Duration::from_millis(run_wall_ms_max);
    KernelGraphConfig { memory_bytes_max, context_bytes, run_time_max, command: None }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of bytes needs no full precision"
)]
fn memory_bytes(device: &DeviceConfig, info: &DeviceInfo) -> u64 {
    let share = device.memory_share.unwrap_or(MEMORY_SHARE);
    device.memory_bytes_max.unwrap_or((info.memory_bytes as f64 * share) as u64)
}
