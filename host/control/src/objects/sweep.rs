//! Removes expired objects, and shrinks the object cache.

use super::record::{ObjectRecord, object_key, objects};
use super::{ObjectError, Objects};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_storage::blobs::Blobs;
use weir_telemetry::logs::now_ms;
use weir_types::ContentHash;

/// The interval at which the cache is shrunk, so that requests get the memory that they need.
const RELIEVE_EVERY: Duration = Duration::from_millis(100);
/// The interval of sweeps for expired objects. Reads ignore an expired object even before its
/// record is removed.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// The number of objects removed per sweep; the rest follows in later sweeps.
const FORGOTTEN_AT_ONCE: usize = 1_000;

impl Objects {
    /// Shrinks the cache periodically, until the future is dropped.
    pub async fn relieve(self: Arc<Self>) {
        let mut tick = tokio::time::interval(RELIEVE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.memory.filled().await;
            tick.tick().await;
            self.memory.relieve();
            self.metrics.objects.memory(self.memory.bytes());
        }
    }

    /// Removes expired objects periodically, until the future is dropped. The node that `leads`
    /// removes the records for the whole cluster; each node removes its own files.
    pub async fn sweep(self: Arc<Self>, leads: impl Fn() -> bool + Send + 'static) {
        let mut tick = tokio::time::interval(FORGET_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let mut swept = if leads() { self.forget_expired().await } else { Ok(()) };
            if swept.is_ok() && self.has_leftovers.swap(false, Ordering::Relaxed) {
                let sweeping = self.blobs.sweep(|| self.read_known().digests()).await;
                swept = sweeping.map_err(|error| ObjectError::Blob(error.into()));
            }
            match swept {
                Ok(()) => {}
                Err(ObjectError::Datastore(weir_datastore::Error::Closed)) => return,
                Err(error) => tracing::warn!(%error, "removing expired objects failed, retrying"),
            }
        }
    }

    async fn forget_expired(&self) -> Result<(), ObjectError> {
        let expired = self.read_known().expired(now_ms(), FORGOTTEN_AT_ONCE);
        for (tenant, name, seen) in expired {
            self.forget(object_key(&tenant, &name)?, seen).await?;
        }
        Ok(())
    }

    /// The blobs of objects.
    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// The blobs that the datastore's current records refer to; `None` if some record cannot be
    /// read.
    pub async fn referred(&self) -> Result<Option<HashSet<ContentHash>>, ObjectError> {
        let (all, _) = self.datastore.read_all(&objects()?).await?;
        let digest = |entry| ObjectRecord::decode(entry).map(|record| record.digest);
        Ok(all.iter().map(digest).collect::<Result<_, _>>().ok())
    }
}
