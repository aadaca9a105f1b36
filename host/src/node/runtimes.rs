//! The node's threads.

use crate::config::NodeConfig;
use crate::gateway::Threads;
use anyhow::Context;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long guests may take to unwind once their requests are gone.
const GUEST_SHUTDOWN: Duration = Duration::from_secs(1);

/// Gateway I/O has threads of its own, so that health answers while every guest thread is busy.
pub(super) struct Runtimes {
    pub(super) connections: Threads,
    /// What shares threads: a connection that is the only one, requests of connections that have many at once, and the node's own work.
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
            connections: Threads::start(config.gateway_threads, GUEST_SHUTDOWN)?,
            gateway: runtime("weir-gateway", config.gateway_threads)?,
            guests: runtime("weir-guest", config.guest_threads)?,
        })
    }

    /// From a thread of its own, since a runtime must not wait for its tasks on another runtime's worker.
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
