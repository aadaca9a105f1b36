//! Stack traces of traps with source locations, in the format of wasmtime.

use super::{SourceFrame, SourceTable};
use std::sync::Arc;
use wasmtime::WasmBacktrace;

/// Limit of a stack trace with source locations. A longer one is logged without them.
const TRACE_BYTES_MAX: usize = 32 << 10;

/// The offsets of a stack frame in its component: of the body of its function, and of the
/// instruction.
type Offsets = Option<(u32, u32)>;

/// A stack trace, as wasmtime writes it and with source locations.
#[derive(Debug)]
pub(crate) struct LocatedTrace {
    pub(crate) plain: String,
    pub(crate) located: String,
}

/// The stack trace of `error` with the source locations in `table`. `None` without a table or a
/// stack trace.
pub(crate) async fn located(
    error: &wasmtime::Error,
    table: Option<&Arc<SourceTable>>,
) -> Option<LocatedTrace> {
    let table = table?.clone();
    let trace = error.downcast_ref::<WasmBacktrace>()?;
    let plain = trace.to_string();
    let offsets: Vec<Offsets> = trace
        .frames()
        .iter()
        .map(|frame| {
            let offset = frame.module_offset()?;
            let function = offset.checked_sub(frame.func_offset()?)?;
            Some((u32::try_from(function).ok()?, u32::try_from(offset).ok()?))
        })
        .collect();
    let read = tokio::task::spawn_blocking(move || read(&table, &offsets)).await;
    match read.map_err(std::io::Error::other).flatten() {
        Ok(frames) => {
            let located = with_locations(&plain, &frames);
            // Hostile debug information can name many long functions and files.
            (located.len() <= TRACE_BYTES_MAX).then_some(LocatedTrace { plain, located })
        }
        Err(error) => {
            tracing::debug!(%error, "reading source locations failed");
            None
        }
    }
}

fn read(table: &SourceTable, offsets: &[Offsets]) -> std::io::Result<Vec<Vec<SourceFrame>>> {
    let table = table.open()?;
    offsets
        .iter()
        .map(|offsets| offsets.map_or(Ok(Vec::new()), |(function, offset)| table.frames(function, offset)))
        .collect()
}

/// Adds the source locations of each frame below its line.
fn with_locations(trace: &str, frames: &[Vec<SourceFrame>]) -> String {
    let mut lines = Vec::new();
    let mut frames = frames.iter().enumerate().peekable();
    for line in trace.lines() {
        match frames.next_if(|(number, _)| line.starts_with(&format!("  {number:>3}: "))) {
            Some((_, located)) => write_frame(&mut lines, line, located),
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// Writes a frame with its locations, innermost first. wasmtime's `line` names the outermost function,
/// into which the others are inlined.
fn write_frame(lines: &mut Vec<String>, line: &str, located: &[SourceFrame]) {
    let (head, function) = line.split_once(" - ").unwrap_or((line, ""));
    for (index, frame) in located.iter().enumerate() {
        let name = match index + 1 == located.len() {
            true => function,
            false if frame.function.is_empty() => "<inlined function>",
            false => &frame.function,
        };
        match index {
            0 => lines.push(format!("{head} - {name}")),
            _ => lines.push(format!("                - {name}")),
        }
        if frame.file.is_empty() {
            continue;
        }
        let numbers = [frame.line, frame.column].into_iter().take_while(|number| *number > 0);
        let place: String = numbers.map(|number| format!(":{number}")).collect();
        lines.push(format!("                    at {}{place}", frame.file));
    }
    if located.is_empty() {
        lines.push(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, line: u32, column: u32) -> SourceFrame {
        SourceFrame { function: function.to_owned(), file: "lib.rs".to_owned(), line, column }
    }

    #[test]
    fn frames_get_their_locations_and_inlined_functions() {
        let trace = "error while executing at wasm backtrace:\n    0:  0x1234 - a.wasm!abort\n    1:  0x5678 - a.wasm!app::handle";
        let frames = [Vec::new(), vec![frame("unwrap", 7, 1), frame("", 8, 0), frame("handle", 12, 5)]];
        assert_eq!(
            with_locations(trace, &frames),
            "error while executing at wasm backtrace:\n    0:  0x1234 - a.wasm!abort\n    1:  0x5678 - unwrap\n                    at lib.rs:7:1\n                - <inlined function>\n                    at lib.rs:8\n                - a.wasm!app::handle\n                    at lib.rs:12:5"
        );
    }

    #[test]
    fn frames_without_locations_are_unchanged() {
        let trace = "error while executing at wasm backtrace:\n    0:  0x1 - f\nnote";
        assert_eq!(with_locations(trace, &[Vec::new()]), trace);
        assert_eq!(with_locations(trace, &[]), trace);
    }
}
