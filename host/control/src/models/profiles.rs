//! Persists measured model profiles across restarts. Profiles are written every few seconds and at
//! shutdown, never during a call.

use super::record::{ProfileRecord, profile_key, profile_of, profiles, profiles_of};
use super::{Models, ModelsError};
use std::sync::Weak;
use std::time::Duration;
use weir_datastore::{Key, Transaction};
use weir_inference::ModelKey;
use weir_types::{ModelId, Profile};

/// The interval at which changed profiles are written.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// The number of profiles per transaction, which takes at most 128 writes.
const SAVED_AT_ONCE: usize = 100;

/// Persists the profiles of `models` every ten seconds, until `models` is dropped.
pub async fn keep_profiles(models: Weak<Models>) {
    let mut ticks = tokio::time::interval(SAVE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(models) = models.upgrade() else { return };
        models.save_profiles().await;
    }
}

impl Models {
    /// Writes the profiles that have changed. Profiles that cannot be written are measured again
    /// after a restart.
    pub async fn save_profiles(&self) {
        for (kind, profiles) in self.devices.profiles() {
            let changed = profiles.take_changed();
            for batch in changed.chunks(SAVED_AT_ONCE) {
                if let Err(error) = self.save(&kind, batch).await {
                    tracing::warn!(%error, "storing the profiles of models failed");
                }
            }
        }
    }

    async fn save(&self, kind: &str, batch: &[(ModelKey, Profile)]) -> Result<(), ModelsError> {
        // Excludes deletions between the check and the commit.
        let _turn = self.turn.acquire().await;
        let mut writes = Transaction::new();
        for (key, profile) in batch.iter().filter(|(key, _)| self.is_current(key)) {
            let kind_name = kind.to_owned();
            let profile = profile.clone();
            let record = ProfileRecord { generation: key.generation, kind: kind_name, profile };
            writes = writes.put(profile_key(&key.id, kind)?, record.encode());
        }
        if !writes.writes.is_empty() {
            self.datastore.commit(writes).await?;
        }
        Ok(())
    }

    /// Restores the profiles of earlier runs, and removes profiles of deleted models.
    pub(super) async fn restore_profiles(&self) -> Result<(), ModelsError> {
        let (entries, _) = self.datastore.read_all(&profiles()?).await?;
        let own = self.devices.profiles();
        let mut stale: Vec<Key> = Vec::new();
        for entry in entries {
            let record = serde_json::from_slice::<ProfileRecord>(&entry.value);
            match (profile_of(&entry.key), record) {
                (Some(id), Ok(ProfileRecord { generation, kind, profile }))
                    if self.is_current(&ModelKey { id: id.clone(), generation }) =>
                {
                    // Profiles of other nodes' devices stay in the datastore.
                    if let Some(profiles) = own.get(&*kind) {
                        profiles.set(ModelKey { id, generation }, profile);
                    }
                }
                (Some(id), _) if self.read_known().damaged.contains_key(&id) => {}
                _ => stale.push(entry.key),
            }
        }
        self.remove_profiles(stale).await
    }

    /// Removes the profiles of deleted models, for all kinds of devices.
    pub(super) async fn forget_profiles(&self, ids: &[ModelId]) -> Result<(), ModelsError> {
        let mut stale = Vec::new();
        for id in ids {
            let (entries, _) = self.datastore.read_all(&profiles_of(id)?).await?;
            stale.extend(entries.into_iter().map(|entry| entry.key));
        }
        self.remove_profiles(stale).await
    }

    async fn remove_profiles(&self, stale: Vec<Key>) -> Result<(), ModelsError> {
        for batch in stale.chunks(SAVED_AT_ONCE) {
            let writes = batch.iter().fold(Transaction::new(), |writes, key| writes.delete(key.clone()));
            self.datastore.commit(writes).await?;
        }
        Ok(())
    }

    /// Unloads a deleted model from all devices once its last pin is dropped, and drops its
    /// profiles.
    pub(super) fn let_go(&self, key: &ModelKey) {
        self.devices.let_go(key);
    }
}
