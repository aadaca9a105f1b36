//! Unloads idle kernel graphs from the devices. A tenant's worker ends with the tenant's last
//! graph.

use super::Models;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_cluster::Placements;
use weir_inference::Content;

/// The minimum and maximum of the interval at which idle graphs are looked for.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Unloads kernel graphs that were not called for `keep_alive`, until `models` is dropped.
pub async fn let_idle_go(models: Weak<Models>, placements: Arc<Placements>, keep_alive: Duration) {
    let mut ticks = tokio::time::interval((keep_alive / 4).clamp(LOOK_EVERY.0, LOOK_EVERY.1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(models) = models.upgrade() else { return };
        for device in models.devices.iter() {
            for key in device.cache.idle(keep_alive) {
                let entry = models.get(&key.id.tenant, &key.id.name, Some(key.id.version));
                if let Ok(entry) = entry
                    && entry.source.key == key
                    && entry.content() == Content::KernelGraph
                {
                    models.unload(&entry, &placements);
                }
            }
        }
    }
}
