//! Execution of kernel graphs on a device, in the worker process.
#![allow(unsafe_code, reason = "work is enqueued on a device, with addresses of pinned memory")]

use super::loaded::LoadedGraph;
use super::message::KernelGraphReply;
use crate::slots::STAGING_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use weir_device::cuda::{
    BlockPool, Context, CudaError, Devices, Event, MemoryOwner, Priority, Search, SlotMemory, StagingBuffer,
    Stream,
};
use weir_kernel_graph::RunPlanError;
use weir_worker::{TensorFile, TensorLocation, write_memory};

/// All data in this process belongs to one tenant.
const OWNER: MemoryOwner = MemoryOwner(1);

/// Opened device and its loaded graphs. Fields drop in declaration order: data in device memory
/// must be freed before the device.
pub(super) struct GraphRunner {
    graphs: HashMap<u64, LoadedGraph>,
    memory: SlotMemory,
    staging: StagingBuffer,
    began: Event,
    ended: Event,
    stream: Arc<Stream>,
    context: Arc<Context>,
    memory_bytes_max: u64,
    opened: Instant,
}

/// Reason of a failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum GraphFailure {
    #[error(transparent)]
    Device(#[from] CudaError),
    #[error(transparent)]
    Plan(#[from] RunPlanError),
    #[error("the memory for tensors: {0}")]
    Memory(#[from] std::io::Error),
    #[error("{0}")]
    Other(String),
}

impl GraphFailure {
    /// Returns whether the device context is lost.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Device(error) if error.is_context_lost())
    }

    fn answer(self) -> KernelGraphReply {
        let why = self.to_string();
        match self {
            Self::Plan(RunPlanError::Memory { .. }) => KernelGraphReply::OutOfMemory(why),
            Self::Plan(_) => KernelGraphReply::Refused(why),
            Self::Device(error) if error.is_context_lost() => KernelGraphReply::Lost(why),
            Self::Device(error) if error.is_out_of_memory() => KernelGraphReply::OutOfMemory(why),
            Self::Device(_) | Self::Memory(_) | Self::Other(_) => KernelGraphReply::Failed(why),
        }
    }
}

impl GraphRunner {
    /// Opens a device.
    pub(super) fn open(driver: PathBuf, ordinal: u32, memory_bytes_max: u64) -> Result<Self, String> {
        let search = Search { driver: Some(driver), ..Search::default() };
        let devices = Devices::discover(&search).map_err(|error| error.to_string())?;
        Self::new(&devices, ordinal, memory_bytes_max).map_err(|error| error.to_string())
    }

    fn new(devices: &Devices, ordinal: u32, memory_bytes_max: u64) -> Result<Self, CudaError> {
        let context = devices.open(ordinal)?;
        let pool = BlockPool::new(&context, memory_bytes_max)?;
        let stream = Arc::new(Stream::new(&context, Priority::Normal)?);
        let memory = SlotMemory::new(&pool, &stream, memory_bytes_max, 0)?;
        let began = Event::with_timing(&context)?;
        let ended = Event::with_timing(&context)?;
        let staging = StagingBuffer::new(&context, STAGING_BYTES)?;
        let graphs = HashMap::new();
        let opened = Instant::now();
        Ok(Self { graphs, memory, staging, began, ended, stream, context, memory_bytes_max, opened })
    }

    /// Loads a graph and its code.
    pub(super) fn load(&mut self, number: u64, file: &Path) -> KernelGraphReply {
        match LoadedGraph::read(file, &self.context, &self.stream) {
            Ok(loaded) => {
                self.graphs.insert(number, loaded);
                KernelGraphReply::Done
            }
            Err(failure) => failure.answer(),
        }
    }

    /// Unloads a graph.
    pub(super) fn forget(&mut self, number: u64) -> KernelGraphReply {
        self.graphs.remove(&number);
        KernelGraphReply::Done
    }

    /// Runs a graph, with tensors in `memory`.
    pub(super) fn run(
        &mut self,
        number: u64,
        inputs: &[TensorLocation],
        wanted: &[usize],
        outputs_at: u64,
        memory: &File,
    ) -> KernelGraphReply {
        let ran = self.try_run(number, inputs, wanted, outputs_at, memory);
        ran.unwrap_or_else(|failure| {
            // Enqueued work must end before any other work starts.
            match self.stream.synchronize() {
                Err(error) if error.is_context_lost() => GraphFailure::Device(error).answer(),
                _ => failure.answer(),
            }
        })
    }

    fn try_run(
        &mut self,
        number: u64,
        inputs: &[TensorLocation],
        wanted: &[usize],
        outputs_at: u64,
        memory: &File,
    ) -> Result<KernelGraphReply, GraphFailure> {
        let graph = self
            .graphs
            .get_mut(&number)
            .ok_or_else(|| GraphFailure::Other("there is no such graph".to_owned()))?;
        let shapes: Vec<_> = inputs.iter().map(|input| input.shape.clone()).collect();
        let (plan, run) = graph.plan(&shapes, self.memory_bytes_max)?;
        let now_ns = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let arena = self.memory.prepare(plan.arena_bytes, OWNER, now_ns)?;
        let outputs: Vec<_> = wanted.iter().filter_map(|wanted| plan.outputs.get(*wanted)).collect();
        let input_bytes: u64 = plan.inputs.iter().map(|region| region.bytes).sum();
        let output_bytes: u64 = outputs.iter().map(|output| output.region.bytes).sum();
        let staging_bytes = usize::try_from(input_bytes.max(output_bytes)).unwrap_or(usize::MAX);
        let staging = self.staging.get(staging_bytes)?;
        let stream = &self.stream;
        let part_of = |offset, bytes| arena.slice(offset, bytes).ok_or_else(misfit);

        let mut rest = &mut *staging;
        let mut places = Vec::with_capacity(inputs.len());
        for (input, region) in inputs.iter().zip(&plan.inputs) {
            let (place, behind) = take(rest, region.bytes)?;
            memory.read_exact_at(place, input.offset)?;
            places.push((&*place, part_of(region.offset, region.bytes)?));
            rest = behind;
        }
        stream.record(&self.began)?;
        for (place, to) in places {
            // SAFETY: the staging memory belongs to `self`, and is neither written nor freed before
            // the stream is synchronised below.
            unsafe { stream.copy_from_host(place.as_ptr(), to) }?;
        }
        // SAFETY: the arena has the length that the plan requires, belongs to `self`, and is always
        // at the same addresses. The stream is synchronised below.
        let not_captured = unsafe { run.launch(stream, arena) }?;
        // The copies of the inputs are done, so the outputs can reuse the staging memory.
        stream.synchronize()?;
        let mut rest = &mut *staging;
        let mut parts = Vec::with_capacity(outputs.len());
        let mut offset = outputs_at;
        let mut places = Vec::with_capacity(outputs.len());
        for output in &outputs {
            let (place, behind) = take(rest, output.region.bytes)?;
            // SAFETY: as above.
            unsafe {
                stream.copy_to_host(part_of(output.region.offset, output.region.bytes)?, place.as_mut_ptr())
            }?;
            places.push(place);
            rest = behind;
        }
        stream.record(&self.ended)?;
        stream.synchronize()?;
        for (output, place) in outputs.iter().zip(places) {
            write_memory(memory, place, offset)?;
            parts.push(TensorLocation {
                shape: output.shape.clone(),
                file: TensorFile::Connection,
                offset,
                bytes: output.region.bytes,
            });
            offset = offset.saturating_add(output.region.bytes);
        }
        let device_time_ns = self.ended.since_ns(&self.began)?;
        let not_captured = not_captured.map(|failure| failure.to_string());
        Ok(KernelGraphReply::Ran { outputs: parts, device_time_ns, not_captured })
    }
}

fn take(rest: &mut [u8], bytes: u64) -> Result<(&mut [u8], &mut [u8]), GraphFailure> {
    rest.split_at_mut_checked(usize::try_from(bytes).unwrap_or(usize::MAX)).ok_or_else(misfit)
}

pub(super) fn misfit() -> GraphFailure {
    GraphFailure::Other("a tensor is not where the plan says".to_owned())
}
