//! Device opened for a stage, and the timing of programs on it.

use crate::config::CheckConfig;
use crate::stage::Stage;
use crate::timer::{MeasuredTime, Timer};
use std::sync::Arc;
use weir_cuda::IntermediateLimits;
use weir_cuda::executor::{
    CompilerConfig, Gpu, GpuConfig, INSTRUCTIONS_MIN, LibraryConfig, Outputs, PreparedRun,
};
use weir_device::Arena;
use weir_device::cuda::{CudaError, Devices, Library, MemoryOwner, Monitor};

/// Owner of the memory that checks allocate.
pub(crate) const OWNER: MemoryOwner = MemoryOwner(0);
/// Host memory for outputs, in bytes.
const ARENA_BYTES_MAX: u64 = 1 << 30;

/// Device opened for a stage, with the tools for the checks.
pub(crate) struct Bench<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) config: &'a CheckConfig,
    pub(crate) timer: Timer,
    /// Device memory of the context, including the pinned ring and the streams. `None` if the
    /// driver does not report it.
    pub(crate) context_bytes: Option<u64>,
}

impl<'a> Bench<'a> {
    pub(crate) fn open(
        devices: &'a Devices,
        config: &'a CheckConfig,
        stage: Stage,
    ) -> Result<Self, CudaError> {
        let CheckConfig { ordinal, memory_bytes_max, .. } = *config;
        let locate = |library| {
            let path = stage.uses_libraries().then(|| config.library(library, devices).ok());
            path.flatten()
        };
        let library =
            locate(Library::CublasLt).map(|path| LibraryConfig { path, flops_min: config.library_flops_min });
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

/// Outputs of a program, and the time of a run.
pub(crate) struct TimedOutputs {
    pub(crate) outputs: Outputs,
    pub(crate) measured: MeasuredTime,
}

/// Results of the same program launched kernel by kernel, and as a graph.
pub(crate) struct BothWays {
    pub(crate) launched: TimedOutputs,
    pub(crate) captured: TimedOutputs,
    /// Time of a graph that runs all steps in sequence.
    pub(crate) in_sequence: MeasuredTime,
}

/// Runs the program launch by launch and as a graph, and times both.
pub(crate) fn both_ways(run: &PreparedRun<'_>, timer: &Timer) -> Result<BothWays, CudaError> {
    let ([launched, captured], mut graph) = run.outputs_both_ways()?;
    let launched = TimedOutputs { outputs: launched, measured: timer.device(run.stream, || run.launch())? };
    let measured = timer.device(run.stream, || graph.launch())?;
    drop(graph);
    let mut graph = run.capture_in_sequence()?;
    let in_sequence = timer.device(run.stream, || graph.launch())?;
    Ok(BothWays { launched, captured: TimedOutputs { outputs: captured, measured }, in_sequence })
}
