//! The unplaced calls of a node that stops and has no device to run them on.

use super::Placements;
use super::state::PlacementRefusal;
use weir_call::Fault;

impl Placements {
    /// Refuses all calls that have no place yet, and all later ones: the node stops, and cannot run
    /// them after it has left the cluster.
    pub fn refuse_all(&self) {
        self.refusing.cancel();
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        for call in waiting.into_values() {
            // A call that was cancelled meanwhile has no receiver.
            let _ = call.start.send(Err(PlacementRefusal::Stopping));
        }
    }

    /// Completes once the node places no more calls, with the reason.
    pub async fn refusal(&self) -> Fault {
        self.refusing.cancelled().await;
        PlacementRefusal::Stopping.into()
    }
}
