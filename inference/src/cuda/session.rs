//! Runs, one at a time.
#![allow(unsafe_code, reason = "work is given to a device, with addresses of pinned memory")]

use super::bound::{Bound, Ordered};
use super::captured::CapturedRuns;
use super::failure;
use super::model::{Shared, weights_failure};
use super::slots::Slot;
use crate::backend::Session;
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::request::Job;
use crate::tensor::{Tensor, TensorError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_device::Arena;
use weir_device::cuda::{CudaError, Owner, Span, Stream};
use weir_types::{ElementType, Shape};

/// One slot's share of a model.
pub(super) struct CudaSession {
    /// Before what they use.
    captured: CapturedRuns,
    /// Where it ran last.
    slot: Option<usize>,
    model: Arc<Shared>,
}

/// What is known of a run that has ended.
#[derive(Debug, Clone)]
pub(super) struct Ran {
    /// How long it went on, from when there was a slot for it; of one that was cold, once the weights were there and known to be right: before that it is the
    /// load that takes time.
    pub(super) time: Duration,
    /// It has begun before the model's weights were there.
    pub(super) was_cold: bool,
    /// Why it was launched kernel by kernel, where it was to be captured.
    pub(super) not_captured: Option<String>,
}

/// Where the inputs of a run come from, and its outputs go. Inputs go by their positions in the signature.
pub(super) trait Exchange {
    /// The shape of an input.
    fn shape(&self, input: usize) -> Option<&Shape>;

    /// How long it is.
    fn bytes(&self, input: usize) -> usize;

    /// Where the device reads it, if another run has left it there, or on a device whose memory this one reads.
    fn on_device(&self, _input: usize) -> Option<Span> {
        None
    }

    /// Make `stream` wait until it is there.
    fn order(&self, _input: usize, _stream: &Stream) -> Result<(), CudaError> {
        Ok(())
    }

    /// Write it to `place`, which is as long.
    fn read(&self, input: usize, place: &mut [u8]) -> Result<(), InferenceError>;

    /// Let an output stay on the device, if it may and there is room: a copy of `from`, in the order of `stream`. Gives whether it does. Outputs go by
    /// their places among those wanted.
    fn keep(
        &mut self,
        _output: usize,
        _shape: &Shape,
        _from: Span,
        _stream: &Stream,
    ) -> Result<bool, InferenceError> {
        Ok(false)
    }

    /// Take an output.
    fn write(
        &mut self,
        output: usize,
        element_type: ElementType,
        shape: Shape,
        bytes: &[u8],
    ) -> Result<(), InferenceError>;
}

/// Tensors of this process.
struct Tensors<'a> {
    inputs: &'a [Tensor],
    outputs: Vec<Tensor>,
    arena: &'a Arena,
}

/// Where an output is on the device, and in the staging memory.
struct Output {
    from: Span,
    offset: usize,
    element_type: ElementType,
    shape: Shape,
    /// It does not come back.
    stays: bool,
}

impl CudaSession {
    pub(super) fn new(model: Arc<Shared>) -> Self {
        Self { captured: CapturedRuns::default(), slot: None, model }
    }

    /// On whose behalf it runs.
    pub(super) fn owner(&self) -> Owner {
        self.model.owner
    }
}

impl Session for CudaSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        let model = Arc::clone(&self.model);
        let mut tensors = Tensors { inputs: &job.inputs, outputs: Vec::new(), arena: &model.gpu.arena };
        self.exchange(&mut tensors, &job.outputs, interrupt)?;
        Ok(tensors.outputs)
    }
}

impl CudaSession {
    /// Run once, with what `exchange` has, and give it the wanted outputs in their order. Told to stop, it does not begin, or goes no further where it
    /// waits for weights; what the device has begun it ends.
    pub(super) fn exchange(
        &mut self,
        exchange: &mut dyn Exchange,
        wanted: &[usize],
        interrupt: &Interrupt,
    ) -> Result<Ran, InferenceError> {
        let model = Arc::clone(&self.model);
        let shape = |input: &usize| exchange.shape(*input).cloned().ok_or_else(misfit);
        let shapes: Vec<Shape> = model.inputs().iter().map(shape).collect::<Result<_, _>>()?;
        let bound = model.bound(&shapes)?;
        let mut taken = model.gpu.slots.take(self.slot);
        let slot =
            taken.slot().ok_or_else(|| InferenceError::Unavailable("the device has no slots".into()))?;
        if interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        let began = Instant::now();
        self.slot = Some(slot.number);
        let was_cold = !model.weights.are_usable().map_err(|error| weights_failure(&error))?;
        let ran = self.run_in(slot, &bound, exchange, wanted, interrupt);
        if ran.is_err() {
            // Whatever was given to the device is over before anybody else gets the slot.
            let _ = slot.stream.synchronize();
        }
        let not_captured = ran?;
        let ended = Instant::now();
        let from = if was_cold { model.weights.usable_since().unwrap_or(ended).max(began) } else { began };
        Ok(Ran { time: ended.saturating_duration_since(from), was_cold, not_captured })
    }

    /// Gives why the run was not captured, where it was to be.
    fn run_in(
        &mut self,
        slot: &mut Slot,
        bound: &Arc<Bound>,
        exchange: &mut dyn Exchange,
        wanted: &[usize],
        interrupt: &Interrupt,
    ) -> Result<Option<String>, InferenceError> {
        let model = Arc::clone(&self.model);
        let (gpu, program) = (&model.gpu, &bound.program);
        let stream = Arc::clone(&slot.stream);
        let arena = gpu.make_room(|| slot.memory.prepare(program.arena_bytes, model.owner, gpu.now_ns()));
        let arena = arena.map_err(|error| failure(&error))?;
        let is_ready = bound.is_ready(&model.weights)?;
        let mut ordered = Ordered::new(&stream, interrupt);
        if !is_ready {
            // SAFETY: the arena is the slot's, which is ours until the stream is synchronised; the session holds the model, and the caller the program.
            unsafe { bound.begin(&mut ordered, &model.weights, arena) }?;
        }

        let staged = model.inputs().iter().filter(|input| exchange.on_device(**input).is_none());
        let input_bytes = staged.map(|input| exchange.bytes(*input)).sum();
        let (mut outputs, staging_bytes) = self.outputs(bound, wanted, arena, input_bytes)?;
        let staging = slot.staging.get(staging_bytes).map_err(|error| failure(&error))?;
        let mut rest = &mut *staging;
        for (input, port) in model.inputs().iter().zip(&program.inputs) {
            let bytes = exchange.bytes(*input);
            let to = bound.span(port.place, bytes as u64, &model.weights, arena).ok_or_else(misfit)?;
            if let Some(from) = exchange.on_device(*input) {
                let copied = exchange.order(*input, &stream).and_then(|()| stream.copy(from, to));
                copied.map_err(|error| failure(&error))?;
                continue;
            }
            let (place, behind) = rest.split_at_mut_checked(bytes).ok_or_else(misfit)?;
            rest = behind;
            exchange.read(*input, place)?;
            // SAFETY: the staging memory is the slot's, and is neither written nor given up before the stream is synchronised below.
            unsafe { stream.copy_from_host(place.as_ptr(), to) }.map_err(|error| failure(&error))?;
        }
        let not_captured = if is_ready {
            // SAFETY: the arena is the slot's, and the slot ours until the stream is synchronised; the session holds the model, whose weights are there.
            unsafe { self.captured.launch(bound, slot, arena, gpu) }.map_err(|error| failure(&error))?
        } else {
            // SAFETY: as above.
            unsafe { bound.launch_behind(&mut ordered, &model.weights, arena) }?;
            self.captured.note_launched(bound, slot);
            None
        };
        let staging = slot.staging.get(staging_bytes).map_err(|error| failure(&error))?;
        for (number, output) in outputs.iter_mut().enumerate() {
            output.stays = exchange.keep(number, &output.shape, output.from, &stream)?;
            if output.stays {
                continue;
            }
            let bytes = usize::try_from(output.from.bytes()).unwrap_or(usize::MAX);
            let place =
                staging.get_mut(output.offset..output.offset.saturating_add(bytes)).ok_or_else(misfit)?;
            // SAFETY: as above.
            unsafe { stream.copy_to_host(output.from, place.as_mut_ptr()) }
                .map_err(|error| failure(&error))?;
        }
        stream.synchronize().map_err(|error| failure(&error))?;
        model.verify()?;
        for (number, Output { from, offset, element_type, shape, stays }) in outputs.into_iter().enumerate() {
            if !stays {
                let bytes = usize::try_from(from.bytes()).unwrap_or(usize::MAX);
                let bytes = staging.get(offset..offset.saturating_add(bytes)).ok_or_else(misfit)?;
                exchange.write(number, element_type, shape, bytes)?;
            }
        }
        Ok(not_captured.map(|error| error.to_string()))
    }

    /// Where the wanted outputs are, and where they go behind the inputs; how much staging memory that takes.
    fn outputs(
        &self,
        bound: &Bound,
        wanted: &[usize],
        arena: Span,
        input_bytes: usize,
    ) -> Result<(Vec<Output>, usize), InferenceError> {
        let mut end = input_bytes;
        let mut outputs = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            let position = self.model.outputs.get(*wanted).copied().ok_or_else(misfit)?;
            let port = bound.program.outputs.get(position).ok_or_else(misfit)?;
            let bytes = port.tensor.bytes();
            let from = bound.span(port.place, bytes as u64, &self.model.weights, arena).ok_or_else(misfit)?;
            let dims =
                port.tensor.dims().iter().map(|dim| u32::try_from(*dim).ok()).collect::<Option<Vec<_>>>();
            let shape = Shape::new(&dims.ok_or_else(misfit)?).map_err(TensorError::from)?;
            let element_type = port.tensor.element_type();
            outputs.push(Output { from, offset: end, element_type, shape, stays: false });
            end = end.saturating_add(bytes);
        }
        Ok((outputs, end))
    }
}

impl Exchange for Tensors<'_> {
    fn shape(&self, input: usize) -> Option<&Shape> {
        self.inputs.get(input).map(Tensor::shape)
    }

    fn bytes(&self, input: usize) -> usize {
        self.inputs.get(input).map_or(0, |tensor| tensor.data().len())
    }

    fn read(&self, input: usize, place: &mut [u8]) -> Result<(), InferenceError> {
        place.copy_from_slice(self.inputs.get(input).ok_or_else(misfit)?.data());
        Ok(())
    }

    fn write(
        &mut self,
        _: usize,
        element_type: ElementType,
        shape: Shape,
        bytes: &[u8],
    ) -> Result<(), InferenceError> {
        self.outputs.push(Tensor::new(element_type, shape, self.arena.copy_of(bytes)?)?);
        Ok(())
    }
}

/// Sizes that were worked out beforehand do not agree.
pub(super) fn misfit() -> InferenceError {
    InferenceError::Run("the run's inputs or outputs are not those that it was made for".into())
}
