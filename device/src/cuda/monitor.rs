//! Figures of GPUs from NVIDIA's management library (NVML), which is installed with the driver.

use super::devices::Devices;
use crate::{GpuFigures, OperatingPoint};
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use tracing::debug;

/// File name of the library.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Reads the figures of the GPUs that the driver shows to this process.
pub struct Monitor {
    /// PCI addresses of the GPUs, which identify them in both of NVIDIA's interfaces.
    pci: Vec<String>,
    library: PathBuf,
    /// `None` once NVML has turned out to be unusable.
    nvml: OnceLock<Option<Nvml>>,
    /// Energy counter of each GPU at its first reading, in millijoules.
    energy_before_mj: Mutex<HashMap<String, u64>>,
}

impl Monitor {
    /// Creates a monitor for these GPUs. Opens no library yet.
    #[must_use]
    pub fn new(devices: &Devices) -> Self {
        let pci = devices.infos().iter().map(|info| info.pci.clone()).collect();
        // A library in the driver's folder has the driver's version. Without such a library, the
        // loader's search decides.
        let beside = devices.driver_path().with_file_name(LIBRARY);
        let library = if beside.is_file() { beside } else { LIBRARY.into() };
        Self { pci, library, nvml: OnceLock::new(), energy_before_mj: Mutex::default() }
    }

    /// Current figures of each GPU; empty without NVML. Blocks: the first time while the library is
    /// opened, and always while the driver answers, which is slow if a GPU is faulty.
    #[must_use]
    pub fn read(&self) -> Vec<GpuFigures> {
        let Some(nvml) = self.nvml() else { return Vec::new() };
        let read = |pci: &String| match self.read_one(nvml, pci) {
            Ok(figures) => Some(figures),
            Err(error) => {
                debug!(%error, pci, "reading the GPU's metrics from NVML failed");
                None
            }
        };
        self.pci.iter().filter_map(read).collect()
    }

    /// Operating point of the GPU with this ordinal now; `None` without NVML. Blocks as
    /// [`read`](Self::read) does.
    #[must_use]
    pub fn operating_point(&self, ordinal: u32) -> Option<OperatingPoint> {
        let gpu = self.gpu(ordinal)?;
        Some(OperatingPoint {
            sm_clock_mhz: gpu.clock_info(Clock::SM).ok(),
            memory_clock_mhz: gpu.clock_info(Clock::Memory).ok(),
            power_w: gpu.power_usage().ok().map(watts),
            pcie_generation: gpu.current_pcie_link_gen().ok(),
            pcie_width: gpu.current_pcie_link_width().ok(),
        })
    }

    /// Memory of the GPU with this ordinal that all processes together use now; `None` if the GPU
    /// does not report it.
    #[must_use]
    pub fn memory_used_bytes(&self, ordinal: u32) -> Option<u64> {
        self.gpu(ordinal)?.memory_info().ok().map(|memory| memory.used)
    }

    fn gpu(&self, ordinal: u32) -> Option<Device<'_>> {
        // The driver lists its devices by ordinal, from 0.
        let pci = self.pci.get(usize::try_from(ordinal).ok()?)?;
        let gpu = self.nvml()?.device_by_pci_bus_id(pci.as_str());
        gpu.inspect_err(|error| debug!(%error, pci, "reading the GPU's metrics from NVML failed")).ok()
    }

    fn nvml(&self) -> Option<&Nvml> {
        self.nvml.get_or_init(|| self.open()).as_ref()
    }

    fn open(&self) -> Option<Nvml> {
        let opened = Nvml::builder().lib_path(self.library.as_os_str()).init();
        let refused = |error: &NvmlError| {
            debug!(%error, library = %self.library.display(), "NVML cannot be used: no GPU metrics");
        };
        opened.inspect_err(refused).ok()
    }

    fn read_one(&self, nvml: &Nvml, pci: &str) -> Result<GpuFigures, NvmlError> {
        let gpu: Device<'_> = nvml.device_by_pci_bus_id(pci)?;
        let uuid = gpu.uuid()?;
        let memory = gpu.memory_info().ok();
        Ok(GpuFigures {
            utilization: gpu.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
            memory_total_bytes: memory.as_ref().map(|memory| memory.total),
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            power_w: gpu.power_usage().ok().map(watts),
            power_limit_w: gpu.power_management_limit().ok().map(watts),
            energy_j: gpu.total_energy_consumption().ok().map(|total_mj| self.energy_j(&uuid, total_mj)),
            uuid,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a counter of Prometheus is a float")]
    fn energy_j(&self, uuid: &str, total_mj: u64) -> f64 {
        let mut before = self.energy_before_mj.lock();
        let before_mj = *before.entry(uuid.to_owned()).or_insert(total_mj);
        total_mj.saturating_sub(before_mj) as f64 / 1e3
    }
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor")
            .field("pci", &self.pci)
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}
