//! The node's side of preparing a model: starts the child, waits for it no longer than it should take, and tells what came of it.

use super::message::is_out_of_memory;
use super::protocol::{ANSWER_BYTES_MAX, Answer, Request};
use super::{LibraryError, OnnxRuntimeConfig, PREPARE_COMMAND};
use crate::prepare::{PrepareError, Prepared, Refusal};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// What the child writes to standard error is kept up to here.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;

/// How much longer than its processor time a child may take on a busy machine: this many times, and some.
const CLOCK_FACTOR: u64 = 2;
const CLOCK_MORE_MS: u64 = 10_000;

/// Starts children that prepare models.
pub(super) struct Preparer<'a> {
    config: &'a OnnxRuntimeConfig,
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// What a child left behind.
struct Ended {
    status: ExitStatus,
    answer: Vec<u8>,
    complaint: String,
}

impl<'a> Preparer<'a> {
    pub(super) fn new(config: &'a OnnxRuntimeConfig) -> Result<Self, PrepareError> {
        let (program, arguments) = match &config.prepare_command {
            Some(command) => command.clone(),
            None => {
                let this = std::env::current_exe().map_err(|error| io_error("find this program", error))?;
                (this, vec![PREPARE_COMMAND.into()])
            }
        };
        Ok(Self { config, program, arguments })
    }

    /// Have a child prepare the model in `file`. It is killed when the future drops.
    pub(super) async fn prepare(
        &self,
        library: &Path,
        file: &Path,
        out: &Path,
    ) -> Result<Prepared, PrepareError> {
        let time_ms_max = self.config.prepare_time_ms_max;
        let request = Request {
            library: absolute(library)?,
            model: absolute(file)?,
            out: absolute(out)?,
            memory_bytes_max: self.config.prepare_memory_bytes_max,
            time_ms_max,
        };
        let clock =
            Duration::from_millis(time_ms_max.saturating_mul(CLOCK_FACTOR).saturating_add(CLOCK_MORE_MS));
        let ended = match tokio::time::timeout(clock, self.run(&request)).await {
            Ok(ended) => ended.map_err(|error| io_error("run the process that checks models", error))?,
            // Dropping the run has killed it.
            Err(_) => return Err(Refusal::OverTime { time_ms_max }.into()),
        };
        self.judge(&ended)
    }

    async fn run(&self, request: &Request) -> io::Result<Ended> {
        let mut child = self.spawn()?;
        let (mut input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        if let Some(input) = &mut input {
            // A child that is gone already has its reason in its status.
            let _ = input.write_all(&line).await;
        }
        let (answer, complaint) =
            tokio::join!(read(output, ANSWER_BYTES_MAX), read(errors, COMPLAINT_BYTES_MAX));
        let status = child.wait().await?;
        // Closing it earlier would have ended the child.
        drop(input);
        Ok(Ended { status, answer: answer?, complaint: String::from_utf8_lossy(&complaint?).into_owned() })
    }

    fn spawn(&self) -> io::Result<Child> {
        let pipe = Stdio::piped;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .stdin(pipe())
            .stdout(pipe())
            .stderr(pipe())
            .kill_on_drop(true);
        command.current_dir("/").spawn()
    }

    fn judge(&self, ended: &Ended) -> Result<Prepared, PrepareError> {
        let answer = serde_json::from_slice::<Answer>(&ended.answer);
        match (ended.status.success(), answer) {
            (true, Ok(Answer::Prepared(prepared))) => Ok(prepared),
            (true, Ok(Answer::Refused(refusal))) => Err(refusal.into()),
            (true, Ok(Answer::Library { path, why })) => {
                Err(Arc::new(LibraryError::Unusable { path, why }).into())
            }
            (true, Ok(Answer::Failed { action, why })) => Err(io_error(&action, io::Error::other(why))),
            _ => Err(self.cause_of_death(ended).into()),
        }
    }

    fn cause_of_death(&self, ended: &Ended) -> Refusal {
        let complaint = ended.complaint.trim();
        let out_of_memory = is_out_of_memory(complaint) || complaint.contains("memory allocation of");
        match ended.status.signal() {
            Some(libc::SIGXCPU) => Refusal::OverTime { time_ms_max: self.config.prepare_time_ms_max },
            // Nobody but the system, short of memory, kills it like this; or it wrote more than it may hold.
            Some(libc::SIGKILL | libc::SIGXFSZ) => {
                Refusal::OverMemory { bytes_max: self.config.prepare_memory_bytes_max }
            }
            _ if out_of_memory => Refusal::OverMemory { bytes_max: self.config.prepare_memory_bytes_max },
            _ => {
                let last = complaint.lines().last().unwrap_or_default();
                Refusal::Crashed {
                    how: format!("{}: {last}", ended.status).trim_end_matches([' ', ':']).to_owned(),
                }
            }
        }
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut pipe) = pipe else { return Ok(bytes) };
    (&mut pipe).take(bytes_max).read_to_end(&mut bytes).await?;
    // Whoever has more to say must not wait for a reader.
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(bytes)
}

fn absolute(path: &Path) -> Result<PathBuf, PrepareError> {
    std::path::absolute(path).map_err(|error| PrepareError::io("find", path, error))
}

fn io_error(action: &str, source: io::Error) -> PrepareError {
    PrepareError::Io { action: action.to_owned(), source: Arc::new(source) }
}
