//! The threads that connections live on: each on one, from its beginning to its end.
//!
//! A request is read, answered and written where its connection is, so nothing has to be handed from one thread to another. Threads that share
//! their work, as those of tokio's runtime do, wake each other for every event that one of them finds, and carry a connection's memory from one processor
//! to the next.
//!
//! A connection that is the only one is with threads that share their work: where nothing else goes on, the one that is woken for nothing keeps a
//! processor awake, and an answer is sent sooner to a client that needs not be woken from the depths.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;

/// Threads for blocking work that one of them may have.
const BLOCKING_THREADS_MAX: usize = 128;

/// Some threads, until they are stopped or dropped.
pub(crate) struct Threads {
    places: Vec<Place>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

/// Where connections can be.
pub(super) struct Places {
    threads: Vec<Place>,
    shared: Place,
}

/// A thread, or some that share their work, as connections are given to it.
#[derive(Clone)]
pub(super) struct Place {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// A connection that is on a thread.
pub(super) struct Placed(Arc<AtomicUsize>);

impl Threads {
    /// So many threads. Each ends within `shutdown`, once it is told to.
    pub(crate) fn start(count: usize, shutdown: Duration) -> anyhow::Result<Self> {
        let mut started = Self { places: Vec::new(), threads: Vec::new(), stop: CancellationToken::new() };
        for _ in 0..count.max(1) {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .thread_name("weir-gateway")
                .build()
                .context("cannot start a thread for connections")?;
            let place = Place { runtime: runtime.handle().clone(), connections: Arc::default() };
            let stop = started.stop.clone();
            let thread = std::thread::Builder::new().name("weir-gateway".to_owned());
            let thread = thread.spawn(move || run(runtime, &stop, shutdown));
            started.threads.push(thread.context("cannot start a thread for connections")?);
            started.places.push(place);
        }
        Ok(started)
    }

    /// What a server gives its connections to: these, and some that share their work.
    pub(super) fn places(&self, shared: Handle) -> Places {
        let shared = Place { runtime: shared, connections: Arc::default() };
        Places { threads: self.places.clone(), shared }
    }

    /// End what goes on there, and the threads. Blocks.
    pub(crate) fn stop(mut self) {
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

impl Places {
    /// Where the next connection is to be: the thread that has the fewest, unless there is no other anywhere.
    pub(super) fn next(&self) -> &Place {
        let least_busy = self.threads.iter().min_by_key(|place| place.connections());
        let is_alone = self.threads.iter().chain([&self.shared]).all(|place| place.connections() == 0);
        least_busy.filter(|_| !is_alone).unwrap_or(&self.shared)
    }
}

impl Place {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Count one more connection there, until what this gives is dropped.
    pub(super) fn take(&self) -> Placed {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Placed(Arc::clone(&self.connections))
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_spread_and_one_alone_is_where_work_is_shared() {
        let threads = Threads::start(2, Duration::from_secs(1)).unwrap();
        let places = threads.places(Handle::current());
        let counts = || {
            let all = places.threads.iter().chain([&places.shared]);
            all.map(Place::connections).collect::<Vec<_>>()
        };
        let mut open: Vec<Placed> = (0..5).map(|_| places.next().take()).collect();
        assert_eq!(counts(), [2, 2, 1]);
        // The first two of the threads' own end, which were on different ones.
        open.drain(1..3);
        assert_eq!(counts(), [1, 1, 1]);
        open.clear();
        open.push(places.next().take());
        assert_eq!(counts(), [0, 0, 1]);
        tokio::task::spawn_blocking(|| threads.stop()).await.unwrap();
    }
}
