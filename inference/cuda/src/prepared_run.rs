//! Single runs of a program, with inputs and outputs in host memory.
#![allow(unsafe_code, reason = "kernels are launched")]

use crate::bound::{Bound, Ordered};
use crate::device::Gpu;
use crate::failure::failure;
use crate::program::ProgramPort;
use crate::weights::Weights;
use std::time::Instant;
use weir_device::cuda::{CudaError, Event, GraphExec, MemoryOwner, PinnedMemory, Recording, Span, Stream};
use weir_graph::reference::ReferenceTensor;
use weir_inference::{InferenceError, Interrupt};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunFailure {
    /// The device rejected a call, or is lost.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The weights of the model failed to load.
    #[error(transparent)]
    Model(#[from] InferenceError),
}

/// Program in a slot, with its inputs written.
pub struct PreparedRun<'a> {
    bound: &'a Bound,
    weights: &'a Weights,
    inputs: &'a [ReferenceTensor],
    /// Stream of the slot.
    pub stream: &'a Stream,
    arena: Span,
}

/// Launches of a prepared run, captured as a graph.
pub struct CapturedRun<'a> {
    stream: &'a Stream,
    graph: GraphExec,
}

/// Inputs in pinned memory, like the inputs of runs on a node. A run therefore enqueues their copy
/// to the device without waiting for it.
pub struct PinnedInputs(Vec<PinnedMemory>);

/// Bytes of every output.
pub type Outputs = Vec<Vec<u8>>;

/// Runs `work` with a program whose weights have arrived in a slot and whose inputs are written.
pub fn in_slot<T>(
    gpu: &Gpu,
    owner: MemoryOwner,
    bound: &Bound,
    weights: &Weights,
    inputs: &[ReferenceTensor],
    work: impl FnOnce(&PreparedRun<'_>) -> Result<T, CudaError>,
) -> Result<T, RunFailure> {
    let mut taken = gpu.slots.take(Some(0));
    let slot = taken.slot().ok_or_else(|| CudaError::Invalid("the device has no slots".to_owned()))?;
    let arena = gpu.make_room(|| slot.memory.prepare(bound.program.arena_bytes, owner, gpu.now_ns()))?;
    let run = PreparedRun { bound, weights, inputs, stream: &slot.stream, arena };
    let begun = run.begin();
    let worked = begun.and_then(|()| Ok(run.give_inputs().and_then(|()| work(&run))?));
    // The slot must be idle when it is returned.
    slot.stream.synchronize()?;
    worked
}

/// Result of a run that was ordered after the transfer of its weights.
pub struct ColdOutputs {
    /// Outputs of the run.
    pub outputs: Outputs,
    /// When all steps were enqueued, which is when the last weights were in transfer.
    pub launched_at: Instant,
}

/// Runs a program once, ordered after the transfer of its weights, and returns its outputs.
pub fn cold_outputs(
    gpu: &Gpu,
    owner: MemoryOwner,
    bound: &Bound,
    weights: &Weights,
    inputs: &PinnedInputs,
) -> Result<ColdOutputs, RunFailure> {
    let mut taken = gpu.slots.take(Some(0));
    let slot = taken.slot().ok_or_else(|| CudaError::Invalid("the device has no slots".to_owned()))?;
    let arena = gpu.make_room(|| slot.memory.prepare(bound.program.arena_bytes, owner, gpu.now_ns()))?;
    let run = PreparedRun { bound, weights, inputs: &[], stream: &slot.stream, arena };
    let interrupt = Interrupt::default();
    let mut ordered = Ordered::new(run.stream, &interrupt);
    // SAFETY: as in `launch`.
    let begun = unsafe { bound.begin(&mut ordered, weights, arena) };
    let ran = begun.and_then(|()| {
        // SAFETY: the inputs are borrowed until the stream is synchronised below.
        unsafe { inputs.give(&run) }.map_err(|error| failure(&error))?;
        // SAFETY: as in `launch`.
        unsafe { bound.launch_behind(&mut ordered, weights, arena) }
    });
    let launched_at = Instant::now();
    slot.stream.synchronize()?;
    ran?;
    Ok(ColdOutputs { outputs: run.outputs()?, launched_at })
}

impl PinnedInputs {
    /// Copies inputs into pinned memory.
    pub fn new(gpu: &Gpu, inputs: &[ReferenceTensor]) -> Result<Self, CudaError> {
        let copy = |input: &ReferenceTensor| PinnedMemory::copy_of(&gpu.context, &input.to_bytes());
        Ok(Self(inputs.iter().map(copy).collect::<Result<_, _>>()?))
    }

    /// Enqueues the copies of the inputs.
    ///
    /// # Safety
    /// `self` must live until the work of the run's stream is done.
    unsafe fn give(&self, run: &PreparedRun<'_>) -> Result<(), CudaError> {
        for (port, input) in run.bound.program.inputs.iter().zip(&self.0) {
            let to = run.span(port)?;
            let from = input.as_slice();
            if (from.len() as u64) < to.bytes() {
                return Err(CudaError::Invalid("an input of the run is too short".to_owned()));
            }
            // SAFETY: the memory is long enough; the caller keeps it, and nothing writes to it.
            unsafe { run.stream.copy_from_host(from.as_ptr(), to) }?;
        }
        Ok(())
    }
}

impl PreparedRun<'_> {
    /// Waits until all data that runs read has arrived.
    fn begin(&self) -> Result<(), RunFailure> {
        self.bound.wait(self.weights)?;
        let interrupt = Interrupt::default();
        let mut ordered = Ordered::new(self.stream, &interrupt);
        // SAFETY: as in `launch`.
        unsafe { self.bound.begin(&mut ordered, self.weights, self.arena) }?;
        Ok(self.stream.synchronize()?)
    }

    /// Writes the inputs. Each run needs this, because a run can reuse the memory of its inputs.
    pub fn give_inputs(&self) -> Result<(), CudaError> {
        for (port, input) in self.bound.program.inputs.iter().zip(self.inputs) {
            self.stream.write(&input.to_bytes(), self.span(port)?)?;
        }
        Ok(())
    }

    /// Runs the program once, launch by launch, and waits for the run.
    pub fn run(&self) -> Result<(), CudaError> {
        self.launch()?;
        self.stream.synchronize()
    }

    /// Captures the run as a graph, like a node.
    pub fn capture(&self) -> Result<CapturedRun<'_>, CudaError> {
        // SAFETY: as in `launch`; the captured run borrows `self`.
        let graph = unsafe { self.bound.capture(self.stream, self.arena) }?;
        Ok(CapturedRun { stream: self.stream, graph: graph.instantiate()? })
    }

    /// Captures the launches as a graph without parallel branches.
    pub fn capture_in_sequence(&self) -> Result<CapturedRun<'_>, CudaError> {
        // SAFETY: as in `launch`; the captured run borrows `self`.
        let graph = unsafe { self.bound.capture_in_sequence(self.stream, self.arena) }?;
        Ok(CapturedRun { stream: self.stream, graph: graph.instantiate()? })
    }

    /// Returns the outputs of a run launched kernel by kernel and of a run as a graph, and the
    /// graph.
    pub fn outputs_both_ways(&self) -> Result<([Outputs; 2], CapturedRun<'_>), CudaError> {
        self.run()?;
        let launched = self.outputs()?;
        let mut graph = self.capture()?;
        self.give_inputs()?;
        graph.launch()?;
        Ok(([launched, self.outputs()?], graph))
    }

    /// Enqueues the launches on the stream.
    pub fn launch(&self) -> Result<(), CudaError> {
        // SAFETY: the arena belongs to the slot. The slot, the program and its weights are held
        // until the stream is synchronised.
        unsafe { self.bound.launch(self.stream, self.arena) }
    }

    /// Measures every step of the program alone, and returns its kernel with its size and the device
    /// time of one launch in nanoseconds. The `launches` of a step follow each other in a graph, so
    /// the time excludes the host; data that fits the cache is in the cache.
    pub fn step_times_ns(&self, launches: u32) -> Result<Vec<(String, u64)>, CudaError> {
        let titles = self.bound.titles().map(str::to_owned).enumerate();
        titles.map(|(step, title)| Ok((title, self.step_time_ns(step, launches.max(1))?))).collect()
    }

    fn step_time_ns(&self, step: usize, times: u32) -> Result<u64, CudaError> {
        // SAFETY: as in `launch`.
        let launches =
            |_: &Recording<'_>| unsafe { self.bound.launch_step(step, times, self.stream, self.arena) };
        let mut graph =
            CapturedRun { stream: self.stream, graph: self.stream.capture(launches)?.instantiate()? };
        // The first launch of a graph also uploads it.
        graph.launch()?;
        let [begin, end] =
            [Event::with_timing(self.stream.context())?, Event::with_timing(self.stream.context())?];
        self.stream.record(&begin)?;
        graph.launch()?;
        self.stream.record(&end)?;
        self.stream.synchronize()?;
        Ok(end.since_ns(&begin)? / u64::from(times))
    }

    /// Reads every output.
    pub fn outputs(&self) -> Result<Outputs, CudaError> {
        let read = |port: &ProgramPort| {
            let mut bytes = vec![0; port.tensor.bytes()];
            self.stream.read(self.span(port)?, &mut bytes)?;
            Ok(bytes)
        };
        self.bound.program.outputs.iter().map(read).collect()
    }

    fn span(&self, port: &ProgramPort) -> Result<Span, CudaError> {
        let span = self.bound.span(port.place, port.tensor.bytes() as u64, self.weights, self.arena);
        span.ok_or_else(|| CudaError::Invalid("a port of the program is nowhere".to_owned()))
    }
}

impl CapturedRun<'_> {
    /// Enqueues the graph on the stream of the run.
    pub fn launch(&mut self) -> Result<(), CudaError> {
        // SAFETY: as in `PreparedRun::launch`, whose slot, program and weights are borrowed.
        unsafe { self.graph.launch(self.stream) }
    }
}
