//! The first runs of a program, which go on behind the transfer of what they read.
//!
//! ```text
//!   copy stream   small weights | group 1 | group 2 | group 3 | ...       in the order in which runs read them
//!   run's stream     prologue      layer 1   layer 2 ...                  each behind the event of the last group that it reads
//! ```
//!
//! The thread that gives launches is held up only as long as there is no event to wait for yet: until the last block of a group has been given to the
//! device, which is some blocks ahead of its arrival. It never waits for the arrival itself.

use super::{Bound, Step};
use crate::cuda::failure;
use crate::cuda::model::weights_failure;
use crate::cuda::program::Place;
use crate::cuda::weights::Weights;
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_device::cuda::{Event, Parameters, Span, Stream, Tensor, TransferError};

/// What is launched once, by whichever run comes first.
#[derive(Default)]
pub(super) struct Prologue {
    steps: Vec<Step>,
    given: Mutex<Given>,
}

#[derive(Default)]
enum Given {
    /// To no stream yet.
    #[default]
    Not,
    /// It ends with this event.
    Until(Event),
    /// It has ended, and all that the program reads is there.
    Done,
}

/// A stream, and what it waits for already.
pub(in crate::cuda) struct Ordered<'a> {
    stream: &'a Stream,
    interrupt: &'a Interrupt,
    /// Of each transfer, what comes last of it.
    last: Vec<&'a Tensor>,
}

impl Prologue {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self { steps, given: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bound {
    /// Whether all that its runs read is there: from then on [`Self::launch`] is right by itself. An error says that it never will be.
    pub(in crate::cuda) fn is_ready(&self, weights: &Weights) -> Result<bool, InferenceError> {
        let mut given = self.prologue.lock();
        let ended = match &*given {
            Given::Done => return Ok(true),
            Given::Not => false,
            Given::Until(event) => event.is_reached().map_err(|error| failure(&error))?,
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
            *given = Given::Done;
        }
        Ok(is_ready)
    }

    /// Have what is needed once be there before whatever `ordered` is given from now on. Before the inputs: it works in `arena`, too.
    ///
    /// # Safety
    /// As for [`Self::launch`].
    pub(in crate::cuda) unsafe fn begin<'a>(
        &'a self,
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
        arena: Span,
    ) -> Result<(), InferenceError> {
        let mut given = self.prologue.lock();
        let stream = ordered.stream;
        match &*given {
            Given::Done => Ok(()),
            Given::Until(event) => stream.wait(event).map_err(|error| failure(&error)),
            Given::Not => {
                // SAFETY: the caller's part.
                let launched = unsafe { self.launch_in_order(&self.prologue.steps, ordered, weights, arena) };
                let recorded = launched.and_then(|()| {
                    let event = Event::new(stream.context()).map_err(|error| failure(&error))?;
                    stream.record(&event).map_err(|error| failure(&error))?;
                    Ok(event)
                });
                if recorded.is_err() {
                    // Whoever begins anew is not to meet what was given of it.
                    let _ = stream.synchronize();
                }
                *given = Given::Until(recorded?);
                Ok(())
            }
        }
    }

    /// Give a run to a stream, each launch behind the arrival of what it reads. Told to stop, it gives no more.
    ///
    /// # Safety
    /// As for [`Self::launch`].
    pub(in crate::cuda) unsafe fn launch_behind<'a>(
        &'a self,
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
        arena: Span,
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's part.
        unsafe { self.launch_in_order(&self.steps, ordered, weights, arena) }?;
        // An output may be a weight itself.
        self.program.outputs.iter().try_for_each(|port| self.order(port.place, ordered, weights))
    }

    /// # Safety
    /// As for [`Self::launch`].
    unsafe fn launch_in_order<'a>(
        &'a self,
        steps: &[Step],
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
        arena: Span,
    ) -> Result<(), InferenceError> {
        let mut parameters = Parameters::default();
        for step in steps {
            step.arrivals.iter().try_for_each(|place| self.order(*place, ordered, weights))?;
            // SAFETY: the caller's part.
            unsafe { step.launch(ordered.stream, arena, &mut parameters) }
                .map_err(|error| failure(&error))?;
        }
        Ok(())
    }

    /// Wait until all that its runs read is there, but for what [`Self::begin`] makes.
    pub(in crate::cuda) fn wait(&self, weights: &Weights) -> Result<(), InferenceError> {
        let arrived = weights.wait().and_then(|()| self.constants.iter().try_for_each(Tensor::wait));
        arrived.map_err(|error| weights_failure(&error))
    }

    fn order<'a>(
        &'a self,
        place: Place,
        ordered: &mut Ordered<'a>,
        weights: &'a Weights,
    ) -> Result<(), InferenceError> {
        let tensor = match place {
            Place::Weight(index) => weights.tensor(index),
            Place::Constant(index) => self.constants.get(index),
            Place::Arena(_) | Place::Resident(_) => None,
        };
        tensor.map_or(Ok(()), |tensor| ordered.wait(tensor))
    }
}

impl<'a> Ordered<'a> {
    pub(in crate::cuda) fn new(stream: &'a Stream, interrupt: &'a Interrupt) -> Self {
        Self { stream, interrupt, last: Vec::new() }
    }

    /// Have the stream wait until a tensor is there.
    fn wait(&mut self, tensor: &'a Tensor) -> Result<(), InferenceError> {
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
