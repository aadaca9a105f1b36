//! Garbage collection of the cluster's shared blob store: the dispatcher removes unreferenced
//! blobs.

use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;
use weir_gateway::NodeState;
use weir_storage::blobs::{Blobs, Collected};
use weir_types::ContentHash;

/// The limits of the interval between collections.
const EVERY_MAX: Duration = Duration::from_secs(3_600);
const EVERY_MIN: Duration = Duration::from_millis(10);

/// Collects garbage periodically, until the node ends.
pub(super) async fn collect(state: Weak<NodeState>, grace: Duration) {
    let every = (grace / 4).clamp(EVERY_MIN, EVERY_MAX);
    loop {
        tokio::time::sleep(every).await;
        let Some(state) = state.upgrade() else { return };
        if state.cluster.as_ref().is_some_and(|cluster| cluster.is_dispatcher()) {
            let components = state.registry.referred().await;
            let models = state.models.referred().await;
            look("components", &state.blobs, components.map_err(|error| error.to_string()), grace).await;
            let objects = state.objects.referred().await;
            look("models", state.models.blobs(), models.map_err(|error| error.to_string()), grace).await;
            look("objects", state.objects.blobs(), objects.map_err(|error| error.to_string()), grace).await;
        }
    }
}

async fn look(
    what: &str,
    blobs: &Blobs,
    wanted: Result<Option<HashSet<ContentHash>>, String>,
    grace: Duration,
) {
    let wanted = match wanted {
        Ok(Some(wanted)) => wanted,
        Ok(None) => {
            tracing::warn!(what, "unused blobs are kept, because an unreadable record may refer to them");
            return;
        }
        // The datastore is unreachable, so the references are unknown.
        Err(error) => {
            tracing::debug!(what, error, "garbage collection of blobs skipped");
            return;
        }
    };
    match blobs.collect(&wanted, grace).await {
        Ok(nothing) if nothing == Collected::default() => {}
        Ok(Collected { set_aside, brought_back, removed }) => {
            tracing::info!(what, set_aside, brought_back, removed, "garbage collection of blobs done");
        }
        Err(error) => tracing::warn!(what, %error, "garbage collection of blobs failed"),
    }
}
