//! Source locations of a component's instructions, for the stack traces of traps.
//!
//! wasmtime can look up source locations in the debug information when it captures a stack trace.
//! The duration of that lookup is up to the component, and nothing interrupts it. Therefore, a child
//! process with limits reads the debug information after the compilation, and writes a table of
//! offsets and locations beside the artefact. A trap costs a few reads of the table.

mod child;
mod collect;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod table;
mod trace;
mod writer;

pub(crate) use child::{LocateTask, locate};
pub use child::{SUBCOMMAND, main};
pub(crate) use collect::has_debug_info;
pub(crate) use table::SourceTable;
pub(crate) use trace::{LocatedTrace, located};
pub(crate) use writer::TABLE_BYTES_MAX;

/// Frames of one instruction: the function itself and the inlined functions around the instruction.
const FRAMES_PER_INSTRUCTION_MAX: usize = 16;
/// Limit of a name or a path. Longer ones are cut.
const TEXT_BYTES_MAX: usize = 256;

/// The function and the source location of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct SourceFrame {
    /// The name of the function; empty if it is unknown.
    pub(crate) function: String,
    /// The path of the file; empty if it is unknown.
    pub(crate) file: String,
    /// The line; 0 if it is unknown.
    pub(crate) line: u32,
    /// The column; 0 if it is unknown.
    pub(crate) column: u32,
}
