//! Deletes invocations past their retention or above the tenant's limits.

use super::index::{FORGOTTEN_AT_ONCE, RetentionLimits};
use super::{AsyncError, Invocations, now_ms};
use futures::{TryStreamExt, stream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use weir_types::{AsyncId, TenantId};

/// Shortest and longest interval between sweeps.
const EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Concurrent deletions: a datastore persists many writes as fast as one.
const AT_ONCE: usize = 16;
/// Maximum number of rounds per sweep.
const ROUNDS_MAX: usize = 100;
/// Interval of the search for unreferenced blobs in the shared store.
const ORPHANS_EVERY: Duration = Duration::from_secs(3_600);
/// Minimum age of unreferenced blobs before removal: their invocations may be about to be written.
const ORPHAN_AGE_MIN: Duration = Duration::from_secs(3_600);

impl Invocations {
    /// Sweeps periodically, for the lifetime of the future. In a cluster, the node for which
    /// `leads` returns true deletes old invocations for all nodes.
    pub async fn sweep(self: Arc<Self>, leads: impl Fn() -> bool + Send + 'static) {
        let retention = Duration::from_millis(self.config.retention_ms);
        let mut tick = tokio::time::interval((retention / 10).clamp(EVERY.0, EVERY.1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut orphans_looked_for: Option<Instant> = None;
        loop {
            tick.tick().await;
            let is_leading = leads();
            let mut swept = if is_leading { self.forget_old().await } else { Ok(()) };
            let is_due = orphans_looked_for.is_none_or(|at| at.elapsed() >= ORPHANS_EVERY);
            if swept.is_ok() && is_leading && is_due {
                swept = self.remove_orphans(retention).await;
                orphans_looked_for = Some(Instant::now());
            }
            if swept.is_ok() && self.has_leftovers.swap(false, Ordering::Relaxed) {
                swept = self.blobs.sweep(|| self.index.lock().blobs()).await.map_err(AsyncError::io);
            }
            match swept {
                Ok(()) => {}
                Err(AsyncError::Datastore(weir_datastore::Error::Closed)) => return,
                Err(error) => {
                    tracing::warn!(%error, "removing expired asynchronous invocations failed, retrying");
                }
            }
        }
    }

    async fn forget_old(&self) -> Result<(), AsyncError> {
        let kept = RetentionLimits {
            retention_ms: self.config.retention_ms,
            tenant_kept_max: self.config.tenant_kept_max as usize,
            tenant_bytes_max: self.config.tenant_bytes_max,
        };
        // More invocations end during the deletion; the next sweep deletes the rest.
        for _ in 0..ROUNDS_MAX {
            let all = self.index.lock().to_forget(now_ms(), &kept);
            let is_all = all.len() < FORGOTTEN_AT_ONCE;
            let forgetting = stream::iter(all.into_iter().map(Ok));
            forgetting.try_for_each_concurrent(AT_ONCE, |(tenant, id)| self.forget_one(tenant, id)).await?;
            if is_all {
                break;
            }
        }
        Ok(())
    }

    async fn forget_one(&self, tenant: TenantId, id: AsyncId) -> Result<(), AsyncError> {
        // An invocation that was restarted since is kept.
        let read = match self.read(&tenant, id).await {
            Err(error @ AsyncError::Damaged { .. }) => {
                tracing::error!(%error, "invalid record of an asynchronous invocation ignored");
                return Ok(());
            }
            read => read?,
        };
        if let Some(seen) = read.filter(|seen| seen.record.status.is_end())
            && let Some(revision) = self.forget(&seen).await?
        {
            self.heard.wait(revision).await;
        }
        Ok(())
    }

    /// Removes blobs whose invocation was never written, or was already deleted.
    async fn remove_orphans(&self, retention: Duration) -> Result<(), AsyncError> {
        let before = SystemTime::now() - retention.max(ORPHAN_AGE_MIN);
        let old = self.blobs.shared_before(before).await?;
        let known = self.index.lock().blobs();
        let orphans = old.into_iter().filter(|digest| !known.contains(digest));
        Ok(self.blobs.remove_shared(orphans).await?)
    }
}
