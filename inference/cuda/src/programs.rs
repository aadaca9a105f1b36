//! Compiled programs of a device: [`ProgramCache`].

use crate::program::{ModelProgramError, Program};
use bytes::Bytes;
use moka::sync::Cache;
use std::sync::Arc;
use weir_types::{ContentHash, Precision, Shape};

/// Maximum size of all programs of a device.
const BYTES_MAX: u64 = 64 << 20;
/// Approximate size of a program without steps and constants, with its key.
const PROGRAM_BYTES: usize = 4 << 10;
/// Approximate size of a step with its arguments.
const STEP_BYTES: usize = 1 << 10;

/// Cache of compiled programs. Compilation takes some milliseconds; a model that is loaded again, or
/// that has the graph of another model, uses the program again.
pub(crate) struct ProgramCache(Cache<ProgramKey, Arc<Program>>);

/// Everything that a program depends on, on one device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProgramKey {
    /// Hash of the file with the graph.
    pub(crate) skeleton: ContentHash,
    pub(crate) precision: Precision,
    /// Shapes of the inputs, in the order of the graph.
    pub(crate) shapes: Vec<Shape>,
}

impl Default for ProgramCache {
    fn default() -> Self {
        let weigher =
            |_: &ProgramKey, program: &Arc<Program>| u32::try_from(bytes(program)).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(BYTES_MAX).weigher(weigher).build())
    }
}

impl ProgramCache {
    /// Returns the program for a key, and compiles it first if it is not there.
    pub(crate) fn get(
        &self,
        key: ProgramKey,
        compile: impl FnOnce() -> Result<Program, ModelProgramError>,
    ) -> Result<Arc<Program>, ModelProgramError> {
        let compile = || {
            let mut program = compile()?;
            // The constants are slices of the model's file, which would stay in memory as a whole.
            program.constants.iter_mut().for_each(|bytes| *bytes = Bytes::copy_from_slice(bytes));
            Ok(Arc::new(program))
        };
        let made = self.0.try_get_with(key, compile);
        made.map_err(|error: Arc<ModelProgramError>| error.as_ref().clone())
    }
}

/// Returns the approximate size of a program in bytes.
fn bytes(program: &Program) -> usize {
    let constants: usize = program.constants.iter().map(Bytes::len).sum();
    PROGRAM_BYTES + constants + (program.prologue.len() + program.steps.len()) * STEP_BYTES
}
