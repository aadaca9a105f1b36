//! What must hold under load, after crashes and over time. One test at a time: they measure.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod crash;
mod health;
mod memory;
mod variants;

use tokio::sync::{Mutex, MutexGuard};

/// Held by each test while it runs, so that no other disturbs it.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}
