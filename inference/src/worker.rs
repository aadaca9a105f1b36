//! Worker processes: how they start, the connections between a node and a worker, and how workers
//! end.
//!
//! The workers of GPUs (`cuda/worker/`), the workers of kernel graphs (`cuda/kernel_graphs/`) and
//! the workers of models on the CPU (`cpu/worker/`) share this module:
//!
//! - [`Process`] is a running worker, which is killed on drop.
//! - [`send`] and [`receive`] exchange length-prefixed JSON messages; [`send_files`] and
//!   [`receive_files`] pass open files after a message.
//! - [`Control`] is the socket that the main thread of a worker reads: new connections and
//!   cancellations. The worker ends when it closes.
//! - [`Connection`] carries one request at a time, and [`Lines`] is a pool of connections.
//! - [`Part`] describes a tensor in a memory file that both processes have open.
//! - [`Failure`] is an [`InferenceError`](crate::InferenceError) in a message.
//! - [`Restarts`] limits the rate of restarts.

mod framing;
pub(crate) use framing::{receive, send};

mod files;
#[cfg(feature = "cuda")]
pub(crate) use files::receive_files;
pub(crate) use files::send_files;

mod restarts;
pub(crate) use restarts::Restarts;

mod tensors;
#[cfg(feature = "cuda")]
pub(crate) use tensors::Home;
pub(crate) use tensors::{MEMORY_BYTES_KEPT, Part, read_tensor, write_tensors};

mod control;
pub(crate) use control::{Control, Files, News, next, wait_for_end};

mod connection;
pub(crate) use connection::{CallError, InPlace};

mod lines;
pub(crate) use lines::{Lent, Lines};

mod runs;
pub(crate) use runs::Runs;

mod failure;
pub(crate) use failure::Failure;

use rustix::process::{Signal, getpid, kill_process};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// This executable, even if its file has been replaced or deleted.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Interval at which a caller polls for the end of a process.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Maximum time to wait for the exit status of a process whose socket has closed.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(100);

/// Worker program and its arguments.
pub(crate) type Program = (PathBuf, Vec<OsString>);

/// Running process. Killed on drop.
pub(crate) struct Process(Option<Child>);

/// Returns the command that starts a worker: `program`, or this executable with a hidden
/// subcommand. The worker inherits no environment variables. The caller sets its streams.
pub(crate) fn command(program: Option<&Program>, subcommand: &str) -> Command {
    let (program, arguments) = match program {
        Some((program, arguments)) => (program.clone(), arguments.clone()),
        None => (THIS_PROGRAM.into(), vec![subcommand.into()]),
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Ends a worker whose node is gone. SIGKILL is required, because `exit` makes the driver wait for
/// its kernels.
pub(crate) fn end_at_once() {
    let _ = kill_process(getpid(), Signal::KILL);
}

impl Process {
    /// Starts the process.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(|child| Self(Some(child)))
    }

    /// Describes how the process ended, after its socket has closed.
    pub(crate) fn last_words(&mut self) -> String {
        // The socket closes shortly before the process ends.
        match self.wait(LAST_WORDS_TIME_MAX) {
            Some(status) => status.to_string(),
            None => "it closed its socket".to_owned(),
        }
    }

    /// Kills the process without waiting for its end.
    pub(crate) fn kill(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
        }
    }

    /// Kills the process, and waits until its device memory is free, but at most `time_max`. The
    /// driver needs longer if a kernel does not end.
    #[cfg(feature = "cuda")]
    pub(crate) fn end(mut self, time_max: Duration) {
        self.kill();
        let _ = self.wait(time_max);
    }

    fn wait(&mut self, time_max: Duration) -> Option<ExitStatus> {
        let child = self.0.as_mut()?;
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(None) if began.elapsed() < time_max => std::thread::sleep(LOOK_EVERY),
                ended => return ended.ok().flatten(),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let _ = child.kill();
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        // The driver can take a while to clean up the process. A detached thread reaps the process,
        // so that the caller does not wait.
        let reap = move || _ = child.wait();
        let _ = std::thread::Builder::new().name("weir-reap".to_owned()).stack_size(64 << 10).spawn(reap);
    }
}
