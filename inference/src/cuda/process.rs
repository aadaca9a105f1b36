//! Processes of this same program that hold a device: how they are started, what they are told of the environment, and how they end.
//!
//! What both kinds of workers have in common, that of the models of a device (`worker/`) and those of users' kernels (`kernel_graphs/`):
//! messages, which are lengths and JSON ([`send`], [`receive`]), and open files behind them ([`send_files`], [`receive_files`]); tensors, in files in memory that both sides have open ([`Part`]); and pauses between
//! starts ([`Restarts`]).

mod framing;
pub(super) use framing::{receive, send};

mod files;
pub(super) use files::{receive_files, send_files};

mod restarts;
pub(super) use restarts::Restarts;

mod tensors;
pub(super) use tensors::{Home, MEMORY_BYTES_KEPT, Part, read_tensor, write_tensors};

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// This program as it runs, whatever has become of its file since.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// The variables of the environment that the driver and its compiler listen to, besides their own `CUDA_*` and `NVIDIA_*`. A worker gets no others.
const VARIABLES: [&str; 2] = ["LD_LIBRARY_PATH", "WEIR_FAKE_CUDA"];
/// How often somebody who waits for the end of a process looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// How long is waited for the end of a process whose socket has closed, to tell how it ended.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(100);

/// A program that is a worker, and its arguments.
pub(super) type Program = (PathBuf, Vec<OsString>);

/// A process that runs. Killed on drop.
pub(super) struct Process(Option<Child>);

/// What starts a worker: `program`, or this same one with a hidden subcommand. Streams and more of the environment are the caller's to set.
pub(super) fn command(program: Option<&Program>, subcommand: &str) -> Command {
    let (program, arguments) = match program {
        Some((program, arguments)) => (program.clone(), arguments.clone()),
        None => (THIS_PROGRAM.into(), vec![subcommand.into()]),
    };
    let is_told = |name: &OsString| {
        let name = name.to_string_lossy();
        VARIABLES.contains(&&*name) || name.starts_with("CUDA_") || name.starts_with("NVIDIA_")
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(std::env::vars_os().filter(|(name, _)| is_told(name)));
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The first thing that a worker does: leave no image of its memory behind, and gain no rights.
pub(super) fn confine() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// The last thing that a worker does: its node is gone. Not by `exit`: the driver would wait for its kernels then.
pub(super) fn end_at_once() {
    let _ = kill_process(getpid(), Signal::KILL);
}

impl Process {
    /// Start it.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(|child| Self(Some(child)))
    }

    /// How it has ended, after its socket has closed.
    pub(super) fn last_words(&mut self) -> String {
        // The socket closes a little before the process has ended.
        match self.wait(LAST_WORDS_TIME_MAX) {
            Some(status) => status.to_string(),
            None => "it closed its socket".to_owned(),
        }
    }

    /// Have it end. It is waited for later.
    pub(super) fn kill(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
        }
    }

    /// Kill it, and wait until what it held of the device is free again, but no longer than `time_max`: where a kernel does not end, the driver takes a while.
    pub(super) fn end(mut self, time_max: Duration) {
        self.kill();
        let _ = self.wait(time_max);
    }

    fn wait(&mut self, time_max: Duration) -> Option<ExitStatus> {
        let (child, began) = (self.0.as_mut()?, Instant::now());
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
        // The driver may take a while to do away with it. Nobody waits for that; the thread ends with the process.
        let reap = move || _ = child.wait();
        let _ = std::thread::Builder::new().name("weir-reap".to_owned()).stack_size(64 << 10).spawn(reap);
    }
}
