//! Runs under way in a worker: how they are told to stop, and where their tensors are.

use crate::cuda::process::{Home, Part};
use crate::cuda::session::{Exchange, misfit};
use crate::cuda::worker::control::Files;
use crate::error::InferenceError;
use crate::interrupt::{Interrupt, Reason};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_types::{ElementType, Shape};

/// What stops each of them.
#[derive(Default)]
pub(super) struct Runs(Mutex<HashMap<u64, Arc<Interrupt>>>);

/// A run under way, until it drops.
pub(super) struct UnderWay<'a> {
    runs: &'a Runs,
    number: u64,
    interrupt: Arc<Interrupt>,
}

impl Runs {
    pub(super) fn begin(&self, number: u64) -> UnderWay<'_> {
        let interrupt = Arc::<Interrupt>::default();
        self.lock().insert(number, Arc::clone(&interrupt));
        UnderWay { runs: self, number, interrupt }
    }

    /// Tell a run to stop, if it has not ended yet.
    pub(super) fn cancel(&self, number: u64) {
        let interrupt = self.lock().get(&number).cloned();
        if let Some(interrupt) = interrupt {
            interrupt.fire(Reason::Cancelled);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Interrupt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay<'_> {
    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.number);
    }
}

/// The tensors of one run in the files that its connection came with: read from there into pinned memory, and written from there.
pub(super) struct Window<'a> {
    files: &'a Files,
    inputs: &'a [Part],
    outputs: Vec<Part>,
    end: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(files: &'a Files, inputs: &'a [Part], outputs_at: u64) -> Self {
        Self { files, inputs, outputs: Vec::new(), end: outputs_at }
    }

    pub(super) fn into_outputs(self) -> Vec<Part> {
        self.outputs
    }
}

impl Exchange for Window<'_> {
    fn shape(&self, input: usize) -> Option<&Shape> {
        self.inputs.get(input).map(|part| &part.shape)
    }

    fn bytes(&self, input: usize) -> usize {
        self.inputs.get(input).map_or(0, |part| usize::try_from(part.bytes).unwrap_or(usize::MAX))
    }

    fn read(&self, input: usize, place: &mut [u8]) -> Result<(), InferenceError> {
        let part = self.inputs.get(input).ok_or_else(misfit)?;
        let file = match part.home {
            Home::Connection => &self.files.memory,
            Home::Arena => &self.files.arena,
        };
        file.read_exact_at(place, part.offset).map_err(|error| failed(&error))
    }

    fn write(&mut self, _: ElementType, shape: Shape, bytes: &[u8]) -> Result<(), InferenceError> {
        self.files.memory.write_all_at(bytes, self.end).map_err(|error| failed(&error))?;
        let part = Part { shape, home: Home::Connection, offset: self.end, bytes: bytes.len() as u64 };
        self.end = part.offset.saturating_add(part.bytes);
        self.outputs.push(part);
        Ok(())
    }
}

fn failed(error: &io::Error) -> InferenceError {
    InferenceError::RunOutOfMemory(format!("the memory for tensors: {error}").into())
}
