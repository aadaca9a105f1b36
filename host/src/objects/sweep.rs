//! Forgetting what has expired, and giving memory back.

use super::record::{Record, object_key, objects};
use super::{ObjectError, Objects};
use crate::blobs::Blobs;
use crate::telemetry::logs::now_ms;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_types::ContentHash;

/// How often is looked whether requests need the memory that objects are in.
const RELIEVE_EVERY: Duration = Duration::from_millis(100);
/// How often is looked for what has expired. Nobody finds it from then on, whenever its record goes.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Objects that are forgotten at once; the rest is for the next time.
const FORGOTTEN_AT_ONCE: usize = 1_000;

impl Objects {
    /// Give memory back to whoever needs it, again and again, for as long as the future lives.
    pub(crate) async fn relieve(self: Arc<Self>) {
        let mut tick = tokio::time::interval(RELIEVE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.memory.filled().await;
            tick.tick().await;
            self.memory.relieve();
            self.metrics.objects.memory(self.memory.bytes());
        }
    }

    /// Forget what has expired, for as long as the future lives. Of a cluster's nodes, the one that `leads` does so for all; each removes its
    /// own files.
    pub(crate) async fn sweep(self: Arc<Self>, leads: impl Fn() -> bool + Send + 'static) {
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
                Err(error) => tracing::warn!(%error, "cannot remove objects that have expired now"),
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

    /// The files of objects.
    pub(crate) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Every blob that a record refers to, read from the datastore now; none where a record cannot be read.
    pub(crate) async fn referred(&self) -> Result<Option<HashSet<ContentHash>>, ObjectError> {
        let (all, _) = self.datastore.read_all(&objects()?).await?;
        let digest = |entry| Record::decode(entry).map(|record| record.digest);
        Ok(all.iter().map(digest).collect::<Result<_, _>>().ok())
    }
}
