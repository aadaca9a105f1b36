//! The node's threads.

use crate::config::NodeConfig;
use anyhow::Context;
use rustix::process::{getpriority_process, setpriority_process};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use weir_dispatch::GuestThreads;
use weir_gateway::Threads;

/// The time limit for guests to unwind after their requests were dropped.
const GUEST_SHUTDOWN: Duration = Duration::from_secs(1);

/// The niceness of the threads of long guests. The scheduler of Linux gives such a thread a third of
/// the time of a thread that competes with it, so that long guests still meet their deadlines.
const LONG_GUEST_NICENESS: i32 = 5;
const NICENESS_MAX: i32 = 19;

/// The thread pools. Gateway I/O has separate threads, so that health checks respond while every
/// guest thread is busy.
pub(super) struct Runtimes {
    pub(super) connections: Threads,
    /// Shared threads: for the node's connection while it is the only one, for requests on
    /// multiplexed connections, and for the node's internal tasks.
    pub(super) gateway: Runtime,
    /// Guests in their first milliseconds of CPU time.
    guests: Runtime,
    /// All other guests, at a lower priority.
    long_guests: Runtime,
}

impl Runtimes {
    pub(super) fn start(config: &NodeConfig) -> anyhow::Result<Self> {
        let process = getpriority_process(None).context("cannot read the priority of the process")?;
        let runtime = |name: &'static str, threads: usize, niceness: i32| {
            let runtime = Builder::new_multi_thread()
                .thread_name(name)
                .worker_threads(threads.max(1))
                .on_thread_start(move || lower_priority(name, process, niceness))
                .enable_all()
                .build();
            runtime.with_context(|| format!("cannot start the {name} threads"))
        };
        Ok(Self {
            connections: Threads::start(config.gateway.threads, GUEST_SHUTDOWN)?,
            gateway: runtime("weir-gateway", config.gateway.threads, 0)?,
            guests: runtime("weir-guest", config.sandbox.threads, 0)?,
            long_guests: runtime("weir-long-guest", config.sandbox.threads, LONG_GUEST_NICENESS)?,
        })
    }

    pub(super) fn guest_threads(&self) -> GuestThreads {
        GuestThreads::new(self.guests.handle().clone(), self.long_guests.handle().clone())
    }

    /// Stops all threads. Runs on a separate thread, since a runtime must not wait for its tasks on
    /// another runtime's worker.
    pub(super) fn stop(self) {
        let stop = move || {
            self.guests.shutdown_timeout(GUEST_SHUTDOWN);
            self.long_guests.shutdown_timeout(GUEST_SHUTDOWN);
            self.connections.stop();
            self.gateway.shutdown_timeout(GUEST_SHUTDOWN);
        };
        match std::thread::Builder::new().name("weir-stop".to_owned()).spawn(stop) {
            Ok(thread) => {
                if thread.join().is_err() {
                    tracing::error!("stopping the node's threads failed");
                }
            }
            Err(error) => tracing::error!(%error, "cannot stop the node's threads"),
        }
    }
}

/// Adds `niceness` to that of the process, for the calling thread: on Linux, each thread has its
/// own, which the threads that it starts inherit.
fn lower_priority(name: &str, process: i32, niceness: i32) {
    if niceness > 0
        && let Err(error) = setpriority_process(None, (process + niceness).min(NICENESS_MAX))
    {
        tracing::warn!(%error, "cannot lower the priority of a {name} thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_guests_have_a_lower_priority() {
        let runtimes = Runtimes::start(&NodeConfig::default()).unwrap();
        let niceness = |handle: &tokio::runtime::Handle| {
            let task = handle.spawn(async { getpriority_process(None).unwrap() });
            runtimes.gateway.block_on(task).unwrap()
        };
        let process = getpriority_process(None).unwrap();
        assert_eq!(niceness(runtimes.gateway.handle()), process);
        assert_eq!(niceness(runtimes.guests.handle()), process);
        assert_eq!(
            niceness(runtimes.long_guests.handle()),
            (process + LONG_GUEST_NICENESS).min(NICENESS_MAX)
        );
        // A thread for blocking work inherits the priority only once.
        let blocking = runtimes.long_guests.spawn_blocking(|| getpriority_process(None).unwrap());
        let blocking = runtimes.gateway.block_on(blocking).unwrap();
        assert_eq!(blocking, (process + LONG_GUEST_NICENESS).min(NICENESS_MAX));
        runtimes.stop();
    }
}
