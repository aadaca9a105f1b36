//! What a child may use.

use rustix::process::{Resource, Rlimit, nice, setrlimit};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Files that a child may have open at once.
const OPEN_FILES_MAX: u64 = 64;

/// How much longer than its processor time a child may take on a busy machine: this many times, and some.
const CLOCK_FACTOR: u64 = 2;
const CLOCK_MORE_MS: u64 = 10_000;

/// What a child may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space, and the size of any file it writes.
    pub memory_bytes_max: u64,
    /// Processor time of all its threads. It is given twice that, and 10 s, on the clock.
    pub cpu_time_ms_max: u64,
}

impl Limits {
    /// How long the child may take on the clock.
    pub(crate) fn clock(&self) -> Duration {
        let Self { cpu_time_ms_max, .. } = self;
        Duration::from_millis(cpu_time_ms_max.saturating_mul(CLOCK_FACTOR).saturating_add(CLOCK_MORE_MS))
    }

    /// Have this process take no more than that, whatever happens.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let exactly = |limit: u64| Rlimit { current: Some(limit), maximum: Some(limit) };
        let seconds = self.cpu_time_ms_max.div_ceil(1_000).max(1);
        setrlimit(Resource::Core, exactly(0))?;
        setrlimit(Resource::Nofile, exactly(OPEN_FILES_MAX))?;
        setrlimit(Resource::As, exactly(self.memory_bytes_max))?;
        // A small upload can unfold into a large file.
        setrlimit(Resource::Fsize, exactly(self.memory_bytes_max))?;
        // The first kills with a signal that says why; the second, a second later, is for whoever blocks that.
        let processor = Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(1)) };
        setrlimit(Resource::Cpu, processor)?;
        // Requests go first.
        nice(10)?;
        Ok(())
    }
}
