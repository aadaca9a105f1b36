//! GPU support of a node that was built without the feature `cuda`.

use crate::config::{DeviceConfig, NodeConfig};
use crate::node::open_files::OpenFiles;
use anyhow::bail;
use std::sync::Arc;
use weir_device::Arena;
use weir_inference::{Backend, CacheConfig, Preparer};
use weir_telemetry::gpus::GpuMonitor;

pub(super) struct Gpus;

/// The preparer that checks kernel graphs.
pub(super) fn kernel_graphs(node: &NodeConfig) -> anyhow::Result<Option<Arc<dyn Preparer>>> {
    if node.kernel_graphs.enabled {
        bail!("kernel_graphs.enabled: this weir was built without GPUs");
    }
    Ok(None)
}

/// The file descriptors that a node needs.
pub(super) fn with_files(files: OpenFiles, _: &[DeviceConfig], _: &NodeConfig) -> OpenFiles {
    files
}

impl Gpus {
    pub(super) fn find() -> Self {
        Self
    }

    pub(super) fn tell(&self, _: &GpuMonitor) {}

    pub(super) fn all(&self) -> Vec<DeviceConfig> {
        Vec::new()
    }

    pub(super) fn open(
        &self,
        device: &DeviceConfig,
        _: u32,
        _: &NodeConfig,
        _: &Arena,
    ) -> anyhow::Result<(Arc<dyn Backend>, CacheConfig)> {
        bail!(
            "device {}: this weir was built without GPUs; leave it out of devices (--devices cpu)",
            device.device
        )
    }
}
