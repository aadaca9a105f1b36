//! Resource limits of a child process.

use rustix::process::{Resource, Rlimit, nice, setrlimit};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Largest number of open files.
const OPEN_FILES_MAX: u64 = 64;

/// Wall-clock limit on a busy machine: this multiple of the CPU time limit plus [`CLOCK_MORE_MS`].
const CLOCK_FACTOR: u64 = 4;
const CLOCK_MORE_MS: u64 = 10_000;

/// Resource limits of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space, and size of any file that the child writes.
    pub memory_bytes_max: u64,
    /// CPU time of all threads. The wall-clock limit is twice that plus 10 s.
    pub cpu_ms_max: u64,
}

impl Limits {
    /// Wall-clock limit.
    pub(crate) fn clock(&self) -> Duration {
        let Self { cpu_ms_max, .. } = self;
        Duration::from_millis(cpu_ms_max.saturating_mul(CLOCK_FACTOR).saturating_add(CLOCK_MORE_MS))
    }

    /// Applies the limits to the current process.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let exactly = |limit: u64| Rlimit { current: Some(limit), maximum: Some(limit) };
        let seconds = self.cpu_ms_max.div_ceil(1_000).max(1);
        setrlimit(Resource::Nofile, exactly(OPEN_FILES_MAX))?;
        setrlimit(Resource::As, exactly(self.memory_bytes_max))?;
        // A small upload can expand into a large file.
        setrlimit(Resource::Fsize, exactly(self.memory_bytes_max))?;
        // The soft limit sends SIGXCPU, which names the reason. The hard limit, one second later,
        // kills a process that blocks SIGXCPU.
        let processor = Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(1)) };
        setrlimit(Resource::Cpu, processor)?;
        // A lower priority than the node, so that requests run first.
        nice(10)?;
        Ok(())
    }
}
