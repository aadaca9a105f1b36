//! Starts the devices in the settings. A backend for another kind of device is added in [`start`].

#[cfg(feature = "cuda")]
mod gpus;
#[cfg(feature = "cuda")]
pub(super) use gpus::SLOTS as GPU_SLOTS;
#[cfg(not(feature = "cuda"))]
#[path = "devices/no_gpus.rs"]
mod gpus;

use super::open_files::OpenFiles;
use super::storage::MODELS;
use crate::config::{DeviceConfig, DeviceName, DevicesConfig, NodeConfig};
use anyhow::{Context, bail};
use gpus::Gpus;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_control::devices::{KernelGraphSupport, NodeDevices};
use weir_control::models::{BackendKind, Isolation};
use weir_device::Arena;
use weir_inference::{Backend, CacheConfig, FakeBackend, ModelCache, Preparer, Profiles};
use weir_onnx::OnnxRuntime;
use weir_telemetry::gpus::GpuMonitor;

/// Starts the threads of every device, with empty memory. Outputs live in `arena`; statistics of
/// GPUs go to `monitor`.
pub(super) fn start(config: &NodeConfig, arena: &Arena, monitor: &GpuMonitor) -> anyhow::Result<NodeDevices> {
    if config.devices == DevicesConfig::None && config.cluster.is_none() {
        bail!(
            "devices = \"none\": a node without a cluster runs its calls itself, so it needs a device; leave devices out, or name a cluster (--datastore, --blobs)"
        );
    }
    check_confinement(config)?;
    let (cpu, preparer) = processor(config, arena);
    // Discovering GPUs takes file descriptors, and using GPUs takes more.
    let files = OpenFiles::new(config.gateway.connections_max);
    files.raise()?;
    let gpus = Gpus::find();
    let devices = named(config, &gpus);
    gpus::with_files(files, &devices, config).require()?;
    gpus.tell(monitor);
    let mut caches = Vec::new();
    let mut profiles = BTreeMap::<String, Profiles>::new();
    for (ordinal, device) in (0..).zip(devices) {
        let (backend, limits): (Arc<dyn Backend>, _) = match &device.device {
            DeviceName::Cpu => (cpu.clone(), limits(config, &device)),
            DeviceName::Cuda(number) => gpus.open(&device, number.unwrap_or_default(), config, arena)?,
            DeviceName::Fake(kind) => {
                if config.models.backend != BackendKind::Fake {
                    bail!(
                        "device {}: fake devices run fake models, which takes models.backend = \"fake\"",
                        device.device
                    );
                }
                (Arc::new(FakeBackend::accelerator(ordinal, kind, arena.clone())), limits(config, &device))
            }
        };
        let profiles = profiles.entry(backend.kind()).or_default().clone();
        let cache = ModelCache::start(limits, backend, arena.clone(), profiles);
        caches.push(cache.with_context(|| format!("cannot start the threads of device {}", device.device))?);
    }
    let worker_bytes =
        config.kernel_graphs.context_bytes.saturating_add(config.kernel_graphs.memory_bytes_max);
    let kernel_graphs =
        gpus::kernel_graphs(config)?.map(|preparer| KernelGraphSupport { preparer, worker_bytes });
    Ok(NodeDevices::new(caches, preparer, kernel_graphs))
}

/// The configured devices, with `auto` and `cuda` expanded.
fn named(config: &NodeConfig, gpus: &Gpus) -> Vec<DeviceConfig> {
    match &config.devices {
        // Fake models run on fake devices only.
        DevicesConfig::Auto if config.models.backend == BackendKind::Fake => {
            vec![DeviceConfig::new(DeviceName::Cpu)]
        }
        DevicesConfig::None => Vec::new(),
        DevicesConfig::Auto => {
            std::iter::once(DeviceConfig::new(DeviceName::Cpu)).chain(gpus.all()).collect()
        }
        DevicesConfig::List(devices) => devices.iter().flat_map(|device| each(device, gpus)).collect(),
    }
}

/// Expands `cuda` to every GPU, with the same settings.
fn each(device: &DeviceConfig, gpus: &Gpus) -> Vec<DeviceConfig> {
    if device.device != DeviceName::Cuda(None) {
        return vec![device.clone()];
    }
    let all: Vec<_> =
        gpus.all().into_iter().map(|gpu| DeviceConfig { device: gpu.device, ..device.clone() }).collect();
    // Without GPUs, opening the first one reports the reason.
    if all.is_empty() { vec![device.clone()] } else { all }
}

/// The backend that runs models on the CPU, and the preparer that checks pushed models.
fn processor(config: &NodeConfig, arena: &Arena) -> (Arc<dyn Backend>, Arc<dyn Preparer>) {
    if config.models.backend == BackendKind::Fake {
        let backend = Arc::new(FakeBackend::new(arena.clone()));
        return (backend.clone(), backend);
    }
    let workers = (isolation(config) == Isolation::Process).then(|| {
        let slots = limits(config, &DeviceConfig::new(DeviceName::Cpu)).slots;
        config.models.cpu_workers(config.data.join(MODELS), slots, config.gateway.arena_bytes_max)
    });
    let backend = Arc::new(OnnxRuntime::new(config.models.onnx_runtime(workers), arena.clone()));
    if let Err(error) = backend.library() {
        // Functions without models work; pushing or opening a model reports this again.
        tracing::warn!(%error, "ONNX Runtime is not available: models cannot run yet");
    }
    (backend.clone(), backend)
}

/// Reports the layers of confinement for workers that the system does not provide.
fn check_confinement(config: &NodeConfig) -> anyhow::Result<()> {
    let is_required = config.models.require_confinement;
    if isolation(config) == Isolation::InProcess && !is_required {
        return Ok(());
    }
    let missing = weir_child::missing_layers().context("cannot find out how workers are confined")?;
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if is_required {
        bail!("models.require_confinement: this system does not provide {missing}");
    }
    tracing::warn!(missing, "worker processes lack layers of confinement on this system");
    Ok(())
}

/// Where models run on the CPU. Without a setting, a node that only its own user can reach runs
/// them in its process.
fn isolation(config: &NodeConfig) -> Isolation {
    let default = if config.is_private() { Isolation::InProcess } else { Isolation::Process };
    config.models.isolation.unwrap_or(default)
}

fn limits(config: &NodeConfig, device: &DeviceConfig) -> CacheConfig {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let slots = device.slots.or(config.models.slots);
    CacheConfig {
        capacity_bytes: device.memory_bytes_max.unwrap_or(config.models.memory_bytes_max),
        slots: slots.map_or(cores, |slots| slots as usize).max(1),
        run_queue_len_max: config.models.run_queue_len_max,
    }
}
