//! Start of the processes that use the driver, and their confinement.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::ffi::OsString;
use std::io;
use std::process::Command;
use weir_worker::WorkerProgram;

/// Environment variables that the driver and its compiler read, in addition to `CUDA_*` and
/// `NVIDIA_*`. Workers inherit no other variables.
const VARIABLES: [&str; 2] = ["LD_LIBRARY_PATH", "WEIR_FAKE_CUDA"];

/// Returns the command that starts a worker of a device, with the driver's environment variables.
pub(crate) fn command(program: Option<&WorkerProgram>, subcommand: &str) -> Command {
    let is_for_driver = |name: &OsString| {
        let name = name.to_string_lossy();
        VARIABLES.contains(&&*name) || name.starts_with("CUDA_") || name.starts_with("NVIDIA_")
    };
    let mut command = weir_worker::command(program, subcommand);
    command.envs(std::env::vars_os().filter(|(name, _)| is_for_driver(name)));
    command
}

/// Disables core dumps and new privileges, and changes of file modes: the mode of the arena's file
/// is the reason that a worker cannot write there. A worker calls this first.
pub(crate) fn confine() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::thread::set_no_new_privs(true)?;
    if let Err(why) = weir_child::keep_file_modes() {
        eprintln!("a worker of a device can change modes of files: {why}");
    }
    Ok(())
}
