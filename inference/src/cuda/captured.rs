//! Runs of a session that were captured as CUDA graphs, and are repeated with one call.
//!
//! A program runs kernel by kernel the first time in a slot, and is captured the next time. Where the driver fails to capture it, or to instantiate or launch
//! the graph, the run goes on kernel by kernel, and so do later runs of the program in all slots until the next attempt ([`CaptureBackoff`]).

#![allow(unsafe_code, reason = "work is given to a device")]

mod backoff;
pub(super) use backoff::CaptureBackoff;
mod failures;
pub(super) use failures::CaptureFailures;

use super::bound::Bound;
use super::device::Gpu;
use super::slots::Slot;
use std::collections::HashMap;
use std::sync::Arc;
use weir_device::cuda::{CudaError, GraphExec, Span};

/// Captured runs that a session keeps; all are forgotten when there are more.
const GRAPHS_MAX: usize = 16;

/// The captured runs of one session.
#[derive(Default)]
pub(super) struct CapturedRuns(HashMap<Place, Captured>);

/// A program, by its number, in a slot, by its own.
type Place = (u64, usize);

/// How far a program has got in a slot.
enum Captured {
    /// It has run once, kernel by kernel.
    Once,
    /// From now on it is repeated.
    Graph { graph: GraphExec, _bound: Arc<Bound> },
}

impl CapturedRuns {
    /// Give a run to the slot's stream, now that all it reads is there: kernel by kernel the first time, and as a graph from then on, or from when the
    /// compiler is done with its chains. Gives why the graph failed where the run was launched kernel by kernel instead; an error says that the run failed.
    ///
    /// # Safety
    /// As for [`Bound::launch`]; and `arena` begins at the same address in every run in this slot.
    pub(super) unsafe fn launch(
        &mut self,
        bound: &Arc<Bound>,
        slot: &Slot,
        arena: Span,
        gpu: &Gpu,
    ) -> Result<Option<CudaError>, CudaError> {
        // SAFETY: the caller's part.
        let failed = match unsafe { self.launch_graph(bound, slot, arena, gpu) } {
            Ok(true) => return Ok(None),
            Ok(false) => None,
            Err(error) if error.is_context_lost() => return Err(error),
            Err(error) => {
                bound.captures.note_failure();
                Some(error)
            }
        };
        // SAFETY: the caller's part.
        unsafe { bound.launch(&slot.stream, arena) }?;
        self.note_launched(bound, slot);
        Ok(failed)
    }

    /// A program has run kernel by kernel in a slot.
    pub(super) fn note_launched(&mut self, bound: &Bound, slot: &Slot) {
        self.keep(place(bound, slot), Captured::Once);
    }

    /// Launch the graph of a run, which is captured if it is time for that. Gives whether there is one; on error nothing was launched.
    ///
    /// # Safety
    /// As for [`Self::launch`].
    unsafe fn launch_graph(
        &mut self,
        bound: &Arc<Bound>,
        slot: &Slot,
        arena: Span,
        gpu: &Gpu,
    ) -> Result<bool, CudaError> {
        let stream = &slot.stream;
        match self.0.get_mut(&place(bound, slot)) {
            Some(Captured::Graph { graph, .. }) => {
                // SAFETY: the caller's part: it was captured from the same program in the same slot, whose addresses stay.
                unsafe { graph.launch(stream) }?;
                Ok(true)
            }
            // What is captured stays as it is: not before it is settled which kernels those are.
            Some(Captured::Once) if bound.settle(&gpu.chains) && bound.captures.is_due() => {
                // SAFETY: the caller's part.
                let recorded = stream.capture(|stream| unsafe { bound.launch(stream, arena) })?;
                let mut graph = gpu.outside_pool(|| recorded.instantiate())?;
                gpu.measure()?;
                // SAFETY: the caller's part.
                unsafe { graph.launch(stream) }?;
                self.keep(place(bound, slot), Captured::Graph { graph, _bound: Arc::clone(bound) });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn keep(&mut self, place: Place, captured: Captured) {
        if self.0.len() >= GRAPHS_MAX && !self.0.contains_key(&place) {
            self.0.clear();
        }
        self.0.insert(place, captured);
    }
}

fn place(bound: &Bound, slot: &Slot) -> Place {
    (bound.number, slot.number)
}
