//! Finds out which layers of confinement the system provides, in a process that is then confined.

use super::{Confinement, MissingLayer, confine_access, confine_process};
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};

/// Hidden subcommand that makes the program call [`probe_main`].
pub const PROBE_COMMAND: &str = "__probe-confinement";

/// Layers that this system does not provide. Starts this program with [`PROBE_COMMAND`], and blocks
/// until it ends.
pub fn missing_layers() -> io::Result<Vec<MissingLayer>> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(PROBE_COMMAND).env_clear().current_dir("/").stdin(Stdio::null());
    let ended = command.output()?;
    if !ended.status.success() {
        let complaint = String::from_utf8_lossy(&ended.stderr);
        return Err(io::Error::other(format!("{}: {}", ended.status, complaint.trim())));
    }
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// Confines the process, and prints the layers that are missing.
#[must_use]
pub fn probe_main() -> ExitCode {
    let mut missing = confine_process();
    missing.extend(confine_access(&Confinement::default()));
    let printed = serde_json::to_vec(&missing).map_err(io::Error::from);
    match printed.and_then(|missing| io::stdout().write_all(&missing)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
