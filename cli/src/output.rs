//! Results on standard output, as text or JSON, and progress on standard error.

use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

/// Output settings of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputSettings {
    /// Print results as JSON.
    pub(crate) json: bool,
    /// Suppress progress and notes.
    pub(crate) quiet: bool,
}

/// The reader of standard output closed it.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct StdoutClosed;

impl OutputSettings {
    /// Prints the result of a command: `value` as JSON, or as `text` formats it.
    pub(crate) fn result<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            return self.line(&serde_json::to_string_pretty(value)?);
        }
        let text = text(value);
        if text.is_empty() { Ok(()) } else { self.line(&text.trim_end_matches('\n')) }
    }

    /// Prints one line of a result.
    pub(crate) fn line(self, line: &dyn Display) -> anyhow::Result<()> {
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(stdout_error)
    }

    /// Writes bytes of a result unchanged.
    pub(crate) fn bytes(self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(stdout_error)
    }

    /// Prints a note to standard error, unless quiet.
    pub(crate) fn note(self, note: impl Display) {
        if !self.quiet {
            // Ignore a closed standard error.
            let _ = writeln!(anstream::stderr(), "{note}");
        }
    }

    /// Progress bar for `length_bytes` bytes.
    pub(crate) fn bytes_bar(self, what: &str, length_bytes: u64) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(length_bytes), self.target());
        let style =
            ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what.to_owned());
        bar
    }

    /// Progress of a transfer of unknown length.
    pub(crate) fn received_bytes(self, what: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, self.target());
        let style = ProgressStyle::with_template("{spinner} {msg} {bytes} {binary_bytes_per_sec}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(what.to_owned());
        bar
    }

    /// Progress bar for `steps` steps.
    pub(crate) fn count_bar(self, what: &str, steps: u64) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(steps), self.target());
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        bar
    }

    /// Spinner for work of unknown length.
    pub(crate) fn spinner(self, what: &str) -> ProgressBar {
        if !io::stderr().is_terminal() {
            // Without a terminal, print one line instead.
            self.note(format_args!("{what} ..."));
        }
        let bar = ProgressBar::with_draw_target(None, self.target());
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    fn target(self) -> ProgressDrawTarget {
        // Draws nothing if standard error is not a terminal.
        if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() }
    }
}

/// Formats a table without borders, as `kubectl` does, so that `awk` can parse it.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3)).set_cell_alignment(CellAlignment::Left);
    }
    table.trim_fmt()
}

/// Human-readable size.
pub(crate) fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// Human-readable time since a Unix time in milliseconds.
pub(crate) fn age(at_ms: u64) -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    let then = i64::try_from(at_ms).unwrap_or(i64::MAX);
    let past = u64::try_from(now.saturating_sub(then)).unwrap_or(0);
    if past < 1_000 {
        return "just now".into();
    }
    format!("{} ago", duration(Duration::from_millis(past)))
}

/// Human-readable duration.
pub(crate) fn duration(duration: Duration) -> String {
    indicatif::HumanDuration(duration).to_string()
}

/// Measured duration in its own unit; `-` for none.
pub(crate) fn measured(duration: Duration) -> String {
    if duration.is_zero() { "-".to_owned() } else { format!("{duration:.3?}") }
}

/// Formats a Unix time in milliseconds as UTC.
pub(crate) fn time(at_ms: u64) -> String {
    i64::try_from(at_ms)
        .ok()
        .and_then(|at_ms| jiff::Timestamp::from_millisecond(at_ms).ok())
        .map_or_else(|| at_ms.to_string(), |at| format!("{at:.3}"))
}

fn stdout_error(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe { StdoutClosed.into() } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_without_trailing_spaces() {
        let text =
            table(["NAME", "SIZE"], [["a-long-name".into(), "1 B".into()], ["b".into(), "22 B".into()]]);
        assert_eq!(text, "NAME          SIZE\na-long-name   1 B\nb             22 B");
    }

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(time(1_795_228_380_005), "2026-11-21T02:33:00.005Z");
        assert_eq!(time(u64::MAX), u64::MAX.to_string());
        assert_eq!(age(u64::MAX), "just now");
        assert_eq!(measured(Duration::ZERO), "-");
        assert_eq!(measured(Duration::from_micros(1500)), "1.500ms");
    }
}
