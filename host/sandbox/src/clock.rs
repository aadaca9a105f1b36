//! The CPU clock of threads.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The CPU time of the current thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel counts up from zero: neither part is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
