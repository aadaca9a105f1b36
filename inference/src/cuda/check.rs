//! Checks of `weir doctor --gpu`: correctness and speed of a GPU.
//!
//! ```text
//!   Stage ──cases──► Reporter ──Progress──► the process that watches this process
//!     case: its name, launches and checks, in this order, so that a fatal case is known
//! ```
//!
//! Checks use the same code path as models. They compare results with the reference interpreter of
//! `weir-graph`, so they need only a driver. On a machine without a GPU, they run on the fake
//! driver, where the measured times have no meaning.

mod stage;
pub use stage::{CaseSelection, Stage};

mod goal;
pub use goal::{Goal, GoalBound};
mod outcome;
pub use outcome::{Check, LaunchParameters, Mismatch, Tier};
mod progress;
pub use progress::Progress;
use progress::Reporter;

mod ahead;
mod answers;
pub(super) mod bench;
mod floor;
mod folder;
mod timer;
pub(in crate::cuda) use timer::{Measured, Timer};

mod cases;
pub(super) mod chains;
mod environment;
mod functions;
mod handing_over;
mod kernel_graphs;
mod launches;
mod memory;
mod network;
mod operations;
mod transfers;
mod worker;

use super::chains::{CompilerConfig, INSTRUCTIONS_MIN};
use super::device::{Gpu, GpuConfig, IntermediateLimits};
use super::products::LibraryConfig;
use super::program::FLOPS_MIN;
use crate::error::InferenceError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use weir_device::Arena;
use weir_device::cuda::{CudaError, Devices, Library, Monitor, Search, Unavailable, locate_library};

/// Host memory for outputs, in bytes.
const ARENA_BYTES_MAX: u64 = 1 << 30;

/// Warm-up time before each measurement, in milliseconds, after which a device runs at full clocks.
pub const WARM_UP_MS: u64 = 300;

/// Configuration of the checks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckConfig {
    /// Ordinal of the device.
    pub ordinal: u32,
    /// Device memory that the checks may use, in bytes.
    pub memory_bytes_max: u64,
    /// ONNX models for [`Stage::Networks`], [`Stage::Functions`] and [`Stage::Worker`].
    pub models: Vec<PathBuf>,
    /// Batch sizes of [`Stage::Networks`], for models with a variable batch size.
    pub batches: Vec<u32>,
    /// Repeats of each measurement.
    pub repeats: u32,
    /// Warm-up time before each measurement, in milliseconds: [`WARM_UP_MS`], or less on the fake
    /// driver.
    pub warm_up_ms: u64,
    /// Selection of the cases.
    pub selection: CaseSelection,
    /// Search paths of NVIDIA's libraries. Not serialised: each process has its own.
    #[serde(skip)]
    pub search: Search,
}

/// Reason for the early end of a stage.
#[derive(Debug, thiserror::Error)]
pub enum CheckFailure {
    /// The device rejected a call, or is lost.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// A model failed to load or run.
    #[error(transparent)]
    Model(#[from] InferenceError),
}

impl CheckConfig {
    /// Finds one of NVIDIA's libraries.
    fn library(&self, library: Library, devices: &Devices) -> Result<PathBuf, Unavailable> {
        locate_library(library, &self.search, devices.driver_major())
    }
}

impl CheckFailure {
    /// Returns whether this process has lost the device, so that no later case can run in the
    /// process.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        match self {
            Self::Device(error) => error.is_context_lost(),
            Self::Model(error) => matches!(error, InferenceError::DeviceLost(_)),
        }
    }
}

/// Device opened for a stage, with the tools for the checks.
struct Bench<'a> {
    devices: &'a Devices,
    gpu: Arc<Gpu>,
    config: &'a CheckConfig,
    timer: Timer,
    /// Device memory of the context, including the pinned ring and the streams. `None` if the
    /// driver does not report it.
    context_bytes: Option<u64>,
}

impl<'a> Bench<'a> {
    fn open(devices: &'a Devices, config: &'a CheckConfig, stage: Stage) -> Result<Self, CudaError> {
        let CheckConfig { ordinal, memory_bytes_max, .. } = *config;
        let locate = |library| {
            let path = stage.uses_libraries().then(|| config.library(library, devices).ok());
            path.flatten()
        };
        let library = locate(Library::CublasLt).map(|path| LibraryConfig { path, flops_min: FLOPS_MIN });
        // The stage `Operations` compares every chain with the interpreter, including chains that a
        // node never compiles.
        let instructions_min = if stage == Stage::Operations { 1 } else { INSTRUCTIONS_MIN };
        let compiler = locate(Library::Nvrtc).map(|path| CompilerConfig { path, instructions_min });
        let intermediates = IntermediateLimits::default();
        let gpu = GpuConfig {
            ordinal,
            memory_bytes_max,
            slots: 2,
            intermediates,
            pinned_cache_bytes_max: 0,
            library,
            compiler,
        };
        let monitor = Monitor::new(devices);
        let before = monitor.memory_used_bytes(ordinal);
        let gpu = Arc::new(Gpu::open(devices, &gpu, &Arena::new(ARENA_BYTES_MAX))?);
        let after = monitor.memory_used_bytes(ordinal);
        // Blocks that the pool has mapped in advance are for weights, and are not part of the
        // context.
        let pool = gpu.pool.usage();
        let before = before.map(|before| before + pool.used_bytes + pool.idle_bytes);
        let context_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(Self { devices, gpu, config, timer: Timer::new(devices, config), context_bytes })
    }
}

/// Runs the selected cases of one stage, and reports their progress. Blocks.
///
/// A device fault ends the stage with an error. The process cannot use the device afterwards.
pub fn check(
    devices: &Devices,
    config: &CheckConfig,
    stage: Stage,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), CheckFailure> {
    let report = &mut Reporter::new(stage, &config.selection, tell);
    // In these stages, only the worker processes open the device.
    match stage {
        Stage::Environment => return environment::check(devices, config, report),
        Stage::Worker => return worker::check(devices, config, report),
        Stage::KernelGraphs => return kernel_graphs::check(devices, config, report),
        _ => {}
    }
    let bench = Bench::open(devices, config, stage)?;
    match stage {
        Stage::Environment | Stage::Worker | Stage::KernelGraphs => Ok(()),
        Stage::Operations => operations::check(&bench, report),
        Stage::Transfers => transfers::check(&bench, report),
        Stage::Launches => launches::check(&bench, report),
        Stage::Memory => memory::check(&bench, report),
        Stage::HandingOver => handing_over::check(&bench, report),
        Stage::Networks => network::check(&bench, report),
        Stage::Functions => functions::check(&bench, report),
    }
}
