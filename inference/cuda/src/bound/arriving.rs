//! First runs of a program, which overlap with the transfer of the weights that they read.
//!
//! ```text
//!   copy stream   small weights | group 1 | group 2 | group 3 | ...   in the order of the reads
//!   run's stream     prologue      layer 1   layer 2 ...              after the last group's event
//! ```
//!
//! The launching thread blocks only until an event for a group exists, which is when the last block
//! of the group has been enqueued on the device, some blocks ahead of its arrival. The thread never
//! waits for the arrival.

use super::{Bound, BoundStep};
use crate::failure::{failure, weights_failure};
use crate::program::BufferLocation;
use crate::weights::Weights;
use parking_lot::Mutex;
use weir_device::cuda::{Event, KernelParameters, Span, Stream, TensorGuard, TransferError};
use weir_inference::{InferenceError, Interrupt};

/// Steps that are launched once, by the first run.
#[derive(Default)]
pub(super) struct Prologue {
    steps: Vec<BoundStep>,
    given: Mutex<PrologueState>,
}

#[derive(Default)]
enum PrologueState {
    /// The prologue has not been enqueued.
    #[default]
    Not,
    /// The prologue has been enqueued, and ends with this event.
    Until(Event),
    /// The prologue has ended, and all data that the program reads has arrived.
    Done,
}

/// Stream, and the transfers that it already waits for.
pub(crate) struct Ordered<'a> {
    stream: &'a Stream,
    interrupt: &'a Interrupt,
    /// The last tensor of each transfer that the stream waits for.
    last: Vec<&'a TensorGuard>,
}

impl Prologue {
    pub(super) fn new(steps: Vec<BoundStep>) -> Self {
        Self { steps, given: Mutex::default() }
    }
}

impl Bound {
    /// Returns whether all data that the runs read has arrived. From then on, [`Self::launch`]
    /// needs no other ordering.
    ///
    /// Returns an error if the data can never arrive.
    pub(crate) fn is_ready(&self, weights: &Weights) -> Result<bool, InferenceError> {
        let mut given = self.prologue.given.lock();
        let ended = match &*given {
            PrologueState::Done => return Ok(true),
            PrologueState::Not => false,
            PrologueState::Until(event) => event.is_reached().map_err(|error| failure(&error))?,
        };
        let arrived = || -> Result<bool, TransferError> {
            for tensor in &self.constants {
                if !tensor.is_there()? {
                    return Ok(false);
                }
            }
            weights.are_there()
        };
        let is_ready = ended && arrived().map_err(|error| weights_failure(&error))?;
        if is_ready {
            *given = PrologueState::Done;
        }
        Ok(is_ready)
    }

    /// Orders the prologue before all later work of `ordered`. Call it before the inputs are
    /// written, because the prologue also works in `arena`.
    ///
    /// # Safety
    /// Same as for [`Self::launch`].
    pub(crate) unsafe fn begin<'a>(
        &'a self,
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
        arena: Span,
    ) -> Result<(), InferenceError> {
        let mut given = self.prologue.given.lock();
        let stream = ordered.stream;
        match &*given {
            PrologueState::Done => Ok(()),
            PrologueState::Until(event) => stream.wait(event).map_err(|error| failure(&error)),
            PrologueState::Not => {
                // SAFETY: the caller guarantees the requirements of `launch`.
                let launched = unsafe { self.launch_in_order(&self.prologue.steps, ordered, weights, arena) };
                let recorded = launched.and_then(|()| {
                    let event = Event::new(stream.context()).map_err(|error| failure(&error))?;
                    stream.record(&event).map_err(|error| failure(&error))?;
                    Ok(event)
                });
                if recorded.is_err() {
                    // A retry must not overlap with the enqueued part of the failed prologue.
                    let _ = stream.synchronize();
                }
                *given = PrologueState::Until(recorded?);
                Ok(())
            }
        }
    }

    /// Enqueues a run, with each launch ordered after the arrival of its weights. Stops enqueueing
    /// when the run is interrupted.
    ///
    /// # Safety
    /// Same as for [`Self::launch`].
    pub(crate) unsafe fn launch_behind<'a>(
        &'a self,
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
        arena: Span,
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller guarantees the requirements of `launch`.
        unsafe { self.launch_in_order(&self.steps, ordered, weights, arena) }?;
        // An output can be a weight.
        self.program.outputs.iter().try_for_each(|port| self.order(port.place, ordered, weights))
    }

    /// # Safety
    /// Same as for [`Self::launch`].
    unsafe fn launch_in_order<'a>(
        &'a self,
        steps: &[BoundStep],
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
        arena: Span,
    ) -> Result<(), InferenceError> {
        let mut parameters = KernelParameters::default();
        for step in steps {
            step.arrivals.iter().try_for_each(|place| self.order(*place, ordered, weights))?;
            // SAFETY: the caller guarantees the requirements of `launch`.
            unsafe { step.launch(ordered.stream, arena, &mut parameters) }
                .map_err(|error| failure(&error))?;
        }
        Ok(())
    }

    /// Blocks until all weights and constants have arrived. The prologue's results are excluded:
    /// `Self::begin` orders them.
    pub fn wait(&self, weights: &Weights) -> Result<(), InferenceError> {
        let arrived = weights.wait().and_then(|()| self.constants.iter().try_for_each(TensorGuard::wait));
        arrived.map_err(|error| weights_failure(&error))
    }

    fn order<'a>(
        &'a self,
        place: BufferLocation,
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
    ) -> Result<(), InferenceError> {
        let tensor = match place {
            BufferLocation::Weight(index) => weights.tensor(index),
            BufferLocation::Constant(index) => self.constants.get(index),
            BufferLocation::Arena(_) | BufferLocation::Resident(_) => None,
        };
        tensor.map_or(Ok(()), |tensor| ordered.wait(tensor))
    }
}

impl<'a> Ordered<'a> {
    pub(crate) fn new(stream: &'a Stream, interrupt: &'a Interrupt) -> Self {
        Self { stream, interrupt, last: Vec::new() }
    }

    /// Makes the stream wait for the arrival of a tensor.
    fn wait(&mut self, tensor: &'a TensorGuard) -> Result<(), InferenceError> {
        if self.last.iter().any(|last| tensor.comes_with(last)) {
            return Ok(());
        }
        if self.interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        tensor.order(self.stream).map_err(|error| weights_failure(&error))?;
        self.last.retain(|last| !last.comes_with(tensor));
        self.last.push(tensor);
        Ok(())
    }
}
