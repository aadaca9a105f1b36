//! Measured costs of models on a kind of device, from their loads and runs.

use crate::backend::ModelKey;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use weir_types::{Measured, Profile};

/// Batch sizes up to this one have a bucket each. Larger sizes have four buckets between two powers
/// of two, which keeps a profile small.
const BATCH_EXACT_MAX: u32 = 8;

/// Profiles of all models on one kind of device. Cheap to clone: devices of a kind share one.
#[derive(Clone, Default)]
pub struct Profiles(Arc<Mutex<ProfilesState>>);

#[derive(Default)]
struct ProfilesState {
    profiles: HashMap<ModelKey, Profile>,
    /// Models whose profile changed since the last [`Profiles::take_changed`].
    changed: HashSet<ModelKey>,
}

impl Profiles {
    /// The profile of a model; empty when nothing is known.
    #[must_use]
    pub fn get(&self, key: &ModelKey) -> Profile {
        self.0.lock().profiles.get(key).cloned().unwrap_or_default()
    }

    /// Sets a profile that was measured earlier, such as before a restart.
    pub fn set(&self, key: ModelKey, profile: Profile) {
        self.0.lock().profiles.insert(key, profile);
    }

    /// Forgets a deleted model.
    pub fn forget(&self, key: &ModelKey) {
        let mut state = self.0.lock();
        state.profiles.remove(key);
        state.changed.remove(key);
    }

    /// Profiles that changed since the last call, to be stored for the next start.
    #[must_use]
    pub fn take_changed(&self) -> Vec<(ModelKey, Profile)> {
        let mut state = self.0.lock();
        let changed = std::mem::take(&mut state.changed);
        let profile = |key: ModelKey| state.profiles.get(&key).cloned().map(|profile| (key, profile));
        changed.into_iter().filter_map(profile).collect()
    }

    /// Creates the profile of a model whose load begins.
    pub(crate) fn loading(&self, key: &ModelKey) {
        self.0.lock().profiles.entry(key.clone()).or_default();
    }

    /// Records one load, which began with [`Self::loading`].
    pub(crate) fn loaded(&self, key: &ModelKey, tier: &str, time: Duration, resident_bytes: u64) {
        let mut state = self.0.lock();
        // Without an entry, the model was forgotten during the load.
        let Some(profile) = state.profiles.get_mut(key) else { return };
        profile.resident_bytes = resident_bytes;
        profile.load_time_ns.entry(tier.to_owned()).or_default().add(nanoseconds(time));
        state.changed.insert(key.clone());
    }

    /// Records one run.
    pub(crate) fn ran(&self, key: &ModelKey, batch: u32, time: Duration) {
        let mut state = self.0.lock();
        // As above: the model was forgotten during the run.
        let Some(profile) = state.profiles.get_mut(key) else { return };
        profile.run_time_ns.entry(bucket(batch)).or_default().add(nanoseconds(time));
        if !state.changed.contains(key) {
            state.changed.insert(key.clone());
        }
    }

    /// Sets the measurements of a model in several configurations.
    pub(crate) fn set_measured(&self, key: &ModelKey, measured: Vec<Measured>) {
        let mut state = self.0.lock();
        let Some(profile) = state.profiles.get_mut(key) else { return };
        profile.measured = measured.into();
        state.changed.insert(key.clone());
    }
}

/// Bucket of a batch size: the size itself, or a size up to a quarter larger.
pub(crate) fn bucket(batch: u32) -> u32 {
    if batch <= BATCH_EXACT_MAX {
        return batch;
    }
    let step = 1 << ((batch - 1).ilog2() - 2);
    batch.checked_next_multiple_of(step).unwrap_or(u32::MAX)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{ModelId, Name, TenantId, Version};

    #[test]
    fn profile_stays_small_for_many_batch_sizes() {
        let id = ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) };
        let key = ModelKey { id, generation: 1 };
        let profiles = Profiles::default();
        profiles.ran(&key, 1, Duration::from_millis(1));
        assert_eq!(
            profiles.get(&key),
            Profile::default(),
            "a forgotten model is not remembered by a late run"
        );
        assert_eq!(profiles.take_changed(), []);
        profiles.loading(&key);
        profiles.loaded(&key, "disk", Duration::from_millis(3), 5);
        for batch in (0..5_000).chain([u32::MAX]) {
            profiles.ran(&key, batch, Duration::from_millis(2));
        }
        let profile = profiles.get(&key);
        assert_eq!(profiles.take_changed(), [(key, profile.clone())]);
        assert_eq!(profiles.take_changed(), [], "nothing has changed since");
        assert_eq!((profile.resident_bytes, profile.load_time_ns["disk"].count), (5, 1));
        assert_eq!((profile.run_time_ns[&3].count, profile.run_time_ns[&20].count), (1, 4));
        assert!(profile.run_time_ns.len() < 60);
    }
}
