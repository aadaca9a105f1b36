//! Garbage collection of the cluster's shared blob store: the dispatcher removes unreferenced
//! blobs.

use super::NodeState;
use crate::blobs::{Blobs, Collected};
use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;
use weir_types::ContentHash;

/// The limits of the interval between collections.
const EVERY_MAX: Duration = Duration::from_secs(3_600);
const EVERY_MIN: Duration = Duration::from_millis(10);

/// Collects garbage periodically, until the node ends.
pub(super) async fn collect(state: Weak<NodeState>) {
    let grace = state.upgrade().and_then(|state| state.config.cluster.clone());
    let Some(grace) = grace.map(|cluster| Duration::from_millis(cluster.blob_grace_ms)) else { return };
    let every = (grace / 4).clamp(EVERY_MIN, EVERY_MAX);
    loop {
        tokio::time::sleep(every).await;
        let Some(state) = state.upgrade() else { return };
        if state.cluster.as_ref().is_some_and(|cluster| cluster.is_dispatcher()) {
            let (components, models) = (state.registry.referred().await, state.models.referred().await);
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
            tracing::warn!(what, "unused blobs are kept: some record that cannot be read may refer to them");
            return;
        }
        // The datastore is unreachable, so the references are unknown.
        Err(error) => {
            tracing::debug!(what, error, "unused blobs are not looked for");
            return;
        }
    };
    match blobs.collect(&wanted, grace).await {
        Ok(nothing) if nothing == Collected::default() => {}
        Ok(Collected { set_aside, brought_back, removed }) => {
            tracing::info!(what, set_aside, brought_back, removed, "looked for unused blobs");
        }
        Err(error) => tracing::warn!(what, %error, "cannot remove unused blobs"),
    }
}
