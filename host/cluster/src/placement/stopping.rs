//! The waiting calls of a node that stops and has no device to run them on.

use super::Placements;
use super::state::PlacementRefusal;
use std::time::{Duration, Instant};

/// The interval at which a stopping node looks for waiting calls.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Placements {
    /// Waits until all calls of a node without devices have their places, at most until `latest`, and
    /// refuses those that still wait then. A node with devices returns at once: it runs its waiting
    /// calls itself after it has left the cluster.
    pub async fn settle_waiting(&self, latest: Instant) {
        if !self.devices.is_empty() {
            return;
        }
        while !self.state.lock().waiting.is_empty() && Instant::now() < latest {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        for call in waiting.into_values() {
            // A call that was cancelled meanwhile has no receiver.
            let _ = call.start.send(Err(PlacementRefusal::Stopping));
        }
    }
}
