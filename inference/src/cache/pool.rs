//! Sessions of one model that all run with the same number of threads.
//!
//! A session ends when the model is unloaded, when it lies idle for longer than it is kept ([`Pool::retire`]), or in a run that panics.

use crate::backend::{Model, Session};
use crate::error::InferenceError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) struct Pool {
    threads: u32,
    /// Those that nobody uses, the one used last at the end.
    idle: Mutex<Vec<Idle>>,
    /// Held by every session of the pool, so that they can be counted.
    alive: Arc<()>,
}

/// A session that is in use. Dropped instead of put back, it ends.
pub(super) struct Pooled {
    pub(super) session: Box<dyn Session>,
    _alive: Arc<()>,
}

struct Idle {
    session: Pooled,
    since: Instant,
}

impl Pool {
    /// For sessions that are to run with so many threads each; none is made yet.
    pub(super) fn new(threads: u32) -> Self {
        Self { threads: threads.max(1), idle: Mutex::default(), alive: Arc::default() }
    }

    /// Threads of each run.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    /// How many sessions there are, in use or not.
    pub(super) fn len(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    /// A session that nobody uses.
    pub(super) fn take(&self) -> Option<Pooled> {
        self.lock().pop().map(|idle| idle.session)
    }

    /// One more session. Blocks.
    pub(super) fn make(&self, model: &dyn Model) -> Result<Pooled, InferenceError> {
        let alive = Arc::clone(&self.alive);
        Ok(Pooled { session: model.session(self.threads)?, _alive: alive })
    }

    /// Bring a session back for the next run.
    pub(super) fn put(&self, session: Pooled) {
        self.lock().push(Idle { session, since: Instant::now() });
    }

    /// End the sessions that nobody uses. Blocks.
    pub(super) fn end(&self) {
        let ended = std::mem::take(&mut *self.lock());
        drop(ended);
    }

    /// Take out those that nobody has used since `before`, the ones used longest ago first, as long as more than `keep` are left. To be
    /// dropped where that may block.
    pub(super) fn retire(&self, before: Instant, keep: usize) -> Vec<Pooled> {
        let mut idle = self.lock();
        let surplus = self.len().saturating_sub(keep);
        let old = idle.iter().take(surplus).take_while(|idle| idle.since <= before).count();
        idle.drain(..old).map(|idle| idle.session).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
