//! Starting the devices that the settings name. A backend for another kind of device is added in [`start`].

use crate::config::{BackendKind, DeviceConfig, DeviceName, DevicesConfig, NodeConfig};
use crate::devices::Devices;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_device::Arena;
use weir_inference::{
    Backend, CacheConfig, FakeBackend, ModelCache, OnnxRuntime, OnnxRuntimeConfig, Preparer, Profiles,
};

/// Start the threads of every device, with nothing in their memory. Outputs live in `arena`.
pub(super) fn start(config: &NodeConfig, arena: &Arena) -> anyhow::Result<Devices> {
    let (cpu, preparer) = processor(config, arena);
    let mut caches = Vec::new();
    let mut profiles = BTreeMap::<String, Profiles>::new();
    for (ordinal, device) in (0..).zip(named(&config.devices)) {
        let backend: Arc<dyn Backend> = match &device.device {
            DeviceName::Cpu => cpu.clone(),
            DeviceName::Cuda(_) => bail!(
                "device {}: this weir has no backend for GPUs; leave it out of devices (--devices cpu)",
                device.device
            ),
            DeviceName::Fake(kind) => {
                if config.backend != BackendKind::Fake {
                    bail!(
                        "device {}: fake devices run fake models, which takes backend = \"fake\"",
                        device.device
                    );
                }
                Arc::new(FakeBackend::accelerator(ordinal, kind, arena.clone()))
            }
        };
        let profiles = profiles.entry(backend.kind()).or_default().clone();
        let cache = ModelCache::start(limits(config, &device), backend, arena.clone(), profiles);
        caches.push(cache.with_context(|| format!("cannot start the threads of device {}", device.device))?);
    }
    Devices::new(caches, preparer).context("a node needs a device (devices)")
}

/// The devices that are meant.
fn named(devices: &DevicesConfig) -> Vec<DeviceConfig> {
    match devices {
        DevicesConfig::List(devices) => devices.clone(),
        DevicesConfig::Auto => vec![DeviceConfig::of(DeviceName::Cpu)],
    }
}

/// What runs models on the processor, and checks those that are pushed.
fn processor(config: &NodeConfig, arena: &Arena) -> (Arc<dyn Backend>, Arc<dyn Preparer>) {
    if config.backend == BackendKind::Fake {
        let backend = Arc::new(FakeBackend::new(arena.clone()));
        return (backend.clone(), backend);
    }
    let config = OnnxRuntimeConfig {
        library: config.onnxruntime.clone(),
        run_memory_bytes_max: config.run_memory_bytes_max,
        prepare_command: None,
        prepare_memory_bytes_max: config.validate_memory_bytes_max,
        prepare_time_ms_max: config.validate_time_ms_max,
    };
    let backend = Arc::new(OnnxRuntime::new(config, arena.clone()));
    if let Err(error) = backend.library() {
        // Functions without models work; pushing or opening a model says the same again.
        tracing::warn!(%error, "models cannot run yet");
    }
    (backend.clone(), backend)
}

fn limits(config: &NodeConfig, device: &DeviceConfig) -> CacheConfig {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let slots = device.slots.or(config.model_slots);
    CacheConfig {
        capacity_bytes: device.memory_bytes_max.unwrap_or(config.model_memory_bytes_max),
        slots: slots.map_or(cores, |slots| slots as usize).max(1),
        run_queue_len_max: config.run_queue_len_max,
    }
}
