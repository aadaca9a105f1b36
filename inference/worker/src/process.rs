//! Start and end of a worker process.

use crate::output;
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
pub type WorkerProgram = (PathBuf, Vec<OsString>);

/// Running process. Killed on drop.
pub struct Process(Option<Child>);

/// Returns the command that starts a worker: `program`, or this executable with a hidden
/// subcommand. The worker inherits no environment variables. The caller sets its
/// standard input and output.
#[must_use]
pub fn command(program: Option<&WorkerProgram>, subcommand: &str) -> Command {
    let (program, arguments) = match program {
        Some((program, arguments)) => (program.clone(), arguments.clone()),
        None => (THIS_PROGRAM.into(), vec![subcommand.into()]),
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Ends a worker whose node has ended. SIGKILL is required, because `exit` makes the driver wait
/// for its kernels.
pub fn end_at_once() {
    let _ = kill_process(getpid(), Signal::KILL);
}

impl Process {
    /// Starts the process. Lines that it writes to standard error are logged, within bounds, under
    /// the name `worker`.
    pub fn start(command: &mut Command, worker: String) -> io::Result<Self> {
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let errors = child.stderr.take();
        // From here on, the process ends with `started`.
        let started = Self(Some(child));
        if let Some(errors) = errors {
            output::start(worker, errors)?;
        }
        Ok(started)
    }

    /// Describes how the process ended, after its socket has closed.
    pub fn last_words(&mut self) -> String {
        // The socket closes shortly before the process ends.
        match self.wait(LAST_WORDS_TIME_MAX) {
            Some(status) => status.to_string(),
            None => "it closed its socket".to_owned(),
        }
    }

    /// Kills the process without waiting for its end.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
        }
    }

    /// Kills the process, and waits until its device memory is free, but at most `time_max`. The
    /// driver needs longer if a kernel does not end.
    pub fn end(mut self, time_max: Duration) {
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
