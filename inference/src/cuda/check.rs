//! Whether a GPU does what it should, and how fast: what `weir doctor --gpu` shows.
//!
//! Everything runs by the way that models run; what it is held against is the reference interpreter of `weir-graph`, so nothing but the driver is needed
//! there. Without a GPU the same checks pass on the fake driver, where their times mean nothing.

mod answers;
pub(super) mod bench;
mod cases;
pub(super) mod chains;
mod floor;
mod folder;
mod functions;
mod goal;
mod handing_over;
mod kernel_graphs;
mod launches;
mod libraries;
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
pub use goal::{Goal, GoalBound};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use weir_device::Arena;
use weir_device::cuda::{CudaError, Devices, Library, Monitor, Search, Unavailable, locate_library};

/// Host memory for what comes back.
const ARENA_BYTES_MAX: u64 = 1 << 30;

/// A part of the checks. Each takes less than some minutes and needs none of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// What there is: driver, devices, memory.
    Environment,
    /// Every kind of operation in every precision, against the reference.
    Operations,
    /// What copies reach, by size.
    Transfers,
    /// What a launch costs, by itself and in a graph.
    Launches,
    /// Memory that is used up, handed over and shared.
    Memory,
    /// What a run leaves for the next on the device, or for one on a sibling, beside the way over the host.
    HandingOver,
    /// Whole models: loading, running, running again.
    Networks,
    /// Many functions with models of one family at once: what they take together.
    Functions,
    /// Models in a worker, as nodes run them: what the way there costs, and that a worker can be replaced. It is started from this same program.
    Worker,
    /// Kernels that users bring, in workers of their tenants, and what becomes of those that misbehave. Needs no models.
    KernelGraphs,
}

/// What is to be checked, and with how much.
#[derive(Debug, Clone)]
pub struct CheckConfig {
    /// Which of the driver's devices.
    pub ordinal: u32,
    /// Memory of the device that may be used.
    pub memory_bytes_max: u64,
    /// ONNX models for [`Stage::Networks`], [`Stage::Functions`] and [`Stage::Worker`].
    pub models: Vec<PathBuf>,
    /// Items of each run of [`Stage::Networks`], of models that take any number.
    pub batches: Vec<u32>,
    /// How often what is timed is repeated; the median counts.
    pub repeats: u32,
    /// Where NVIDIA's libraries may be.
    pub search: Search,
}

/// What computes an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Weir's own kernels.
    Own,
    /// NVIDIA's library for products of matrices.
    CublasLt,
    /// Kernels that NVIDIA's compiler makes of chains of elementwise operations.
    Nvrtc,
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Of which stage.
    pub stage: Stage,
    /// What it is.
    pub what: String,
    /// What computes it, where that may be one or another.
    pub tier: Option<Tier>,
    /// Whether it is as it should be.
    pub passed: bool,
    /// How far the worst element is off: in parts of its size or of 1, whichever is more; of networks, in parts of the largest element.
    pub error: Option<f64>,
    /// How far it may be off.
    pub tolerance: Option<f64>,
    /// How long it takes, in nanoseconds.
    pub time_ns: Option<u64>,
    /// Bytes that it moves, per second.
    pub bytes_per_s: Option<f64>,
    /// What it computes, in operations on floating-point numbers per second.
    pub flops_per_s: Option<f64>,
    /// The least time that the device's memory and units allow on paper, in parts of how long it takes: 1 is as fast as can be, and more is what its caches
    /// save.
    pub share_of_floor: Option<f64>,
    /// What is asked of it besides.
    pub goal: Option<Goal>,
    /// What else there is to say.
    pub detail: String,
}

/// Why checks ended before their end.
#[derive(Debug, thiserror::Error)]
pub enum CheckFailure {
    /// The device refused something, or is lost.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// A model was not loaded.
    #[error(transparent)]
    Model(#[from] InferenceError),
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Environment,
        Self::Operations,
        Self::Transfers,
        Self::Launches,
        Self::Memory,
        Self::HandingOver,
        Self::Networks,
        Self::Functions,
        Self::Worker,
        Self::KernelGraphs,
    ];

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Operations => "operations",
            Self::Transfers => "transfers",
            Self::Launches => "launches",
            Self::Memory => "memory",
            Self::HandingOver => "handing-over",
            Self::Networks => "networks",
            Self::Functions => "functions",
            Self::Worker => "worker",
            Self::KernelGraphs => "kernel-graphs",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|stage| stage.as_str() == text);
        found.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

impl CheckConfig {
    /// The file of one of NVIDIA's libraries.
    fn library(&self, library: Library, devices: &Devices) -> Result<PathBuf, Unavailable> {
        locate_library(library, &self.search, devices.driver_major())
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::CublasLt => "cublaslt",
            Self::Nvrtc => "nvrtc",
        })
    }
}

impl Check {
    fn passed(stage: Stage, what: impl Into<String>) -> Self {
        Self {
            stage,
            what: what.into(),
            tier: None,
            passed: true,
            error: None,
            tolerance: None,
            time_ns: None,
            bytes_per_s: None,
            flops_per_s: None,
            share_of_floor: None,
            goal: None,
            detail: String::new(),
        }
    }

    fn failed(stage: Stage, what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { passed: false, detail: why.to_string(), ..Self::passed(stage, what) }
    }

    /// With how far the worst element is off.
    fn off_by(self, error: f64, tolerance: f64) -> Self {
        // Not a number is not within anything.
        let is_close = error <= tolerance;
        Self { passed: self.passed && is_close, error: Some(error), tolerance: Some(tolerance), ..self }
    }

    /// With how long it took to move bytes and compute.
    #[expect(clippy::cast_precision_loss, reason = "rates need no sixteen digits")]
    fn took(self, time_ns: u64, bytes: u64, flops: u64) -> Self {
        let rate = |count: u64| (count > 0 && time_ns > 0).then(|| count as f64 / (time_ns as f64 / 1e9));
        Self { time_ns: Some(time_ns), bytes_per_s: rate(bytes), flops_per_s: rate(flops), ..self }
    }

    /// With what is asked of it.
    fn asked(self, goal: impl Into<Option<Goal>>) -> Self {
        Self { goal: goal.into(), ..self }
    }

    /// With the least time that it could take, in nanoseconds, where that is known. It says how long it took.
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    fn beside(self, floor_ns: Option<f64>) -> Self {
        let time_ns = self.time_ns.filter(|time_ns| *time_ns > 0);
        let share = time_ns.zip(floor_ns).map(|(time_ns, floor_ns)| floor_ns / time_ns as f64);
        Self { share_of_floor: share, ..self }
    }
}

/// Check one stage, and tell each thing as it was checked. Blocks; what a device does not survive ends the stage with an error.
pub fn check(
    devices: &Arc<Devices>,
    config: &CheckConfig,
    stage: Stage,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    if stage == Stage::Environment {
        environment(devices, tell);
        libraries::check(devices, config, tell);
        return Ok(());
    }
    if stage == Stage::Worker {
        // That holds the device itself.
        return worker::check(devices, config, tell);
    }
    if stage == Stage::KernelGraphs {
        // So do workers of tenants.
        return kernel_graphs::check(devices, config, tell);
    }
    let CheckConfig { ordinal, memory_bytes_max, .. } = *config;
    let library = config.library(Library::CublasLt, devices).ok();
    let library = library.map(|path| LibraryConfig { path, flops_min: FLOPS_MIN });
    let compiler = config.library(Library::Nvrtc, devices).ok();
    // Among the operations also what a node leaves to the interpreter, to see whether it is right to.
    let instructions_min = if stage == Stage::Operations { 1 } else { INSTRUCTIONS_MIN };
    let compiler = compiler.map(|path| CompilerConfig { path, instructions_min });
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
    let monitor = matches!(stage, Stage::Memory | Stage::Functions).then(|| Monitor::of(devices));
    let used = || used_bytes(monitor.as_ref()?, devices, ordinal);
    let before = used();
    let gpu = Arc::new(Gpu::open(devices, &gpu, &Arena::new(ARENA_BYTES_MAX))?);
    let context_bytes = before.zip(used()).map(|(before, after)| after.saturating_sub(before));
    match stage {
        Stage::Environment | Stage::Worker | Stage::KernelGraphs => {}
        Stage::Operations => operations::check(&gpu, config, tell)?,
        Stage::Transfers => transfers::check(&gpu, config, tell)?,
        Stage::Launches => launches::check(&gpu, config, tell)?,
        Stage::Memory => memory::check(&gpu, context_bytes, tell)?,
        Stage::HandingOver => handing_over::check(devices, &gpu, config, tell)?,
        Stage::Networks => {
            config.models.iter().try_for_each(|path| network::check(&gpu, config, path, tell))?;
        }
        Stage::Functions => {
            config.models.iter().try_for_each(|path| functions::check(&gpu, context_bytes, path, tell))?;
        }
    }
    Ok(())
}

/// How much of a device's memory is in use, by whichever process; none if it does not tell.
fn used_bytes(monitor: &Monitor, devices: &Devices, ordinal: u32) -> Option<u64> {
    let place = devices.infos().iter().position(|info| info.ordinal == ordinal)?;
    monitor.read().get(place)?.memory_used_bytes
}

fn environment(devices: &Devices, tell: &mut dyn FnMut(Check)) {
    let driver = format!("CUDA {} in {}", devices.driver_version(), devices.driver_path().display());
    tell(Check { detail: driver, ..Check::passed(Stage::Environment, "driver") });
    for info in devices.infos() {
        let (major, minor) = info.compute_capability;
        let detail = format!(
            "{}, compute capability {major}.{minor}, {} multiprocessors, {} MiB, at {}",
            info.name,
            info.multiprocessors,
            info.memory_bytes >> 20,
            info.pci
        );
        let check = Check { detail, ..Check::passed(Stage::Environment, format!("cuda:{}", info.ordinal)) };
        // Blocks of memory must be mapped where graphs expect them, and there must be kernels.
        let is_known = info.maps_memory && weir_kernels::Module::Gemm.ptx(major * 10 + minor).is_some();
        tell(Check { passed: is_known, ..check });
    }
}
