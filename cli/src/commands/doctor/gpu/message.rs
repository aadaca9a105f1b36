//! Messages between the doctor and a stage process: lines of JSON over a socket, which is the
//! standard input of the process. The doctor sends one order, then the process sends events.

use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use weir_gpu_check::{CheckConfig, Stage, StageProgress};

/// Work of a stage process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StageOrder {
    pub(super) stage: Stage,
    pub(super) config: CheckConfig,
}

/// Event of a stage process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StageEvent {
    /// Progress of the stage.
    Progress(StageProgress),
    /// The driver is unusable or reports no GPU.
    Unavailable(String),
    /// The stage completed.
    Finished,
    /// The stage ended early.
    Failed(String),
}

/// Sends a whole message before returning, so that a later crash does not lose it.
pub(super) fn send(mut to: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}
