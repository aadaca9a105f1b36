//! A program on a device: functions and addresses, but for those in the memory of the slot that runs it.
#![allow(unsafe_code, reason = "kernels are launched")]

mod arriving;
pub(super) use arriving::Ordered;

use super::device::Gpu;
use super::failure;
use super::program::{Place, Program};
use super::weights::Weights;
use crate::error::InferenceError;
use arriving::Prologue;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_device::cuda::{
    AddressRange, BLOCK_BYTES, CudaError, Function, Launch, Owner, Parameters, Source, Span, Stream, Tensor,
    TensorKey, Wanted,
};
use weir_kernels::Argument;
use weir_types::ContentHash;

/// Launches that are ready, and what they read besides the model's weights.
pub(super) struct Bound {
    /// Like that of no other.
    pub(super) number: u64,
    pub(super) program: Program,
    prologue: Prologue,
    steps: Vec<Step>,
    constants: Vec<Tensor>,
    resident: Option<AddressRange>,
}

/// One launch.
struct Step {
    function: Function,
    launch: Launch,
    arguments: Vec<Argument<Address>>,
    /// The weights and constants that no step before it reads: what it waits for as long as they are on their way.
    arrivals: Vec<Place>,
}

/// Where a buffer is.
#[derive(Clone, Copy)]
enum Address {
    At(u64),
    /// So far into the memory of the slot.
    InArena(u64),
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
        let (steps, prologue) = (Vec::new(), Prologue::default());
        let mut bound = Self { number, program, prologue, steps, constants, resident };
        let prologue = bound.steps(gpu, &bound.program.prologue, weights).map_err(|error| failure(&error))?;
        bound.prologue = Prologue::new(prologue);
        bound.steps = bound.steps(gpu, &bound.program.launches, weights).map_err(|error| failure(&error))?;
        Ok(bound)
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

    fn steps(
        &self,
        gpu: &Gpu,
        launches: &[weir_kernels::Launch<Place>],
        weights: &Weights,
    ) -> Result<Vec<Step>, CudaError> {
        let mut met = HashSet::new();
        let step = |launch: &weir_kernels::Launch<Place>| {
            let (mut missing, mut arrivals) = (false, Vec::new());
            let placed = launch.with_buffers(|place| {
                if matches!(place, Place::Weight(_) | Place::Constant(_)) && met.insert(*place) {
                    arrivals.push(*place);
                }
                self.address(*place, weights).unwrap_or_else(|| {
                    missing = true;
                    Address::At(0)
                })
            });
            if missing {
                let name = &launch.kernel.name;
                return Err(CudaError::Invalid(format!("kernel {name} was given a buffer that is nowhere")));
            }
            Ok(Step {
                function: gpu.kernels.function(&launch.kernel, launch.shared_bytes)?,
                launch: Launch { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes },
                arguments: placed.arguments,
                arrivals,
            })
        };
        launches.iter().map(step).collect()
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

impl Step {
    /// Give it to `stream`.
    ///
    /// # Safety
    /// As for [`Bound::launch`].
    unsafe fn launch(
        &self,
        stream: &Stream,
        arena: Span,
        parameters: &mut Parameters,
    ) -> Result<(), CudaError> {
        parameters.clear();
        for argument in &self.arguments {
            match argument {
                Argument::Address(Address::At(address)) => parameters.address(*address),
                Argument::Address(Address::InArena(offset)) => parameters.address(arena.address() + offset),
                Argument::Null => parameters.address(0),
                Argument::U32(number) => parameters.u32(*number),
                Argument::U64(number) => parameters.u64(*number),
                Argument::F32(number) => parameters.f32(*number),
                Argument::Bytes(bytes) => parameters.bytes(bytes)?,
            };
        }
        // SAFETY: the arguments are those that `weir-kernels` says the kernel takes; the memory is the caller's part.
        unsafe { stream.launch(&self.function, &self.launch, parameters) }
    }
}
