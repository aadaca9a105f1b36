//! The start of a newly elected dispatcher, which places nothing until the other members have
//! announced their running calls.

use super::Cluster;
use super::members::Dispatcher;
use crate::placement::Placements;
use std::time::Duration;
use tokio::time::Instant;
use weir_types::NodeId;

/// The longest wait for the other members. A node connects within milliseconds of the election, or
/// a fifth of a second later if its first attempt was too early.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The latest election of this node.
#[derive(Default)]
pub(super) struct Election {
    seen: Option<Dispatcher>,
    /// The end of the wait for the other members.
    wait_until: Option<Instant>,
}

impl Cluster {
    /// Pauses the placements if this node has just been elected, until all other members have
    /// announced their running calls.
    pub(super) fn begin_dispatching(&self, placements: &Placements) {
        let others = self.others();
        let Some(elected) = self.view.borrow().dispatcher.filter(|dispatcher| dispatcher.node == self.node)
        else {
            return;
        };
        let mut election = self.election.lock();
        if election.seen != Some(elected) && placements.await_nodes(&others) {
            let wait_until = Instant::now() + self.heartbeat_timeout.min(WAIT_MAX);
            *election = Election { seen: Some(elected), wait_until: Some(wait_until) };
        }
        drop(election);
        // Members that have left meanwhile announce nothing.
        placements.await_only(&others);
    }

    /// Ends the wait for the other members at the latest time. Never completes without a wait.
    pub(super) async fn give_up_waiting(&self, placements: &Placements) {
        let wait_until = self.election.lock().wait_until;
        match wait_until {
            Some(wait_until) => tokio::time::sleep_until(wait_until).await,
            None => std::future::pending().await,
        }
        self.election.lock().wait_until = None;
        let silent = placements.awaited_nodes();
        if !silent.is_empty() {
            tracing::warn!(nodes = ?silent, "nodes did not announce their running calls in time: calls are placed without that knowledge");
        }
        placements.await_only(&[]);
    }

    /// The members that announce their calls: all but this node and replaced dispatchers.
    fn others(&self) -> Vec<NodeId> {
        let view = self.view.borrow();
        let announces = |node: &NodeId| *node != self.node && !view.replaced.contains(node);
        view.nodes.keys().copied().filter(announces).collect()
    }
}
