//! Worker process, as seen by the node.

use super::message::{KernelGraphReply, KernelGraphRequest};
use super::serve::WORKER_COMMAND;
use crate::process::command;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use weir_inference::Interrupt;
use weir_worker::{Process, WorkerProgram, receive, send, tensor_memory};

/// Interval at which a caller that waits for an answer checks its interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum time for a worker to receive a message: the worker reads continuously.
const SEND_TIME_MAX: Duration = Duration::from_secs(5);
/// Grace period of a cancelled run before its process is killed. Most runs end within this time.
const GRACE: Duration = Duration::from_millis(100);

/// Disables the driver's compilation cache. All processes of a user share that cache, so it would
/// share compiled code between tenants.
const NO_CACHE: (&str, &str) = ("CUDA_CACHE_DISABLE", "1");

/// Running worker. Killed on drop.
pub(super) struct WorkerProcess {
    process: Process,
    socket: UnixStream,
    /// Shared memory through which both processes exchange tensors.
    pub(super) memory: File,
}

/// Reason for a missing answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum GraphCallError {
    /// The process has ended, or sent an invalid message.
    #[error("its worker has ended: {0}")]
    Ended(#[from] io::Error),
    /// The call exceeded its time limit.
    #[error("it took longer than {0:?}")]
    OverTime(Duration),
    /// The caller cancelled the call.
    #[error("it was cancelled")]
    Interrupted,
}

impl WorkerProcess {
    /// Starts a worker: `program`, or this executable. The tensors of a run may have
    /// `tensor_bytes_max` bytes. The log calls the worker `name`.
    pub(super) fn start(
        program: Option<&WorkerProgram>,
        tensor_bytes_max: u64,
        name: String,
    ) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let memory = tensor_memory(tensor_bytes_max)?;
        let mut command = command(program, WORKER_COMMAND);
        command.env(NO_CACHE.0, NO_CACHE.1).stdin(OwnedFd::from(theirs)).stdout(memory.try_clone()?);
        let process = Process::start(&mut command, name)?;
        socket.set_read_timeout(Some(LOOK_EVERY))?;
        socket.set_write_timeout(Some(SEND_TIME_MAX))?;
        Ok(Self { process, socket, memory })
    }

    /// Sends a request and waits for the answer, at most `time_max`, and at most the grace period
    /// after an interrupt.
    ///
    /// After an error, the process must not be used any more.
    pub(super) fn call(
        &mut self,
        request: &KernelGraphRequest,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<KernelGraphReply, GraphCallError> {
        send(&mut self.socket, request)?;
        let mut patient =
            Patient { socket: &self.socket, began: Instant::now(), time_max, interrupt, unwanted: None };
        let received = receive(&mut patient);
        match (received, patient.end()) {
            (Ok(Some(answer)), _) => Ok(answer),
            (_, Some(why)) => Err(why),
            (Ok(None), None) => Err(GraphCallError::Ended(io::Error::other(self.process.last_words()))),
            (Err(error), None) => Err(GraphCallError::Ended(error)),
        }
    }
}

/// Reader of the socket that enforces the time limit and the interrupt.
struct Patient<'a> {
    socket: &'a UnixStream,
    began: Instant,
    time_max: Duration,
    interrupt: &'a Interrupt,
    /// Time at which the interrupt was noticed.
    unwanted: Option<Instant>,
}

impl Patient<'_> {
    /// Returns the reason to stop waiting, if any.
    fn end(&self) -> Option<GraphCallError> {
        if self.unwanted.is_some_and(|since| since.elapsed() >= GRACE) {
            return Some(GraphCallError::Interrupted);
        }
        (self.began.elapsed() >= self.time_max).then_some(GraphCallError::OverTime(self.time_max))
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(buffer) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                other => return other,
            }
            if self.unwanted.is_none() && self.interrupt.reason().is_some() {
                self.unwanted = Some(Instant::now());
            }
            if self.end().is_some() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}
