//! Program bound to a device: functions and addresses, except addresses in the memory of the slot
//! that runs the program.
#![allow(unsafe_code, reason = "kernels are launched")]

mod arriving;
pub(crate) use arriving::Ordered;
mod step;
use step::{Address, BoundStep, StepWork};

use crate::captured::CaptureBackoff;
use crate::chains::Chains;
use crate::device::Gpu;
use crate::failure::{failure, weights_failure};
use crate::program::{self, BufferLocation, LibraryGemm, Program};
use crate::weights::Weights;
use arriving::Prologue;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_device::cuda::{
    AddressRange, BLOCK_BYTES, CopySource, CudaError, KernelParameters, MemoryOwner, ProductShape, Span,
    Stream, TensorGuard, TensorKey, Wanted,
};
use weir_inference::InferenceError;
use weir_types::ContentHash;

/// Bound steps of a program, and the device memory that they read in addition to the model's
/// weights.
pub struct Bound {
    /// Unique number of the bound program.
    pub(crate) number: u64,
    /// Program that was bound.
    pub program: Program,
    /// Backoff for the graph captures of this program, shared by all sessions and slots.
    pub(crate) captures: CaptureBackoff,
    prologue: Prologue,
    steps: Vec<BoundStep>,
    constants: Vec<TensorGuard>,
    resident: Option<AddressRange>,
}

impl Bound {
    /// Allocates device memory for `program` and starts the transfers into it. The data can arrive
    /// later: see `Self::begin`.
    pub fn new(
        gpu: &Gpu,
        program: Program,
        weights: &Weights,
        owner: MemoryOwner,
    ) -> Result<Self, InferenceError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
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
        let mut bound = Self { number, program, captures, prologue, steps, constants, resident };
        let prologue = bound.steps(gpu, &bound.program.prologue, weights).map_err(|error| failure(&error))?;
        bound.prologue = Prologue::new(prologue);
        bound.steps = bound.steps(gpu, &bound.program.steps, weights).map_err(|error| failure(&error))?;
        // Request compilation of the run's chains. The prologue runs once, so its chains are
        // interpreted.
        bound.settle(&gpu.chains);
        // Binding may have loaded kernel modules, which changes the memory in use.
        gpu.measure().map_err(|error| failure(&error))?;
        Ok(bound)
    }

    /// Returns the number of steps that the library computes.
    pub fn library_steps(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step.work, StepWork::Product(_))).count()
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
        steps: &[program::ProgramStep],
        weights: &Weights,
    ) -> Result<Vec<BoundStep>, CudaError> {
        let mut made = Making { bound: self, gpu, weights, met: HashSet::new(), steps: Vec::new() };
        for step in steps {
            match step {
                program::ProgramStep::Launch(launch) => made.launch(launch)?,
                program::ProgramStep::Product { product, then, otherwise } => {
                    made.product(product, then, otherwise)?;
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
}

impl Making<'_> {
    fn launch(&mut self, launch: &weir_kernels::Launch<BufferLocation>) -> Result<(), CudaError> {
        let mut placing = Placing::new(self);
        let placed = launch.with_buffers(|place| placing.address(*place));
        let arrivals = placing.arrivals(&launch.kernel.name)?;
        let function =
            self.gpu.outside_pool(|| self.gpu.kernels.function(&launch.kernel, launch.shared_bytes))?;
        let [x, y, z] = launch.grid;
        let title = format!("{} {x}x{y}x{z}", launch.kernel.name);
        self.steps.push(BoundStep { title, work: StepWork::kernel(function, placed), arrivals });
        Ok(())
    }

    /// Uses the library, or the fallback kernels if the library has no algorithm for the product.
    fn product(
        &mut self,
        product: &LibraryGemm<BufferLocation>,
        then: &[weir_kernels::Launch<BufferLocation>],
        otherwise: &[weir_kernels::Launch<BufferLocation>],
    ) -> Result<(), CudaError> {
        let Some(made) = self.gpu.products.make(product)? else {
            return otherwise.iter().try_for_each(|launch| self.launch(launch));
        };
        let mut placing = Placing::new(self);
        let buffers =
            product.buffers.map(|operand| placing.address(operand.buffer).further(operand.offset_bytes));
        let arrivals = placing.arrivals("cublasLtMatmul")?;
        let ProductShape { m, n, k, batch, .. } = product.shape;
        let title = format!("cublasLtMatmul {batch} of {m}x{n}x{k}");
        self.steps.push(BoundStep { title, work: StepWork::Product(Box::new((made, buffers))), arrivals });
        then.iter().try_for_each(|launch| self.launch(launch))
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
