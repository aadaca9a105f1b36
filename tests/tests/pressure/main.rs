//! Load, crash and long-term tests. They measure, so they run one at a time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod crash;
mod health;
mod memory;
mod occupancy;
mod variants;

use tokio::sync::{Mutex, MutexGuard};

/// Lock that each test holds while it runs, so that no other test disturbs it.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}
