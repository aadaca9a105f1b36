//! Program bound to a device: functions and addresses, except addresses in the memory of the slot
//! that runs the program.
#![allow(unsafe_code, reason = "kernels are launched")]

mod arriving;
pub(crate) use arriving::Ordered;
mod order;
use order::graph_order;
mod step;
use step::{Address, BoundStep, BoundWork};

use crate::captured::CaptureBackoff;
use crate::chains::Chains;
use crate::device::Gpu;
use crate::failure::{failure, weights_failure};
use crate::program::{BufferLocation, LibraryGemm, Program, ProgramStep, StepMemory, StepWork};
use crate::weights::Weights;
use arriving::Prologue;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_device::cuda::{
    AddressRange, BLOCK_BYTES, CopySource, CudaError, Graph, KernelParameters, MemoryOwner, ProductShape,
    RecordedWork, Span, Stream, TensorGuard, TensorKey, Wanted,
};
use weir_inference::InferenceError;
use weir_types::ContentHash;

/// Alignment of a workspace: NVIDIA's recommendation for cuBLASLt.
const WORKSPACE_ALIGNMENT_BYTES: u64 = 256;

/// Bound steps of a program, and the device memory that they read in addition to the model's
/// weights.
pub struct Bound {
    /// Unique number of the bound program.
    pub(crate) number: u64,
    /// Program that was bound.
    pub program: Arc<Program>,
    /// Backoff for the graph captures of this program, shared by all sessions and slots.
    pub(crate) captures: CaptureBackoff,
    prologue: Prologue,
    steps: Vec<BoundStep>,
    /// For each step, the steps that it follows directly in a graph.
    order: Vec<Vec<usize>>,
    constants: Vec<TensorGuard>,
    resident: Option<AddressRange>,
}

impl Bound {
    /// Allocates device memory for `program` and starts the transfers into it. The data can arrive
    /// later: see `Self::begin`.
    pub fn new(
        gpu: &Gpu,
        program: impl Into<Arc<Program>>,
        weights: &Weights,
        owner: MemoryOwner,
    ) -> Result<Self, InferenceError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let program = program.into();
        let wanted = program.constants.iter().map(|bytes| Wanted {
            key: TensorKey { hash: ContentHash::from_content(bytes), layout: 0 },
            source: CopySource::Pageable(bytes.clone()),
        });
        let constants =
            gpu.tensors.acquire(vec![wanted.collect()]).map_err(|error| weights_failure(&error))?;
        let constants: Vec<TensorGuard> = constants.into_iter().flatten().collect();
        let resident = (program.resident_bytes > 0).then(|| resident(gpu, program.resident_bytes, owner));
        let resident = resident.transpose().map_err(|error| failure(&error))?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let captures = CaptureBackoff::default();
        let steps = Vec::new();
        let prologue = Prologue::default();
        let order = Vec::new();
        let mut bound = Self { number, program, captures, prologue, steps, order, constants, resident };
        let prologue = bound.steps(gpu, &bound.program.prologue, weights).map_err(|error| failure(&error))?;
        bound.prologue = Prologue::new(prologue);
        bound.steps = bound.steps(gpu, &bound.program.steps, weights).map_err(|error| failure(&error))?;
        bound.order = graph_order(bound.steps.iter().map(|step| &step.memory));
        // Request compilation of the run's chains. The prologue runs once, so its chains are
        // interpreted.
        bound.settle(&gpu.chains);
        // Binding may have loaded kernel modules, which changes the memory in use.
        gpu.measure().map_err(|error| failure(&error))?;
        Ok(bound)
    }

    /// Returns the number of steps that the library computes.
    pub fn library_steps(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step.work, BoundWork::Product(_))).count()
    }

    /// Switches chains to their compiled kernels where these are ready.
    ///
    /// Returns whether the kernel of every step is final. From then on, a captured graph stays
    /// valid.
    pub(crate) fn settle(&self, chains: &Chains) -> bool {
        // `count` requests the compilation of every chain; a short-circuiting method would stop at
        // the first pending chain.
        self.steps.iter().filter(|step| !step.settle(chains)).count() == 0
    }

    /// Returns the number of steps with kernels that were compiled for their chains.
    pub fn compiled_steps(&self) -> usize {
        self.steps.iter().filter(|step| step.is_compiled()).count()
    }

    /// Waits until the kernel of every step is final, and returns the number of compiled steps. For
    /// checks and tests: runs never wait for the compiler.
    #[must_use]
    pub fn wait_for_compiler(&self, chains: &Chains) -> usize {
        chains.wait_until(|| self.settle(chains));
        self.compiled_steps()
    }

    /// Enqueues a run on `stream`, with `arena` as its working memory.
    ///
    /// # Safety
    /// `arena` must have the length that the program requires. Until the work is done, no other
    /// work may use `arena`, and the model's weights and `self` must stay alive.
    pub(crate) unsafe fn launch(&self, stream: &Stream, arena: Span) -> Result<(), CudaError> {
        let mut parameters = KernelParameters::default();
        // SAFETY: the caller guarantees the arena and the weights; `self` owns the constants and
        // the resident memory.
        self.steps.iter().try_for_each(|step| unsafe { step.launch(stream, arena, &mut parameters) })
    }

    /// Captures a run on `stream` as a graph, with `arena` as its working memory. Steps that use
    /// different memory become parallel branches of the graph.
    ///
    /// # Safety
    /// Same as for [`Self::launch`], for every launch of the graph.
    pub(crate) unsafe fn capture(&self, stream: &Stream, arena: Span) -> Result<Graph, CudaError> {
        stream.capture(|recording| {
            let mut parameters = KernelParameters::default();
            let mut recorded: Vec<RecordedWork<'_>> = Vec::with_capacity(self.steps.len());
            for (step, followed) in self.steps.iter().zip(&self.order) {
                recording.follow(followed.iter().filter_map(|before| recorded.get(*before)))?;
                // SAFETY: as in `launch`; `order` orders all steps that use the same memory.
                unsafe { step.launch(stream, arena, &mut parameters) }?;
                recorded.push(recording.last()?);
            }
            Ok(())
        })
    }

    /// Captures a run as a graph without parallel branches. For checks that compare the two.
    ///
    /// # Safety
    /// Same as for [`Self::capture`].
    pub(crate) unsafe fn capture_in_sequence(
        &self,
        stream: &Stream,
        arena: Span,
    ) -> Result<Graph, CudaError> {
        // SAFETY: guaranteed by the caller.
        stream.capture(|recording| unsafe { self.launch(recording.stream(), arena) })
    }

    /// Returns the kernel of each step with its size.
    pub(crate) fn titles(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.title.as_str())
    }

    /// Enqueues one step of a run, `times` times in a row. Its result is meaningless unless the
    /// steps before have run.
    ///
    /// # Safety
    /// Same as for [`Self::launch`].
    pub(crate) unsafe fn launch_step(
        &self,
        step: usize,
        times: u32,
        stream: &Stream,
        arena: Span,
    ) -> Result<(), CudaError> {
        let Some(step) = self.steps.get(step) else { return Ok(()) };
        let mut parameters = KernelParameters::default();
        // SAFETY: as in `launch`.
        (0..times).try_for_each(|_| unsafe { step.launch(stream, arena, &mut parameters) })
    }

    /// Returns the device memory of a port.
    pub(crate) fn span(
        &self,
        place: BufferLocation,
        bytes: u64,
        weights: &Weights,
        arena: Span,
    ) -> Option<Span> {
        match place {
            BufferLocation::Arena(offset) => arena.slice(offset, bytes),
            BufferLocation::Resident(offset) => self.resident.as_ref()?.span().slice(offset, bytes),
            BufferLocation::Weight(index) => weights.span(index)?.slice(0, bytes),
            BufferLocation::Constant(index) => self.constants.get(index)?.span().slice(0, bytes),
        }
    }

    fn steps(
        &self,
        gpu: &Gpu,
        steps: &[ProgramStep],
        weights: &Weights,
    ) -> Result<Vec<BoundStep>, CudaError> {
        let met = HashSet::new();
        let mut made =
            Making { bound: self, gpu, weights, met, steps: Vec::new(), library_workspace_offset_bytes: 0 };
        for ProgramStep { work, memory } in steps {
            match work {
                StepWork::Launch(launch) => made.launch(launch, memory)?,
                StepWork::Product { product, then, otherwise } => {
                    made.product(product, then, otherwise, memory)?;
                }
            }
        }
        Ok(made.steps)
    }

    fn address(&self, place: BufferLocation, weights: &Weights) -> Option<Address> {
        let at = |span: Span| Address::At(span.address());
        match place {
            BufferLocation::Arena(offset) => Some(Address::InArena(offset)),
            BufferLocation::Resident(offset) => {
                Some(Address::At(self.resident.as_ref()?.span().address() + offset))
            }
            BufferLocation::Weight(index) => weights.span(index).map(at),
            BufferLocation::Constant(index) => self.constants.get(index).map(|tensor| at(tensor.span())),
        }
    }
}

/// Allocates the memory that lives as long as the program. It is left uninitialised: the prologue
/// writes every byte that is read.
fn resident(gpu: &Gpu, bytes: u64, owner: MemoryOwner) -> Result<AddressRange, CudaError> {
    let mut range = AddressRange::reserve(&gpu.pool, bytes)?;
    let places = usize::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX);
    gpu.make_room(|| range.back(0..places, owner, None))?;
    Ok(range)
}

/// Builder that binds steps in order.
struct Making<'a> {
    bound: &'a Bound,
    gpu: &'a Gpu,
    weights: &'a Weights,
    /// Weights and constants that earlier steps read.
    met: HashSet<BufferLocation>,
    steps: Vec<BoundStep>,
    /// Offset of the workspace of the library's next product in the workspace of all products.
    library_workspace_offset_bytes: u64,
}

impl Making<'_> {
    fn launch(
        &mut self,
        launch: &weir_kernels::Launch<BufferLocation>,
        memory: &StepMemory,
    ) -> Result<(), CudaError> {
        let mut placing = Placing::new(self);
        let placed = launch.with_buffers(|place| placing.address(*place));
        let arrivals = placing.arrivals(&launch.kernel.name)?;
        let function =
            self.gpu.outside_pool(|| self.gpu.kernels.function(&launch.kernel, launch.shared_bytes))?;
        let [x, y, z] = launch.grid;
        let title = format!("{} {x}x{y}x{z}", launch.kernel.name);
        let work = BoundWork::kernel(function, placed);
        self.steps.push(BoundStep { title, work, memory: memory.with_workspace_written(), arrivals });
        Ok(())
    }

    /// Uses the library, or the fallback kernels if the library has no algorithm for the product.
    fn product(
        &mut self,
        product: &LibraryGemm<BufferLocation>,
        then: &[weir_kernels::Launch<BufferLocation>],
        otherwise: &[weir_kernels::Launch<BufferLocation>],
        memory: &StepMemory,
    ) -> Result<(), CudaError> {
        let Some(made) = self.gpu.products.make(product)? else {
            return otherwise.iter().try_for_each(|launch| self.launch(launch, memory));
        };
        let (product, workspace) = self.with_workspace(product, made.workspace_bytes());
        let memory = StepMemory { workspace, ..memory.clone() };
        let mut placing = Placing::new(self);
        let buffers =
            product.buffers.map(|operand| placing.address(operand.buffer).further(operand.offset_bytes));
        let arrivals = placing.arrivals("cublasLtMatmul")?;
        let ProductShape { m, n, k, batch, .. } = product.shape;
        let title = format!("cublasLtMatmul {batch} of {m}x{n}x{k}");
        let work = BoundWork::Product(Box::new((made, buffers)));
        self.steps.push(BoundStep { title, work, memory: memory.with_workspace_written(), arrivals });
        let memory = StepMemory { workspace: 0..0, ..memory };
        then.iter().try_for_each(|launch| self.launch(launch, &memory))
    }

    /// Gives a product the next part of the library's workspace, so that independent products can
    /// run concurrently. Returns the product and the bytes of the arena.
    fn with_workspace(
        &mut self,
        product: &LibraryGemm<BufferLocation>,
        bytes: u64,
    ) -> (LibraryGemm<BufferLocation>, Range<u64>) {
        let mut product = *product;
        let BufferLocation::Arena(start) = product.buffers.workspace.buffer else { return (product, 0..0) };
        let mut offset_bytes = self.library_workspace_offset_bytes;
        if offset_bytes + bytes > product.workspace_bytes {
            offset_bytes = 0;
        }
        self.library_workspace_offset_bytes =
            (offset_bytes + bytes).next_multiple_of(WORKSPACE_ALIGNMENT_BYTES);
        product.buffers.workspace.offset_bytes = offset_bytes;
        let start = start + offset_bytes;
        (product, start..start + bytes)
    }
}

/// Resolver of the buffer addresses of one step.
struct Placing<'a> {
    bound: &'a Bound,
    weights: &'a Weights,
    met: &'a mut HashSet<BufferLocation>,
    arrivals: Vec<BufferLocation>,
    is_missing: bool,
}

impl<'a> Placing<'a> {
    fn new(made: &'a mut Making<'_>) -> Self {
        let Making { bound, weights, met, .. } = made;
        Self { bound, weights, met, arrivals: Vec::new(), is_missing: false }
    }

    fn address(&mut self, place: BufferLocation) -> Address {
        if matches!(place, BufferLocation::Weight(_) | BufferLocation::Constant(_)) && self.met.insert(place)
        {
            self.arrivals.push(place);
        }
        self.bound.address(place, self.weights).unwrap_or_else(|| {
            self.is_missing = true;
            Address::At(0)
        })
    }

    /// Returns the weights and constants whose transfer the step must wait for.
    fn arrivals(self, name: &str) -> Result<Vec<BufferLocation>, CudaError> {
        if self.is_missing {
            return Err(CudaError::Invalid(format!("{name} was given a buffer that is nowhere")));
        }
        Ok(self.arrivals)
    }
}
