//! The node's threads.

use crate::config::NodeConfig;
use anyhow::Context;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use weir_gateway::Threads;

/// The time limit for guests to unwind after their requests were dropped.
const GUEST_SHUTDOWN: Duration = Duration::from_secs(1);

/// The thread pools. Gateway I/O has separate threads, so that health checks respond while every
/// guest thread is busy.
pub(super) struct Runtimes {
    pub(super) connections: Threads,
    /// Shared threads: for the node's connection while it is the only one, for requests on
    /// multiplexed connections, and for the node's internal tasks.
    pub(super) gateway: Runtime,
    pub(super) guests: Runtime,
}

impl Runtimes {
    pub(super) fn start(config: &NodeConfig) -> anyhow::Result<Self> {
        let runtime = |name: &str, threads: usize| {
            let runtime = Builder::new_multi_thread()
                .thread_name(name)
                .worker_threads(threads.max(1))
                .enable_all()
                .build();
            runtime.with_context(|| format!("cannot start the {name} threads"))
        };
        Ok(Self {
            connections: Threads::start(config.gateway.threads, GUEST_SHUTDOWN)?,
            gateway: runtime("weir-gateway", config.gateway.threads)?,
            guests: runtime("weir-guest", config.sandbox.threads)?,
        })
    }

    /// Stops all threads. Runs on a separate thread, since a runtime must not wait for its tasks on
    /// another runtime's worker.
    pub(super) fn stop(self) {
        let stop = move || {
            self.guests.shutdown_timeout(GUEST_SHUTDOWN);
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
