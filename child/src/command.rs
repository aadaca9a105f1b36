//! The node's side: starts the child, waits for it no longer than it should take, and tells what came of it.

use crate::Limits;
use crate::serve::Order;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

/// This program as it runs, whatever has become of its file since: an upgrade may have replaced it.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// What the child writes to standard error is kept up to here.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;

/// A program that [serves](crate::serve) one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It took longer than it may.
    #[error("it took too long")]
    OverTime,
    /// It needed more memory than it may have.
    #[error("it needed too much memory")]
    OverMemory,
    /// It died in some other way.
    #[error("it crashed: {how}")]
    Crashed {
        /// How.
        how: String,
    },
    /// It could not be run at all: the node's fault.
    #[error("it cannot be run: {0}")]
    Io(#[from] io::Error),
}

/// What a child left behind.
struct Ended {
    status: ExitStatus,
    answer: Vec<u8>,
    complaint: String,
}

impl Command {
    /// This same program, started with `subcommand`.
    #[must_use]
    pub fn this_program(subcommand: &str) -> Self {
        Self::new(THIS_PROGRAM, vec![subcommand.into()])
    }

    /// Some other program.
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<OsString>) -> Self {
        Self { program: program.into(), arguments }
    }

    /// Have a child do `task`. It is killed when the future drops.
    pub async fn run<Answer: DeserializeOwned>(
        &self,
        limits: Limits,
        task: &impl Serialize,
    ) -> Result<Answer, Failure> {
        let mut order = serde_json::to_vec(&Order { limits, task }).map_err(io::Error::other)?;
        order.push(b'\n');
        let ended = tokio::time::timeout(limits.clock(), self.run_to_end(&order)).await;
        // Dropping the run has killed it.
        let ended = ended.map_err(|_| Failure::OverTime)??;
        match serde_json::from_slice(&ended.answer) {
            Ok(answer) if ended.status.success() => Ok(answer),
            _ => Err(ended.cause_of_death()),
        }
    }

    async fn run_to_end(&self, order: &[u8]) -> io::Result<Ended> {
        let mut child = self.spawn()?;
        let (mut input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        if let Some(input) = &mut input {
            // A child that is gone already has its reason in its status.
            let _ = input.write_all(order).await;
        }
        let (answer, complaint) =
            tokio::join!(read(output, ANSWER_BYTES_MAX), read(errors, COMPLAINT_BYTES_MAX));
        let status = child.wait().await?;
        // Closing it earlier would have ended the child.
        drop(input);
        Ok(Ended { status, answer: answer?, complaint: String::from_utf8_lossy(&complaint?).into_owned() })
    }

    fn spawn(&self) -> io::Result<Child> {
        tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }
}

impl Ended {
    fn cause_of_death(&self) -> Failure {
        let complaint = self.complaint.trim();
        match self.status.signal() {
            Some(libc::SIGXCPU) => Failure::OverTime,
            // Nobody but the system, short of memory, kills it like this; or it wrote more than it may hold.
            Some(libc::SIGKILL | libc::SIGXFSZ) => Failure::OverMemory,
            _ if is_out_of_memory(complaint) => Failure::OverMemory,
            _ => {
                let last = complaint.lines().last().unwrap_or_default();
                let how = format!("{}: {last}", self.status).trim_end_matches([' ', ':']).to_owned();
                Failure::Crashed { how }
            }
        }
    }
}

/// Whether these are the last words of a process that got no memory, or no thread for want of it.
fn is_out_of_memory(complaint: &str) -> bool {
    let words = [
        "memory allocation of",
        "bad_alloc",
        "ailed to allocate memory",
        "annot allocate memory",
        "out of memory",
        "Resource temporarily unavailable",
    ];
    words.iter().any(|words| complaint.contains(words))
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut pipe) = pipe else { return Ok(bytes) };
    (&mut pipe).take(bytes_max).read_to_end(&mut bytes).await?;
    // Whoever has more to say must not wait for a reader.
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory_bytes_max: 1 << 30, cpu_time_ms_max: 60_000 };

    async fn shell(script: &str) -> Result<String, Failure> {
        Command::new("/bin/sh", vec!["-c".into(), script.into()]).run(LIMITS, &"task").await
    }

    #[tokio::test]
    async fn an_answer_is_read_and_a_death_has_its_cause() {
        assert_eq!(shell("read order; echo '\"answer\"'").await.unwrap(), "answer");
        assert!(matches!(shell("kill -XCPU $$").await, Err(Failure::OverTime)));
        for script in [
            "kill -KILL $$",
            "kill -XFSZ $$",
            "echo 'memory allocation of 9 bytes failed' >&2; kill -ABRT $$",
        ] {
            assert!(matches!(shell(script).await, Err(Failure::OverMemory)), "{script}");
        }
        for (script, expected) in [
            ("kill -SEGV $$", "SIGSEGV"),
            ("echo why >&2; exit 3", "why"),
            ("echo '\"answer\"'; exit 1", "1"),
        ] {
            let found = shell(script).await;
            assert!(matches!(&found, Err(Failure::Crashed { how }) if how.contains(expected)), "{found:?}");
        }
        let missing = Command::new("/no/such/program", Vec::new());
        assert!(matches!(missing.run::<String>(LIMITS, &"task").await, Err(Failure::Io(_))));
    }

    /// The clock is paused: it jumps to the next deadline whenever there is nothing to do but wait.
    #[tokio::test(start_paused = true)]
    async fn a_child_that_waits_for_ever_runs_out_of_time() {
        assert!(matches!(shell("exec sleep 600").await, Err(Failure::OverTime)));
    }
}
