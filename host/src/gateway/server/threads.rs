//! The threads that connections live on: each on one, from its beginning to its end.
//!
//! A request is read, answered and written where its connection is, so nothing has to be handed from one thread to another. Threads that share
//! their work, as those of tokio's runtime do, wake each other for every event that one of them finds: where there is little to do, that is
//! most of what a small request costs.

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

/// A thread, as connections are given to it.
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

    /// What a server gives its connections to.
    pub(super) fn places(&self) -> Vec<Place> {
        self.places.clone()
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

impl Place {
    /// Of some, the one with the fewest connections.
    pub(super) fn least_busy(places: &[Self]) -> Option<&Self> {
        places.iter().min_by_key(|place| place.connections.load(Ordering::Relaxed))
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
