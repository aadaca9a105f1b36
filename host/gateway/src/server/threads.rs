//! Threads for connections: each connection stays on one thread.
//!
//! The thread of a connection also reads, answers and writes its requests, so that no work moves
//! between threads. Threads that share work, like those of tokio's runtime, wake each other for
//! each event that one of them finds, and move a connection's memory from core to core.
//!
//! A single connection runs on threads that share work. On an idle node, a thread that is woken for
//! nothing keeps a core awake, and a response is sent sooner to a client that is not in a deep
//! sleep state.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;

/// Maximum number of blocking threads per connection thread.
const BLOCKING_THREADS_MAX: usize = 128;

/// Connection threads, which run until they are stopped or dropped.
pub struct Threads {
    places: Vec<ConnectionRuntime>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

/// Runtimes that can serve connections.
pub(super) struct ConnectionRuntimes {
    threads: Vec<ConnectionRuntime>,
    shared: ConnectionRuntime,
}

/// Runtime of one thread, or of threads that share work, with the number of its connections.
#[derive(Clone)]
pub(super) struct ConnectionRuntime {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// Connection counted on a runtime until dropped.
pub(super) struct RuntimeGuard(Arc<AtomicUsize>);

impl Threads {
    /// Starts `count` threads. Each ends within `shutdown` after a stop.
    pub fn start(count: usize, shutdown: Duration) -> anyhow::Result<Self> {
        let mut started = Self { places: Vec::new(), threads: Vec::new(), stop: CancellationToken::new() };
        for _ in 0..count.max(1) {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .thread_name("weir-gateway")
                .build()
                .context("cannot start a thread for connections")?;
            let place = ConnectionRuntime { runtime: runtime.handle().clone(), connections: Arc::default() };
            let stop = started.stop.clone();
            let thread = std::thread::Builder::new().name("weir-gateway".to_owned());
            let thread = thread.spawn(move || run(runtime, &stop, shutdown));
            started.threads.push(thread.context("cannot start a thread for connections")?);
            started.places.push(place);
        }
        Ok(started)
    }

    /// Returns the runtimes for a server's connections: these threads, and `shared` threads that
    /// share work.
    pub(super) fn places(&self, shared: Handle) -> ConnectionRuntimes {
        let shared = ConnectionRuntime { runtime: shared, connections: Arc::default() };
        ConnectionRuntimes { threads: self.places.clone(), shared }
    }

    /// Stops the connections and the threads. Blocks.
    pub fn stop(mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread for connections panicked");
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn run(runtime: Runtime, stop: &CancellationToken, shutdown: Duration) {
    runtime.block_on(stop.cancelled());
    runtime.shutdown_timeout(shutdown);
}

impl ConnectionRuntimes {
    /// Selects the runtime of the next connection: the thread with the fewest connections, or the
    /// shared runtime if there is no other connection.
    pub(super) fn next(&self) -> &ConnectionRuntime {
        let least_busy = self.threads.iter().min_by_key(|place| place.connections());
        let is_alone = self.threads.iter().chain([&self.shared]).all(|place| place.connections() == 0);
        least_busy.filter(|_| !is_alone).unwrap_or(&self.shared)
    }
}

impl ConnectionRuntime {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts one more connection until the returned value is dropped.
    pub(super) fn take(&self) -> RuntimeGuard {
        self.connections.fetch_add(1, Ordering::Relaxed);
        RuntimeGuard(self.connections.clone())
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_spread_over_threads_and_a_single_one_is_shared() {
        let threads = Threads::start(2, Duration::from_secs(1)).unwrap();
        let places = threads.places(Handle::current());
        let counts = || {
            let all = places.threads.iter().chain([&places.shared]);
            all.map(ConnectionRuntime::connections).collect::<Vec<_>>()
        };
        let mut open: Vec<RuntimeGuard> = (0..5).map(|_| places.next().take()).collect();
        assert_eq!(counts(), [2, 2, 1]);
        // Close the first two connections of the threads, which were on different threads.
        open.drain(1..3);
        assert_eq!(counts(), [1, 1, 1]);
        open.clear();
        open.push(places.next().take());
        assert_eq!(counts(), [0, 0, 1]);
        tokio::task::spawn_blocking(|| threads.stop()).await.unwrap();
    }
}
