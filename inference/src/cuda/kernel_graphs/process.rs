//! The process of a worker, as the node holds it.

use super::message::{Answer, Request};
use super::serve::WORKER_COMMAND;
use crate::cuda::process::{Process, Program, command, receive, send};
use crate::interrupt::Interrupt;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How often somebody who waits for an answer looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a worker may take to take in a message: it reads all the time.
const SEND_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a run that nobody wants any more may take to end before the process is killed: most end by themselves.
const GRACE: Duration = Duration::from_millis(100);

/// The driver keeps what it compiles, for all of a user's processes: of no tenant for another.
const NO_CACHE: (&str, &str) = ("CUDA_CACHE_DISABLE", "1");

/// A worker that runs. Killed on drop.
pub(super) struct WorkerProcess {
    process: Process,
    socket: UnixStream,
    /// What both write tensors to, and read them from.
    pub(super) memory: File,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The process has ended, or makes no sense any more.
    #[error("its worker has ended: {0}")]
    Ended(#[from] io::Error),
    /// It took too long.
    #[error("it took longer than {0:?}")]
    OverTime(Duration),
    /// Nobody wants the answer any more.
    #[error("it was cancelled")]
    Interrupted,
}

impl WorkerProcess {
    /// Start one: this same program, or the one that is named.
    pub(super) fn start(program: Option<&Program>) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let memory = File::from(memfd_create("weir-kernel-graphs", MemfdFlags::CLOEXEC)?);
        let mut command = command(program, WORKER_COMMAND);
        command.env(NO_CACHE.0, NO_CACHE.1).stdin(OwnedFd::from(theirs)).stdout(memory.try_clone()?);
        let process = Process::start(&mut command)?;
        socket.set_read_timeout(Some(LOOK_EVERY))?;
        socket.set_write_timeout(Some(SEND_TIME_MAX))?;
        Ok(Self { process, socket, memory })
    }

    /// Ask for something and wait for the answer: no longer than `time_max`, and not much longer than it is wanted. After an error, the process is of no
    /// use any more.
    pub(super) fn call(
        &mut self,
        request: &Request,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<Answer, CallError> {
        send(&mut self.socket, request)?;
        let mut patient =
            Patient { socket: &self.socket, began: Instant::now(), time_max, interrupt, unwanted: None };
        let received = receive(&mut patient);
        match (received, patient.end()) {
            (Ok(Some(answer)), _) => Ok(answer),
            (_, Some(why)) => Err(why),
            (Ok(None), None) => Err(CallError::Ended(io::Error::other(self.process.last_words()))),
            (Err(error), None) => Err(CallError::Ended(error)),
        }
    }
}

/// Reads from the socket, and gives up in time.
struct Patient<'a> {
    socket: &'a UnixStream,
    began: Instant,
    time_max: Duration,
    interrupt: &'a Interrupt,
    /// Since when nobody wants the answer.
    unwanted: Option<Instant>,
}

impl Patient<'_> {
    /// Why there is nothing more to wait for, if so.
    fn end(&self) -> Option<CallError> {
        if self.unwanted.is_some_and(|since| since.elapsed() >= GRACE) {
            return Some(CallError::Interrupted);
        }
        (self.began.elapsed() >= self.time_max).then_some(CallError::OverTime(self.time_max))
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
