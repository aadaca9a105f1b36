//! Confinement of a process, in addition to its resource limits: restricts what hostile code in the
//! process can reach.
//!
//! The layers are independent, and each is applied where the system provides it:
//!
//! - `process`: no new privileges, no core dumps, no access by other processes of the same user, and
//!   no inherited files except the standard streams.
//! - `namespaces`: a user namespace without privileges, and a network namespace without interfaces.
//! - `files`: Landlock refuses every file that was not given, and all TCP.
//! - `system calls`: seccomp allows the calls that computing takes, and no others: no new processes,
//!   sockets or mounts, and no reading of other processes.
#![allow(unsafe_code, reason = "namespaces and inherited files are closed by system calls")]

mod filter;
mod modes;
pub use modes::keep_file_modes;
mod probe;
pub use probe::{PROBE_COMMAND, missing_layers, probe_main};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Newest Landlock rights that are handled. Kernels with fewer rights enforce those that they know.
const LANDLOCK: ABI = ABI::V6;
/// Oldest Landlock rights that count as confinement: all rights over files.
const LANDLOCK_MIN: ABI = ABI::V1;
/// Files that the C and C++ libraries and ONNX Runtime read about the machine.
const MACHINE: [&str; 4] = ["/proc/cpuinfo", "/sys/devices/system/cpu", "/usr/lib/locale", "/dev/urandom"];

/// Files that a confined process may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Files and folders for reading.
    pub readable: Vec<PathBuf>,
    /// Folders for reading and writing.
    pub writable: Vec<PathBuf>,
}

/// A layer of confinement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Settings of the process.
    Process,
    /// User and network namespaces.
    Namespaces,
    /// Landlock.
    Files,
    /// Seccomp.
    SystemCalls,
}

/// A layer that the system does not provide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Namespaces => "namespaces",
            Self::Files => "files (Landlock)",
            Self::SystemCalls => "system calls (seccomp)",
        })
    }
}

impl fmt::Display for MissingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.layer, self.why)
    }
}

/// Part of the confinement that comes before libraries are loaded. Returns the layers that are
/// missing. The process must have one thread.
#[must_use]
pub fn confine_process() -> Vec<MissingLayer> {
    missing([(Layer::Process, text(process())), (Layer::Namespaces, text(namespaces()))])
}

/// Rest of the confinement, for this thread and the threads that it starts. Returns the layers that
/// are missing.
#[must_use]
pub fn confine_access(confinement: &Confinement) -> Vec<MissingLayer> {
    missing([(Layer::Files, files(confinement)), (Layer::SystemCalls, filter::apply())])
}

fn missing(applied: [(Layer, Result<(), String>); 2]) -> Vec<MissingLayer> {
    let missing = applied.into_iter().filter_map(|(layer, applied)| Some((layer, applied.err()?)));
    missing.map(|(layer, why)| MissingLayer { layer, why }).collect()
}

fn text(applied: rustix::io::Result<()>) -> Result<(), String> {
    applied.map_err(|error| error.to_string())
}

fn process() -> rustix::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::thread::set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // SAFETY: only descriptors that this process has not opened itself are closed: it has just
    // started.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::NOSYS)),
    }
}

fn namespaces() -> rustix::io::Result<()> {
    let all = UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    // SAFETY: the process has one thread, and shares no descriptor table or file system state that
    // the flags would change.
    unsafe { rustix::thread::unshare_unsafe(all) }
}

fn files(confinement: &Confinement) -> Result<(), String> {
    let Confinement { readable, writable } = confinement;
    let machine = MACHINE.map(PathBuf::from);
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let writing = AccessFs::from_all(LANDLOCK)
        & !(AccessFs::Execute
            | AccessFs::MakeChar
            | AccessFs::MakeBlock
            | AccessFs::MakeSock
            | AccessFs::MakeFifo
            | AccessFs::IoctlDev);
    let apply = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(LANDLOCK_MIN))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?
            .add_rules(path_beneath_rules(machine.iter().chain(readable), reading))?
            .add_rules(path_beneath_rules(writable, writing))?
            .restrict_self()
    };
    match apply() {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err("the kernel does not enforce it".to_owned())
        }
        Ok(_) => Ok(()),
        Err::<_, landlock::RulesetError>(error) => Err(error.to_string()),
    }
}
