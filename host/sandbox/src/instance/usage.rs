//! The resources that an invocation has used so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Updated by the running sandbox and read when the account is closed: a guest can be dropped at
/// any point, and its usage still counts.
#[derive(Debug, Default)]
pub struct SandboxUsage {
    guest_cpu_time_ns: AtomicU64,
    /// The CPU time of work that the node did for the guest.
    host_cpu_time_ns: AtomicU64,
    /// Zero until the sandbox is created.
    instantiate_time_ns: AtomicU64,
    memory_bytes: AtomicU64,
}

impl SandboxUsage {
    /// The CPU time of the threads that polled the guest, and of the threads that decoded images for
    /// it.
    pub fn cpu_time(&self) -> Duration {
        let guest = self.guest_cpu_time_ns.load(Ordering::Relaxed);
        Duration::from_nanos(guest.saturating_add(self.host_cpu_time_ns.load(Ordering::Relaxed)))
    }

    /// The time to create the sandbox, if it was created.
    pub fn instantiate_time(&self) -> Option<Duration> {
        let time_ns = self.instantiate_time_ns.load(Ordering::Relaxed);
        (time_ns > 0).then(|| Duration::from_nanos(time_ns))
    }

    /// The size of all linear memories in bytes, as of the last update. Memories only grow.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_cpu_time(&self, time: Duration) {
        self.guest_cpu_time_ns.store(nanoseconds(time), Ordering::Relaxed);
    }

    /// Adds the CPU time of work that the node did for the guest.
    pub(crate) fn charge(&self, time: Duration) {
        self.host_cpu_time_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    pub(super) fn set_instantiate_time(&self, time: Duration) {
        self.instantiate_time_ns.store(nanoseconds(time).max(1), Ordering::Relaxed);
    }

    pub(super) fn set_memory_bytes(&self, bytes: usize) {
        self.memory_bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
