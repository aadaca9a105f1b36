//! Runs a program and captures its output.

use std::process::Command;

/// Largest number of output lines of a failed program in an error.
const LINES_MAX: usize = 3;

/// Reason why a program returned no output.
#[derive(Debug)]
pub(crate) enum ProcessFailure {
    /// The program did not start.
    Start(std::io::Error),
    /// The program failed. Has the relevant lines of its output.
    Exit(String),
}

impl std::fmt::Display for ProcessFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(error) => write!(f, "cannot start it: {error}"),
            Self::Exit(said) => f.write_str(said),
        }
    }
}

/// Runs `command` and returns its standard output, trimmed.
pub(crate) fn answer(command: &mut Command) -> Result<String, ProcessFailure> {
    let output = command.stdin(std::process::Stdio::null()).output().map_err(ProcessFailure::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(ProcessFailure::Exit(format!("{}: {}", output.status, essence(&said))))
}

/// The relevant lines of a failed program's output: from the first error on, or else the last
/// lines.
fn essence(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let error = lines.iter().position(|line| line.to_ascii_lowercase().starts_with("error"));
    let from = error.unwrap_or(lines.len().saturating_sub(LINES_MAX));
    lines.iter().skip(from).take(LINES_MAX).copied().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_line_is_found_before_its_backtrace() {
        assert_eq!(
            essence("info: trying\nerror: no network\n  0: main\n 1: start\n 2: x\n"),
            "error: no network; 0: main; 1: start"
        );
        assert_eq!(essence("a\n\nb\nc\nd\n"), "b; c; d");
        let failed = answer(Command::new("sh").args(["-c", "echo ERROR: full >&2; exit 4"]));
        assert_eq!(failed.unwrap_err().to_string(), "exit status: 4: ERROR: full");
    }
}
