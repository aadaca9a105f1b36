//! A program on a device: functions and addresses, but for those in the memory of the slot that runs it.
#![allow(unsafe_code, reason = "kernels are launched")]

mod arriving;
pub(super) use arriving::Ordered;
mod step;
use step::{Address, Step, Work};

use super::captured::CaptureBackoff;
use super::chains::Chains;
use super::device::Gpu;
use super::failure;
use super::program::{self, Place, Product, Program};
use super::weights::Weights;
use crate::error::InferenceError;
use arriving::Prologue;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_device::cuda::{
    AddressRange, BLOCK_BYTES, CudaError, Owner, Parameters, Source, Span, Stream, Tensor, TensorKey, Wanted,
};
use weir_types::ContentHash;

/// Steps that are ready, and what they read besides the model's weights.
pub(super) struct Bound {
    /// Like that of no other.
    pub(super) number: u64,
    pub(super) program: Program,
    /// Of its runs, in whichever session and slot.
    pub(super) captures: CaptureBackoff,
    prologue: Prologue,
    steps: Vec<Step>,
    constants: Vec<Tensor>,
    resident: Option<AddressRange>,
}

impl Bound {
    /// Find a place on the device for what `program` needs, and have it brought. Nothing has to be there yet: see [`Self::begin`].
    pub(super) fn new(
        gpu: &Gpu,
        program: Program,
        weights: &Weights,
        owner: Owner,
    ) -> Result<Self, InferenceError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let wanted = program.constants.iter().map(|bytes| Wanted {
            key: TensorKey { hash: ContentHash::of(bytes), layout: 0 },
            source: Source::Pageable(bytes.clone()),
        });
        let constants = gpu
            .tensors
            .acquire(vec![wanted.collect()])
            .map_err(|error| super::model::weights_failure(&error))?;
        let constants: Vec<Tensor> = constants.into_iter().flatten().collect();
        let resident = (program.resident_bytes > 0).then(|| resident(gpu, program.resident_bytes, owner));
        let resident = resident.transpose().map_err(|error| failure(&error))?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (captures, steps, prologue) = (CaptureBackoff::default(), Vec::new(), Prologue::default());
        let mut bound = Self { number, program, captures, prologue, steps, constants, resident };
        let prologue = bound.steps(gpu, &bound.program.prologue, weights).map_err(|error| failure(&error))?;
        bound.prologue = Prologue::new(prologue);
        bound.steps = bound.steps(gpu, &bound.program.steps, weights).map_err(|error| failure(&error))?;
        // Compiled from now on. What is done once is interpreted.
        bound.settle(&gpu.chains);
        // The modules of its kernels may have been loaded for it.
        gpu.measure().map_err(|error| failure(&error))?;
        Ok(bound)
    }

    /// How many steps of a run are the library's.
    pub(super) fn library_steps(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step.work, Work::Product(_))).count()
    }

    /// Have kernels that were compiled for its chains run them, as far as they are there. Gives whether it is settled what runs every step: from then on
    /// a run can be captured for good.
    pub(super) fn settle(&self, chains: &Chains) -> bool {
        // All are asked for at once.
        self.steps.iter().filter(|step| !step.settle(chains)).count() == 0
    }

    /// How many steps of a run have kernels that were compiled for their chains.
    pub(super) fn compiled_steps(&self) -> usize {
        self.steps.iter().filter(|step| step.is_compiled()).count()
    }

    /// Give a run to `stream`, working in `arena`.
    ///
    /// # Safety
    /// `arena` is as long as the program says, and until the work is done it is used by nobody else, and the model's weights and this live.
    pub(super) unsafe fn launch(&self, stream: &Stream, arena: Span) -> Result<(), CudaError> {
        let mut parameters = Parameters::default();
        // SAFETY: the caller's part; constants and what stays are ours.
        self.steps.iter().try_for_each(|step| unsafe { step.launch(stream, arena, &mut parameters) })
    }

    /// Where a port is.
    pub(super) fn span(&self, place: Place, bytes: u64, weights: &Weights, arena: Span) -> Option<Span> {
        match place {
            Place::Arena(offset) => arena.slice(offset, bytes),
            Place::Resident(offset) => self.resident.as_ref()?.span().slice(offset, bytes),
            Place::Weight(index) => weights.span(index)?.slice(0, bytes),
            Place::Constant(index) => self.constants.get(index)?.span().slice(0, bytes),
        }
    }

    fn steps(&self, gpu: &Gpu, steps: &[program::Step], weights: &Weights) -> Result<Vec<Step>, CudaError> {
        let mut made = Making { bound: self, gpu, weights, met: HashSet::new(), steps: Vec::new() };
        for step in steps {
            match step {
                program::Step::Launch(launch) => made.launch(launch)?,
                program::Step::Product { product, otherwise } => made.product(product, otherwise)?,
            }
        }
        Ok(made.steps)
    }

    fn address(&self, place: Place, weights: &Weights) -> Option<Address> {
        let at = |span: Span| Address::At(span.address());
        match place {
            Place::Arena(offset) => Some(Address::InArena(offset)),
            Place::Resident(offset) => Some(Address::At(self.resident.as_ref()?.span().address() + offset)),
            Place::Weight(index) => weights.span(index).map(at),
            Place::Constant(index) => self.constants.get(index).map(|tensor| at(tensor.span())),
        }
    }
}

/// Memory that stays as long as the program. Nothing is filled: the prologue writes all that anybody reads there.
fn resident(gpu: &Gpu, bytes: u64, owner: Owner) -> Result<AddressRange, CudaError> {
    let mut range = AddressRange::reserve(&gpu.pool, bytes)?;
    let places = usize::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX);
    gpu.make_room(|| range.back(0..places, owner, None))?;
    Ok(range)
}

/// Steps that are made ready, one after the other.
struct Making<'a> {
    bound: &'a Bound,
    gpu: &'a Gpu,
    weights: &'a Weights,
    /// The weights and constants that steps before read.
    met: HashSet<Place>,
    steps: Vec<Step>,
}

impl Making<'_> {
    fn launch(&mut self, launch: &weir_kernels::Launch<Place>) -> Result<(), CudaError> {
        let mut placing = Placing::new(self);
        let placed = launch.with_buffers(|place| placing.address(*place));
        let arrivals = placing.arrivals(&launch.kernel.name)?;
        let function =
            self.gpu.outside_pool(|| self.gpu.kernels.function(&launch.kernel, launch.shared_bytes))?;
        self.steps.push(Step { work: Work::kernel(function, placed), arrivals });
        Ok(())
    }

    /// By the library, or, where that declines, by the kernels.
    fn product(
        &mut self,
        product: &Product<Place>,
        otherwise: &[weir_kernels::Launch<Place>],
    ) -> Result<(), CudaError> {
        let Some(made) = self.gpu.products.make(product)? else {
            return otherwise.iter().try_for_each(|launch| self.launch(launch));
        };
        let mut placing = Placing::new(self);
        let buffers =
            product.buffers.map(|operand| placing.address(operand.buffer).further(operand.offset_bytes));
        let arrivals = placing.arrivals("cublasLtMatmul")?;
        self.steps.push(Step { work: Work::Product(Box::new((made, buffers))), arrivals });
        Ok(())
    }
}

/// Looking for the buffers of one step.
struct Placing<'a> {
    bound: &'a Bound,
    weights: &'a Weights,
    met: &'a mut HashSet<Place>,
    arrivals: Vec<Place>,
    is_missing: bool,
}

impl<'a> Placing<'a> {
    fn new(made: &'a mut Making<'_>) -> Self {
        let Making { bound, weights, met, .. } = made;
        Self { bound, weights, met, arrivals: Vec::new(), is_missing: false }
    }

    fn address(&mut self, place: Place) -> Address {
        if matches!(place, Place::Weight(_) | Place::Constant(_)) && self.met.insert(place) {
            self.arrivals.push(place);
        }
        self.bound.address(place, self.weights).unwrap_or_else(|| {
            self.is_missing = true;
            Address::At(0)
        })
    }

    /// What the step waits for as long as it is on its way.
    fn arrivals(self, name: &str) -> Result<Vec<Place>, CudaError> {
        if self.is_missing {
            return Err(CudaError::Invalid(format!("{name} was given a buffer that is nowhere")));
        }
        Ok(self.arrivals)
    }
}
