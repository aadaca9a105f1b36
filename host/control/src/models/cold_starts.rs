//! Causes of the loads that calls wait for.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use weir_telemetry::LoadReason;
use weir_types::Ordinal;

/// The devices that have loaded a model since the start of the node.
#[derive(Debug, Default)]
pub struct LoadedDevices(Mutex<BTreeSet<Ordinal>>);

impl LoadedDevices {
    /// Why the model, which is absent, has to be loaded by the device.
    pub(super) fn reason(&self, device: Ordinal) -> LoadReason {
        let loaded = self.0.lock();
        if loaded.contains(&device) {
            LoadReason::Evicted
        } else if loaded.is_empty() {
            LoadReason::First
        } else {
            LoadReason::ScaledOut
        }
    }

    /// Records that a device has loaded the model.
    pub(super) fn note(&self, device: Ordinal) {
        self.0.lock().insert(device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_load_of_a_device_follows_an_eviction() {
        let loaded = LoadedDevices::default();
        assert_eq!(loaded.reason(0), LoadReason::First);
        loaded.note(0);
        assert_eq!(loaded.reason(0), LoadReason::Evicted);
        assert_eq!(loaded.reason(1), LoadReason::ScaledOut);
    }
}
