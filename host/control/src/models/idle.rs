//! Unloads idle models and kernel graphs from the devices. A tenant's worker ends with the tenant's
//! last graph.

use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_cluster::Placements;
use weir_inference::Content;
use weir_types::Platform;

/// The minimum and maximum of the interval at which idle models are looked for.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(50);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(5);

/// The times for which unused models stay in the memory of devices, unless their manifest says
/// otherwise.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Of models, on accelerators. On the CPU, they stay until room is needed.
    pub models: Duration,
    /// Of kernel graphs.
    pub kernel_graphs: Duration,
}

impl KeepAlive {
    /// The time for which a model stays on a device; `None` if it stays until room is needed.
    fn for_model(&self, entry: &ModelEntry, platform: Platform) -> Option<Duration> {
        if let Some(keep_ms) = entry.record.manifest.keep_alive_ms {
            return Some(Duration::from_millis(keep_ms));
        }
        match (entry.content(), platform) {
            (Content::KernelGraph, _) => Some(self.kernel_graphs),
            (Content::Network, Platform::Cpu) => None,
            (Content::Network, Platform::Cuda | Platform::Fake) => Some(self.models),
        }
    }
}

/// Unloads models and kernel graphs that were not used for the time of `keep_alive`, until `models`
/// is dropped.
pub async fn let_idle_go(models: Weak<Models>, placements: Arc<Placements>, keep_alive: KeepAlive) {
    let mut shortest = keep_alive.models.min(keep_alive.kernel_graphs);
    loop {
        tokio::time::sleep((shortest / 4).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)).await;
        let Some(models) = models.upgrade() else { return };
        let idle = models.devices.iter();
        let idle = idle.filter_map(|device| models.let_idle_go(device, &placements, keep_alive));
        shortest = idle.chain([keep_alive.models, keep_alive.kernel_graphs]).min().unwrap_or_default();
    }
}

impl Models {
    /// Unloads the models of a device that were not used for too long. Returns the shortest time
    /// for which an idle model stays.
    fn let_idle_go(
        &self,
        device: &NodeDevice,
        placements: &Placements,
        keep_alive: KeepAlive,
    ) -> Option<Duration> {
        let mut shortest: Option<Duration> = None;
        for (key, idle) in device.cache.idle() {
            let entry = self.get(&key.id.tenant, &key.id.name, Some(key.id.version));
            let Some(entry) = entry.ok().filter(|entry| entry.source.key == key) else { continue };
            let Some(keep) = keep_alive.for_model(&entry, device.platform) else { continue };
            let is_kept = placements.is_granted(device.ordinal, &key.id)
                || placements.was_required(device.ordinal, &key.id);
            if idle >= keep && !is_kept {
                self.unload_from(&entry, device, placements);
            } else {
                shortest = Some(shortest.map_or(keep, |shortest| shortest.min(keep)));
            }
        }
        shortest
    }
}
