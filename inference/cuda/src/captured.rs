//! Runs of a session that are captured as CUDA graphs, and repeated with one call.
//!
//! The first run of a program in a slot is launched kernel by kernel; the next run is captured. If
//! the driver fails to capture the run, or to instantiate or launch the graph, the run continues
//! kernel by kernel. So do later runs of the program in all slots until the next attempt
//! ([`CaptureBackoff`]).

#![allow(unsafe_code, reason = "work is enqueued on a device")]

mod backoff;
pub(crate) use backoff::CaptureBackoff;
mod failures;
pub(crate) use failures::CaptureFailures;

use crate::bound::Bound;
use crate::device::Gpu;
use crate::slots::RunSlot;
use std::collections::HashMap;
use std::sync::Arc;
use weir_device::cuda::{CudaError, GraphExec, Span};

/// Maximum number of captured runs of a session. The cache is cleared when it is full.
const GRAPHS_MAX: usize = 16;

/// Captured runs of one session.
#[derive(Default)]
pub(crate) struct CapturedRuns(HashMap<CaptureKey, CaptureState>);

/// Number of a program, and number of a slot.
type CaptureKey = (u64, usize);

/// Capture state of a program in a slot.
enum CaptureState {
    /// The program has run once, kernel by kernel.
    Once,
    /// Runs launch the graph.
    Graph { graph: GraphExec, _bound: Arc<Bound> },
}

impl CapturedRuns {
    /// Enqueues a run on the slot's stream. All data that the run reads must have arrived.
    ///
    /// The first run is launched kernel by kernel. Later runs launch a graph, once the compiler has
    /// finished the program's chains. Returns the error of the graph if the run fell back to
    /// launches kernel by kernel; returns an error if the run failed.
    ///
    /// # Safety
    /// Same as for [`Bound::launch`]. In addition, `arena` must begin at the same address in every
    /// run in this slot.
    pub(crate) unsafe fn launch(
        &mut self,
        bound: &Arc<Bound>,
        slot: &RunSlot,
        arena: Span,
        gpu: &Gpu,
    ) -> Result<Option<CudaError>, CudaError> {
        // SAFETY: the caller guarantees the requirements of `launch`.
        let failed = match unsafe { self.launch_graph(bound, slot, arena, gpu) } {
            Ok(true) => return Ok(None),
            Ok(false) => None,
            Err(error) if error.is_context_lost() => return Err(error),
            Err(error) => {
                bound.captures.note_failure();
                Some(error)
            }
        };
        // SAFETY: the caller guarantees the requirements of `launch`.
        unsafe { bound.launch(&slot.stream, arena) }?;
        self.note_launched(bound, slot);
        Ok(failed)
    }

    /// Records that a program has run kernel by kernel in a slot.
    pub(crate) fn note_launched(&mut self, bound: &Bound, slot: &RunSlot) {
        self.keep(place(bound, slot), CaptureState::Once);
    }

    /// Launches the graph of a run, and captures the graph first if the capture is due.
    ///
    /// Returns whether a graph was launched. On error, no work was launched.
    ///
    /// # Safety
    /// Same as for [`Self::launch`].
    unsafe fn launch_graph(
        &mut self,
        bound: &Arc<Bound>,
        slot: &RunSlot,
        arena: Span,
        gpu: &Gpu,
    ) -> Result<bool, CudaError> {
        let stream = &slot.stream;
        match self.0.get_mut(&place(bound, slot)) {
            Some(CaptureState::Graph { graph, .. }) => {
                // SAFETY: the caller guarantees the memory. The graph was captured from the same
                // program in the same slot, whose addresses never change.
                unsafe { graph.launch(stream) }?;
                Ok(true)
            }
            // A captured graph keeps its kernels, so the capture waits until every kernel is final.
            Some(CaptureState::Once) if bound.settle(&gpu.chains) && bound.captures.is_due() => {
                // SAFETY: the caller guarantees the requirements of `launch`.
                let recorded = unsafe { bound.capture(stream, arena) }?;
                let mut graph = gpu.outside_pool(|| recorded.instantiate())?;
                gpu.measure()?;
                // SAFETY: the caller guarantees the requirements of `launch`.
                unsafe { graph.launch(stream) }?;
                self.keep(place(bound, slot), CaptureState::Graph { graph, _bound: bound.clone() });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn keep(&mut self, place: CaptureKey, captured: CaptureState) {
        if self.0.len() >= GRAPHS_MAX && !self.0.contains_key(&place) {
            self.0.clear();
        }
        self.0.insert(place, captured);
    }
}

fn place(bound: &Bound, slot: &RunSlot) -> CaptureKey {
    (bound.number, slot.number)
}
