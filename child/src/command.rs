//! Parent side: starts the child process, waits with a timeout and maps its exit to a result.

use crate::Limits;
use crate::serve::ChildTask;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

/// Path of the running program. The path stays valid if an upgrade replaces the file.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Largest answer that the parent reads.
const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// Largest part of the child's standard error that the parent keeps.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;

/// A program that [serves](crate::serve) one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildCommand {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChildFailure {
    /// The child exceeded its time limit.
    #[error("it took too long")]
    OverTime,
    /// The child exceeded its memory limit.
    #[error("it needed too much memory")]
    OverMemory,
    /// The child failed in another way.
    #[error("it crashed: {how}")]
    Crashed {
        /// Description of the failure.
        how: String,
    },
    /// The child could not be run; the fault is in the node.
    #[error("it cannot be run: {0}")]
    Io(#[from] io::Error),
}

/// Exit status and output of a finished child.
struct ChildExit {
    status: ExitStatus,
    answer: Vec<u8>,
    complaint: String,
}

impl ChildCommand {
    /// The running program, started with `subcommand`.
    #[must_use]
    pub fn this_program(subcommand: &str) -> Self {
        Self::new(THIS_PROGRAM, vec![subcommand.into()])
    }

    /// Another program.
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<OsString>) -> Self {
        Self { program: program.into(), arguments }
    }

    /// Runs `task` in a child process. Dropping the future kills the child.
    pub async fn run<Answer: DeserializeOwned>(
        &self,
        limits: Limits,
        task: &impl Serialize,
    ) -> Result<Answer, ChildFailure> {
        let mut order = serde_json::to_vec(&ChildTask { limits, task }).map_err(io::Error::other)?;
        order.push(b'\n');
        let ended = tokio::time::timeout(limits.clock(), self.run_to_end(&order)).await;
        // On a timeout, dropping the future has killed the child.
        let ended = ended.map_err(|_| ChildFailure::OverTime)??;
        match serde_json::from_slice(&ended.answer) {
            Ok(answer) if ended.status.success() => Ok(answer),
            _ => Err(ended.cause_of_death()),
        }
    }

    async fn run_to_end(&self, order: &[u8]) -> io::Result<ChildExit> {
        let mut child = self.spawn()?;
        let mut input = child.stdin.take();
        let output = child.stdout.take();
        let errors = child.stderr.take();
        if let Some(input) = &mut input {
            // A write error means that the child has exited; its status has the reason.
            let _ = input.write_all(order).await;
        }
        let (answer, complaint) =
            tokio::join!(read(output, ANSWER_BYTES_MAX), read(errors, COMPLAINT_BYTES_MAX));
        let status = child.wait().await?;
        // Closing the child's input earlier would end the child.
        drop(input);
        Ok(ChildExit {
            status,
            answer: answer?,
            complaint: String::from_utf8_lossy(&complaint?).into_owned(),
        })
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

impl ChildExit {
    fn cause_of_death(&self) -> ChildFailure {
        let complaint = self.complaint.trim();
        match self.status.signal() {
            Some(libc::SIGXCPU) => ChildFailure::OverTime,
            // SIGKILL comes from the kernel's out-of-memory killer, SIGXFSZ from a write above the
            // file size limit.
            Some(libc::SIGKILL | libc::SIGXFSZ) => ChildFailure::OverMemory,
            _ if is_out_of_memory(complaint) => ChildFailure::OverMemory,
            _ => {
                let last = complaint.lines().last().unwrap_or_default();
                let how = format!("{}: {last}", self.status).trim_end_matches([' ', ':']).to_owned();
                ChildFailure::Crashed { how }
            }
        }
    }
}

/// Whether the child's standard error reports that memory, or a thread for lack of memory, could
/// not be allocated.
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
    // Drains the rest, so that a child with more output does not block on the pipe.
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory_bytes_max: 1 << 30, cpu_ms_max: 60_000 };

    async fn shell(script: &str) -> Result<String, ChildFailure> {
        ChildCommand::new("/bin/sh", vec!["-c".into(), script.into()]).run(LIMITS, &"task").await
    }

    #[tokio::test]
    async fn child_answer_is_read_and_failure_has_its_cause() {
        assert_eq!(shell("read order; echo '\"answer\"'").await.unwrap(), "answer");
        assert!(matches!(shell("kill -XCPU $$").await, Err(ChildFailure::OverTime)));
        for script in [
            "kill -KILL $$",
            "kill -XFSZ $$",
            "echo 'memory allocation of 9 bytes failed' >&2; kill -ABRT $$",
        ] {
            assert!(matches!(shell(script).await, Err(ChildFailure::OverMemory)), "{script}");
        }
        for (script, expected) in [
            ("kill -SEGV $$", "SIGSEGV"),
            ("echo why >&2; exit 3", "why"),
            ("echo '\"answer\"'; exit 1", "1"),
        ] {
            let found = shell(script).await;
            assert!(
                matches!(&found, Err(ChildFailure::Crashed { how }) if how.contains(expected)),
                "{found:?}"
            );
        }
        let missing = ChildCommand::new("/no/such/program", Vec::new());
        assert!(matches!(missing.run::<String>(LIMITS, &"task").await, Err(ChildFailure::Io(_))));
    }

    /// With a paused clock, tokio advances time to the next deadline whenever all tasks are idle.
    #[tokio::test(start_paused = true)]
    async fn blocked_child_is_killed_at_the_wall_clock_limit() {
        assert!(matches!(shell("exec sleep 600").await, Err(ChildFailure::OverTime)));
    }
}
