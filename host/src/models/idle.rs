//! Kernel graphs that nobody calls any more. They leave the devices, and with the last of a tenant's ends its worker.

use super::Models;
use crate::dispatch::Placements;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_inference::Content;

/// How often they are looked for, at most and at least.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Unload what nobody has called for `keep_alive`, for as long as there are `models`.
pub(crate) async fn let_idle_go(models: Weak<Models>, placements: Arc<Placements>, keep_alive: Duration) {
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
