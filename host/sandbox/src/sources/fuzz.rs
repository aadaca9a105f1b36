//! Checks of a table of source locations with arbitrary bytes.

use super::table::SourceTable;
use super::{FRAMES_PER_INSTRUCTION_MAX, TEXT_BYTES_MAX};
use std::path::Path;

/// Reads or refuses the frames of an instruction.
pub(crate) fn frames(table: &Path, function: u32, offset: u32) {
    let table = SourceTable::new(table.to_owned()).open();
    let Ok(frames) = table.and_then(|table| table.frames(function, offset)) else { return };
    assert!(frames.len() <= FRAMES_PER_INSTRUCTION_MAX);
    for frame in frames {
        // A replaced byte takes three bytes.
        assert!(frame.function.len() <= 3 * TEXT_BYTES_MAX && frame.file.len() <= 3 * TEXT_BYTES_MAX);
        assert!(!frame.function.contains('\n') && !frame.file.contains('\n'));
    }
}
