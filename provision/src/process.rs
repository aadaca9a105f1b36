//! Running a program for its answer.

use std::process::Command;

/// Why a program's answer is not there.
pub(crate) enum Failure {
    /// It did not start.
    Start(std::io::Error),
    /// It said no. The last lines of what it wrote.
    Exit(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(error) => write!(f, "cannot start it: {error}"),
            Self::Exit(said) => f.write_str(said),
        }
    }
}

/// Run `command` and give its standard output, trimmed.
pub(crate) fn answer(command: &mut Command) -> Result<String, Failure> {
    let output = command.stdin(std::process::Stdio::null()).output().map_err(Failure::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let mut last: Vec<&str> =
        said.lines().rev().map(str::trim).filter(|line| !line.is_empty()).take(3).collect();
    last.reverse();
    Err(Failure::Exit(format!("{}: {}", output.status, last.join("; "))))
}
