//! Session: sequential runs of a model.
#![allow(unsafe_code, reason = "work is enqueued on a device, with addresses of pinned memory")]

use crate::bound::{Bound, Ordered};
use crate::captured::CapturedRuns;
use crate::failure::{failure, weights_failure};
use crate::model::ModelShared;
use crate::slots::RunSlot;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_device::Arena;
use weir_device::cuda::{CudaError, MemoryOwner, Span, Stream};
use weir_inference::{InferenceError, Interrupt, Job, Session, Tensor, TensorError};
use weir_types::{ElementType, Precision, Shape};

/// Session of a model.
pub(crate) struct CudaSession {
    /// Dropped before the program that the captured runs use.
    captured: CapturedRuns,
    /// Slot of the previous run.
    slot: Option<usize>,
    model: Arc<ModelShared>,
}

/// Result of a finished run.
#[derive(Debug, Clone)]
pub(crate) struct FinishedRun {
    /// Time of the run, starting when it got a slot. For a cold run, the time starts when the
    /// weights have arrived and are verified; the time before that counts as load time.
    pub(crate) time: Duration,
    /// Whether the run started before the model's weights had arrived.
    pub(crate) was_cold: bool,
    /// Reason of a failed capture, after which the run was launched kernel by kernel.
    pub(crate) not_captured: Option<String>,
}

/// Source of a run's inputs, and destination of its outputs. Inputs are identified by their
/// positions in the signature.
pub(crate) trait TensorExchange {
    /// Returns the shape of an input.
    fn shape(&self, input: usize) -> Option<&Shape>;

    /// Returns the length of an input in bytes.
    fn bytes(&self, input: usize) -> usize;

    /// Returns the device memory of an input that another run left on this device, or on a device
    /// whose memory this device can read.
    fn on_device(&self, _input: usize) -> Option<Span> {
        None
    }

    /// Makes `stream` wait until a device-resident input is complete.
    fn order(&self, _input: usize, _stream: &Stream) -> Result<(), CudaError> {
        Ok(())
    }

    /// Writes an input to `place`, which has the input's length.
    fn read(&self, input: usize, place: &mut [u8]) -> Result<(), InferenceError>;

    /// Keeps an output on the device if permitted and if there is room: enqueues a copy of `from`
    /// on `stream`. Returns whether the output was kept.
    ///
    /// Outputs are identified by their positions among the wanted outputs.
    fn keep(
        &mut self,
        _output: usize,
        _shape: &Shape,
        _from: Span,
        _stream: &Stream,
    ) -> Result<bool, InferenceError> {
        Ok(false)
    }

    /// Receives an output.
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

/// Location of an output on the device and in the staging memory.
struct OutputLocation {
    from: Span,
    offset: usize,
    element_type: ElementType,
    shape: Shape,
    /// Whether the output stays on the device.
    stays: bool,
}

impl CudaSession {
    pub(crate) fn new(model: Arc<ModelShared>) -> Self {
        Self { captured: CapturedRuns::default(), slot: None, model }
    }

    /// Returns the memory owner of the session's runs.
    pub(crate) fn owner(&self) -> MemoryOwner {
        self.model.owner
    }
}

impl Session for CudaSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        let model = self.model.clone();
        let mut tensors = Tensors { inputs: &job.inputs, outputs: Vec::new(), arena: &model.gpu.arena };
        self.exchange(&mut tensors, &job.outputs, interrupt)?;
        Ok(tensors.outputs)
    }

    fn precision(&self) -> Precision {
        self.model.precision
    }
}

impl CudaSession {
    /// Runs the model once with the inputs of `exchange`, and passes the wanted outputs to it in
    /// order.
    ///
    /// An interrupt prevents the start of the run, or stops the run while it waits for weights.
    /// Work that the device has started runs to its end.
    pub(crate) fn exchange(
        &mut self,
        exchange: &mut dyn TensorExchange,
        wanted: &[usize],
        interrupt: &Interrupt,
    ) -> Result<FinishedRun, InferenceError> {
        let model = self.model.clone();
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
            // Enqueued work must end before the slot is reused.
            let _ = slot.stream.synchronize();
        }
        let not_captured = ran?;
        let ended = Instant::now();
        let from = if was_cold { model.weights.usable_since().unwrap_or(ended).max(began) } else { began };
        Ok(FinishedRun { time: ended.saturating_duration_since(from), was_cold, not_captured })
    }

    /// Runs in this slot. Returns the reason of a failed capture.
    fn run_in(
        &mut self,
        slot: &mut RunSlot,
        bound: &Arc<Bound>,
        exchange: &mut dyn TensorExchange,
        wanted: &[usize],
        interrupt: &Interrupt,
    ) -> Result<Option<String>, InferenceError> {
        let model = self.model.clone();
        let gpu = &model.gpu;
        let program = &bound.program;
        let stream = slot.stream.clone();
        let arena = gpu.make_room(|| slot.memory.prepare(program.arena_bytes, model.owner, gpu.now_ns()));
        let arena = arena.map_err(|error| failure(&error))?;
        let is_ready = bound.is_ready(&model.weights)?;
        let mut ordered = Ordered::new(&stream, interrupt);
        if !is_ready {
            // SAFETY: the arena belongs to the slot, which this run holds until the stream is
            // synchronised. The session holds the model, and the caller holds the program.
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
            // SAFETY: the staging memory belongs to the slot, and is neither written nor freed
            // before the stream is synchronised below.
            unsafe { stream.copy_from_host(place.as_ptr(), to) }.map_err(|error| failure(&error))?;
        }
        let not_captured = if is_ready {
            // SAFETY: the arena belongs to the slot, which this run holds until the stream is
            // synchronised. The session holds the model, whose weights have arrived.
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
        for (number, OutputLocation { from, offset, element_type, shape, stays }) in
            outputs.into_iter().enumerate()
        {
            if !stays {
                let bytes = usize::try_from(from.bytes()).unwrap_or(usize::MAX);
                let bytes = staging.get(offset..offset.saturating_add(bytes)).ok_or_else(misfit)?;
                exchange.write(number, element_type, shape, bytes)?;
            }
        }
        Ok(not_captured.map(|error| error.to_string()))
    }

    /// Returns the wanted outputs with their offsets after the inputs, and the size of the staging
    /// memory.
    fn outputs(
        &self,
        bound: &Bound,
        wanted: &[usize],
        arena: Span,
        input_bytes: usize,
    ) -> Result<(Vec<OutputLocation>, usize), InferenceError> {
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
            outputs.push(OutputLocation { from, offset: end, element_type, shape, stays: false });
            end = end.saturating_add(bytes);
        }
        Ok((outputs, end))
    }
}

impl TensorExchange for Tensors<'_> {
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

/// Error for inconsistent sizes of a run's inputs or outputs.
pub(crate) fn misfit() -> InferenceError {
    InferenceError::Run("the run's inputs or outputs are not those that it was made for".into())
}
