//! What models cost on this device, as measured by their loads and runs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_types::{ModelId, Profile};

/// Batch sizes up to here are told apart; larger ones count as the next power of two, so that a profile stays small.
const BATCH_EXACT_MAX: u32 = 8;

/// The profiles of all models that the device has seen.
#[derive(Default)]
pub(crate) struct Profiles(Mutex<HashMap<ModelId, Profile>>);

impl Profiles {
    /// The profile of a model; empty when nothing is known.
    pub(crate) fn get(&self, id: &ModelId) -> Profile {
        self.lock().get(id).cloned().unwrap_or_default()
    }

    /// Start from what was measured before, as after a restart.
    pub(crate) fn set(&self, id: ModelId, profile: Profile) {
        self.lock().insert(id, profile);
    }

    /// Forget a model that is gone for good.
    pub(crate) fn forget(&self, id: &ModelId) {
        self.lock().remove(id);
    }

    /// Take in one load.
    pub(crate) fn loaded(&self, id: &ModelId, tier: &str, time: Duration, resident_bytes: u64) {
        let mut profiles = self.lock();
        let profile = profiles.entry(id.clone()).or_default();
        profile.resident_bytes = resident_bytes;
        profile.load_time_ns.entry(tier.to_owned()).or_default().add(nanoseconds(time));
    }

    /// Take in one run.
    pub(crate) fn ran(&self, id: &ModelId, batch: u32, time: Duration) {
        let mut profiles = self.lock();
        // Loading made the entry; without one, the model has been forgotten while it ran.
        let Some(profile) = profiles.get_mut(id) else { return };
        profile.run_time_ns.entry(bucket(batch)).or_default().add(nanoseconds(time));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModelId, Profile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bucket(batch: u32) -> u32 {
    if batch <= BATCH_EXACT_MAX { batch } else { batch.checked_next_power_of_two().unwrap_or(u32::MAX) }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, TenantId, Version};

    #[test]
    fn a_profile_stays_small_whatever_batches_come() {
        let id = ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) };
        let profiles = Profiles::default();
        profiles.ran(&id, 1, Duration::from_millis(1));
        assert_eq!(
            profiles.get(&id),
            Profile::default(),
            "a forgotten model is not remembered by a late run"
        );
        profiles.loaded(&id, "disk", Duration::from_millis(3), 5);
        for batch in (0..5_000).chain([u32::MAX]) {
            profiles.ran(&id, batch, Duration::from_millis(2));
        }
        let profile = profiles.get(&id);
        assert_eq!((profile.resident_bytes, profile.load_time_ns["disk"].count), (5, 1));
        assert_eq!((profile.run_time_ns[&3].count, profile.run_time_ns[&16].count), (1, 8));
        assert!(profile.run_time_ns.len() < 25);
    }
}
