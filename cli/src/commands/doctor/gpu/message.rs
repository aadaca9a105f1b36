//! Messages between the doctor and the process of a stage: lines of JSON over a socket, which is the standard input of the process. First the order, then
//! events in the other direction.

use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use weir_inference::gpu_check::{CheckConfig, Progress, Stage};

/// The task of a stage process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StageOrder {
    pub(super) stage: Stage,
    pub(super) config: CheckConfig,
}

/// An event of the process of a stage.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StageEvent {
    /// The stage goes on.
    Progress(Progress),
    /// The driver cannot be used, or shows no GPU.
    Unavailable(String),
    /// The stage ran to its end.
    Finished,
    /// The stage ended early.
    Failed(String),
}

/// Sends a message whole, before anything that comes after it can end the process.
pub(super) fn send(mut to: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}
