//! Work on untrusted input, done by a child process that can run out of memory, crash or be killed without harm to the node.
//!
//! The child is this same program: `weir SUBCOMMAND REQUEST-JSON`. What it prints on standard output is the answer, as JSON.

use crate::component::compile;
use rustix::process::{Resource, Rlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, Stdio};
use std::time::Duration;
use tokio::process::Command;

/// A child may wait (for a disk, for a core) this many times longer than it may compute.
const WALL_PER_CPU_TIME: u32 = 4;
/// The end of a child's standard error that goes into an error text.
const STDERR_TAIL_BYTES: usize = 2_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It hit a limit; the text names which.
    #[error("{0}")]
    Limit(&'static str),
    /// It could not be started, or ended in some other way.
    #[error("{0}")]
    Broken(String),
}

/// Run `subcommand` on `request` in a child. Dropping the future kills the child.
pub(crate) async fn run<Answer: DeserializeOwned>(
    subcommand: &str,
    request: &impl Serialize,
    cpu_time_max: Duration,
) -> Result<Answer, Failure> {
    let broken = |what: &str, error: &dyn std::fmt::Display| Failure::Broken(format!("{what}: {error}"));
    let program = std::env::current_exe().map_err(|error| broken("cannot find this program", &error))?;
    let request =
        serde_json::to_string(request).map_err(|error| broken("cannot write the request", &error))?;
    let child = Command::new(program)
        .arg(subcommand)
        .arg(request)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| broken("cannot start it", &error))?;
    let output = tokio::time::timeout(cpu_time_max * WALL_PER_CPU_TIME, child.wait_with_output())
        .await
        .map_err(|_| Failure::Limit("time limit"))?
        .map_err(|error| broken("cannot wait for it", &error))?;
    match output.status.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => return Err(Failure::Limit("time limit")),
        // An allocation that fails aborts.
        Some(libc::SIGABRT | libc::SIGSEGV) => return Err(Failure::Limit("memory limit")),
        _ => {}
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let stderr =
            String::from_utf8_lossy(&output.stderr[output.stderr.len().saturating_sub(STDERR_TAIL_BYTES)..]);
        Failure::Broken(format!("{} ({error}): {}", output.status, stderr.trim()))
    })
}

/// Called by a child before it touches its input.
pub(crate) fn limit_self(memory_bytes_max: u64, cpu_time_ms_max: u64) -> std::io::Result<()> {
    let limit = |max| Rlimit { current: Some(max), maximum: Some(max) };
    rustix::process::setrlimit(Resource::As, limit(memory_bytes_max))?;
    rustix::process::setrlimit(Resource::Cpu, limit(cpu_time_ms_max.div_ceil(1_000)))?;
    rustix::process::setrlimit(Resource::Core, limit(0))?;
    // Requests go first.
    rustix::process::nice(10)?;
    Ok(())
}

/// What a child was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind {
    /// Compile a component.
    Compile,
    /// Check and optimise a model; `weir-inference` has that child's protocol.
    PrepareModel,
}

impl ChildKind {
    /// The child that the hidden `subcommand` starts, if it is one.
    #[must_use]
    pub fn from_subcommand(subcommand: &str) -> Option<Self> {
        match subcommand {
            compile::SUBCOMMAND => Some(Self::Compile),
            weir_inference::PREPARE_COMMAND => Some(Self::PrepareModel),
            _ => None,
        }
    }

    /// Do the work that `request` (JSON) asks for, and print the answer. The program does nothing else in this process.
    #[must_use]
    pub fn main(self, request: &str) -> ExitCode {
        let answer = match self {
            Self::Compile => serde_json::from_str(request).map(|request| compile::main(&request)),
            Self::PrepareModel => return weir_inference::prepare_main(),
        };
        match answer.and_then(|answer| serde_json::to_writer(std::io::stdout(), &answer)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    }
}
