//! Stack traces of guests in log lines.
//!
//! wasmtime writes one line per frame, `N: OFFSET - FUNCTION`, each followed by the frame's source
//! locations, `at FILE:LINE`, where the component has debug information.

/// The first line of a trace.
const HEAD: &str = "error while executing at wasm backtrace:";

/// Paths of the standard library and of packages from registries in the builds of Rust.
const LIBRARIES: [&str; 2] = ["/rustc/", "/.cargo/registry/"];

/// Shortens a trace to the frames with source locations outside of libraries. Text around the trace
/// stays; text without a trace is returned unchanged. Shows the trace's cause first.
pub(super) fn shorten(text: &str) -> String {
    let Some((before, trace)) = text.split_once(HEAD) else { return text.to_owned() };
    let mut frames: Vec<Frame<'_>> = Vec::new();
    let mut after = Vec::new();
    for line in trace.lines().filter(|line| !line.trim().is_empty()) {
        match (Frame::head(line), line.trim_start().strip_prefix("at "), frames.last_mut()) {
            (Some(frame), _, _) => frames.push(frame),
            (None, Some(source), Some(frame)) if after.is_empty() => frame.sources.push(source),
            // The names of inlined functions.
            (None, None, Some(_)) if after.is_empty() && line.trim_start().starts_with("- ") => {}
            // wasmtime's advice concerns an environment variable of the node.
            _ if line.starts_with("note: using the `WASMTIME_BACKTRACE_DETAILS") => {}
            _ => after.push(line),
        }
    }
    let mut lines: Vec<String> = vec![format!("{before}{}", after.join(": "))];
    let located = frames.iter().filter(|frame| !frame.sources.is_empty());
    let (libraries, own): (Vec<_>, Vec<_>) = located.partition(|frame| frame.is_library());
    let shown = if own.is_empty() { libraries } else { own };
    lines.extend(shown.iter().map(|frame| format!("at {} ({})", frame.sources.join(" < "), frame.function)));
    lines.push(match frames.len() {
        1 => "1 frame: --verbose shows it".to_owned(),
        count => format!("{count} frames: --verbose shows all"),
    });
    lines.join("\n")
}

struct Frame<'a> {
    function: &'a str,
    sources: Vec<&'a str>,
}

impl<'a> Frame<'a> {
    /// Parses the first line of a frame.
    fn head(line: &'a str) -> Option<Self> {
        let (number, rest) = line.trim_start().split_once(':')?;
        number.parse::<u32>().ok()?;
        let function = rest.split_once(" - ").map_or(rest, |(_, function)| function).trim();
        Some(Self { function, sources: Vec::new() })
    }

    /// Whether all of its code is in libraries.
    fn is_library(&self) -> bool {
        self.sources.iter().all(|source| LIBRARIES.iter().any(|library| source.contains(library)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_is_shortened_to_its_cause_and_source_lines() {
        let text = "guest-trap: error while executing at wasm backtrace:\n    0:  0x1234 - shout.wasm!abort\n    1:  0x5678 - app::handle\n                    at src/lib.rs:12:5\n                - core::ops::call\n                    at core/ops.rs:7:1\n    2: 0x9abc - _start\nwasm trap: wasm `unreachable` instruction executed";
        assert_eq!(
            shorten(text),
            "guest-trap: wasm trap: wasm `unreachable` instruction executed\nat src/lib.rs:12:5 < core/ops.rs:7:1 (app::handle)\n3 frames: --verbose shows all"
        );
    }

    #[test]
    fn frames_of_libraries_are_left_out_if_there_are_others() {
        let frame =
            |number: u32, file: &str| format!("\n    {number}: 0x1 - f{number}\n          at {file}:3");
        let trace =
            |frames: &[String]| format!("error while executing at wasm backtrace:{}", frames.concat());
        let library =
            [frame(0, "/rustc/5980/library/std/src/rt.rs"), frame(1, "/u/.cargo/registry/src/a.rs")];
        let own = [&library[..], &[frame(2, "/u/app/src/lib.rs")]].concat();
        assert_eq!(shorten(&trace(&own)), "\nat /u/app/src/lib.rs:3 (f2)\n3 frames: --verbose shows all");
        let at = "\nat /rustc/5980/library/std/src/rt.rs:3 (f0)\nat /u/.cargo/registry/src/a.rs:3 (f1)";
        assert_eq!(shorten(&trace(&library)), format!("{at}\n2 frames: --verbose shows all"));
    }

    #[test]
    fn advice_about_the_environment_of_the_node_is_left_out() {
        let text = "guest-trap: error while executing at wasm backtrace:\n    0: 0x1 - f\nnote: using the `WASMTIME_BACKTRACE_DETAILS=1` environment variable may show more debugging information\nwasm trap: integer divide by zero";
        assert_eq!(
            shorten(text),
            "guest-trap: wasm trap: integer divide by zero\n1 frame: --verbose shows it"
        );
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in ["shouted 7 bytes", "a\n  0: b\nc", ""] {
            assert_eq!(shorten(text), text);
        }
    }
}
