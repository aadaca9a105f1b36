//! What models were measured to cost, kept from one start to the next. Written every few seconds and at shutdown, never on the way of a call.

use super::record::{ProfileRecord, id_of, profile_key, profiles};
use super::{Models, ModelsError};
use std::sync::Weak;
use std::time::Duration;
use weir_datastore::{Key, Transaction};
use weir_inference::ModelKey;

/// How often profiles that have changed are written.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// Profiles in one transaction, which takes 128 writes.
const SAVED_AT_ONCE: usize = 100;

/// Keep the profiles of `models` for as long as there are any.
pub(crate) async fn keep_profiles(models: Weak<Models>) {
    let mut ticks = tokio::time::interval(SAVE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(models) = models.upgrade() else { return };
        models.save_profiles().await;
    }
}

impl Models {
    /// Write the profiles that have changed. What cannot be written is measured again.
    pub(crate) async fn save_profiles(&self) {
        let changed = self.cache.take_changed_profiles();
        for batch in changed.chunks(SAVED_AT_ONCE) {
            if let Err(error) = self.save(batch).await {
                tracing::warn!(%error, "cannot keep what models were measured to cost");
            }
        }
    }

    async fn save(&self, batch: &[(ModelKey, weir_types::Profile)]) -> Result<(), ModelsError> {
        // None of them is deleted between the look and the commit.
        let _turn = self.turn.acquire().await;
        let mut writes = Transaction::new();
        for (key, profile) in batch.iter().filter(|(key, _)| self.is_current(key)) {
            let record = ProfileRecord { generation: key.generation, profile: profile.clone() };
            writes = writes.put(profile_key(&key.id)?, record.encode());
        }
        if !writes.writes.is_empty() {
            self.datastore.commit(writes).await?;
        }
        Ok(())
    }

    /// Start from what was measured before, and remove what was about models that are gone.
    pub(super) async fn restore_profiles(&self) -> Result<(), ModelsError> {
        let (entries, _) = self.datastore.read_all(&profiles()?).await?;
        let mut stale: Vec<Key> = Vec::new();
        for entry in entries {
            let record = serde_json::from_slice::<ProfileRecord>(&entry.value);
            match (id_of(&entry.key), record) {
                (Some(id), Ok(ProfileRecord { generation, profile }))
                    if self.is_current(&ModelKey { id: id.clone(), generation }) =>
                {
                    self.cache.set_profile(ModelKey { id, generation }, profile);
                }
                (Some(id), _) if self.read_known().damaged.contains_key(&id) => {}
                _ => stale.push(entry.key),
            }
        }
        for batch in stale.chunks(SAVED_AT_ONCE) {
            let writes = batch.iter().fold(Transaction::new(), |writes, key| writes.delete(key.clone()));
            self.datastore.commit(writes).await?;
        }
        Ok(())
    }

    /// Have a model that nobody can open any more leave the device's memory with its last pin, and forget what it cost.
    pub(super) fn let_go(&self, key: &ModelKey) {
        // Ready once it has left, which nobody waits for.
        drop(self.cache.unload(key));
        self.cache.forget_profile(key);
    }
}
