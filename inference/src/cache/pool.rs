//! Sessions of one model that all run with the same number of threads.
//!
//! A session ends when the model is unloaded, when it has been idle for too long
//! ([`Pool::retire`]), or when a run in it panics.

use crate::backend::{Model, Session};
use crate::error::InferenceError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Pool {
    threads: u32,
    /// Idle sessions, the most recently used last.
    idle: Mutex<Vec<Idle>>,
    /// Reference held by every session of the pool, in order to count them.
    alive: Arc<()>,
}

/// A session in use. Dropping it, instead of putting it back, ends the session.
pub(super) struct Pooled {
    pub(super) session: Box<dyn Session>,
    _alive: Arc<()>,
}

struct Idle {
    session: Pooled,
    since: Instant,
}

impl Pool {
    /// Creates an empty pool for sessions with `threads` threads each.
    pub(super) fn new(threads: u32) -> Self {
        Self { threads: threads.max(1), idle: Mutex::default(), alive: Arc::default() }
    }

    /// Threads of each run.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    /// Number of sessions, in use or idle.
    pub(super) fn len(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    /// Takes an idle session.
    pub(super) fn take(&self) -> Option<Pooled> {
        self.idle.lock().pop().map(|idle| idle.session)
    }

    /// Creates one more session. Blocks.
    pub(super) fn make(&self, model: &dyn Model) -> Result<Pooled, InferenceError> {
        let alive = self.alive.clone();
        Ok(Pooled { session: model.session(self.threads)?, _alive: alive })
    }

    /// Returns a session for the next run.
    pub(super) fn put(&self, session: Pooled) {
        self.idle.lock().push(Idle { session, since: Instant::now() });
    }

    /// Ends the idle sessions. Blocks.
    pub(super) fn end(&self) {
        let ended = std::mem::take(&mut *self.idle.lock());
        drop(ended);
    }

    /// Removes sessions that have been idle since `before`, the least recently used first, while
    /// more than `keep` sessions remain. Dropping them may block.
    pub(super) fn retire(&self, before: Instant, keep: usize) -> Vec<Pooled> {
        let mut idle = self.idle.lock();
        let surplus = self.len().saturating_sub(keep);
        let old = idle.iter().take(surplus).take_while(|idle| idle.since <= before).count();
        idle.drain(..old).map(|idle| idle.session).collect()
    }
}
