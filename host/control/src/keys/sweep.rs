//! Removes API keys that expired some time ago.

use super::record::{hash_key, record_key};
use super::{ApiKeyError, ApiKeys, KeyGrant};
use std::sync::Arc;
use std::time::Duration;
use weir_datastore::{Compare, Transaction};
use weir_telemetry::logs::now_ms;

/// The interval of sweeps. Expired keys are refused even before.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Time for which expired keys are listed, so that their owners see why a token is refused.
const LISTED_MS: u64 = 7 * 24 * 3_600_000;
/// Keys removed per sweep; the rest follows in later sweeps.
const REMOVED_AT_ONCE: usize = 100;

impl ApiKeys {
    /// Removes expired keys periodically, on the node that `leads`, until the future is dropped.
    pub async fn sweep(self: Arc<Self>, leads: impl Fn() -> bool + Send + 'static) {
        let mut tick = tokio::time::interval(SWEEP_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if !leads() {
                continue;
            }
            match self.remove_expired(now_ms()).await {
                Ok(()) => {}
                Err(ApiKeyError::Datastore(weir_datastore::Error::Closed)) => return,
                Err(error) => tracing::warn!(%error, "removing expired API keys failed, retrying"),
            }
        }
    }

    pub(super) async fn remove_expired(&self, now_ms: u64) -> Result<(), ApiKeyError> {
        let expired = self.known.read().expired(now_ms.saturating_sub(LISTED_MS), REMOVED_AT_ONCE);
        for key in expired {
            let KeyGrant { tenant, name, record, revision } = &*key;
            let key = record_key(tenant, name)?;
            // Unless the name was given to a new key since.
            let removing = Transaction::new().when(Compare::ModifiedAt(key.clone(), *revision));
            self.datastore.commit(removing.delete(key).delete(hash_key(&record.hash)?)).await?;
        }
        Ok(())
    }
}
