//! Lease of this node's claims. The lease ends with the process, or when the datastore has not
//! heard from the node for too long. Other nodes can then take over the claimed invocations.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::{Datastore, Error, Lease, LeaseId};

/// Keep-alives per lease period.
const KEPT_PER_LEASE: u32 = 3;

/// Keeps a lease alive until dropped.
pub(super) struct Keeper {
    datastore: Arc<dyn Datastore>,
    lease: Arc<Mutex<LeaseId>>,
    keeping: AbortOnDropHandle<()>,
}

impl Keeper {
    pub(super) async fn start(datastore: Arc<dyn Datastore>, lease_ms: u64) -> Result<Self, Error> {
        let time = Duration::from_millis(lease_ms.max(1));
        let Lease { id, time_to_live } = datastore.grant_lease(time).await?;
        let lease = Arc::new(Mutex::new(id));
        let keeping = keep(datastore.clone(), lease.clone(), time, time_to_live / KEPT_PER_LEASE);
        Ok(Self { datastore, lease, keeping: AbortOnDropHandle::new(tokio::spawn(keeping)) })
    }

    /// Returns the lease for new claims.
    pub(super) fn lease(&self) -> LeaseId {
        *self.lease.lock()
    }

    /// Revokes the lease, and with it all claims.
    pub(super) async fn end(&self) {
        self.keeping.abort();
        if let Err(error) = self.datastore.revoke_lease(self.lease()).await {
            tracing::debug!(%error, "revoking the lease of asynchronous invocations failed");
        }
    }
}

async fn keep(datastore: Arc<dyn Datastore>, lease: Arc<Mutex<LeaseId>>, time: Duration, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let id = *lease.lock();
        // The timeout leaves time for another try before the lease ends.
        let Ok(kept) = tokio::time::timeout(every, datastore.keep_alive(id)).await else { continue };
        let kept = match kept {
            Err(Error::LeaseNotFound(_)) => datastore.grant_lease(time).await.map(|new| {
                tracing::warn!(
                    "the lease of asynchronous invocations expired: other nodes may take over this node's invocations"
                );
                *lease.lock() = new.id;
            }),
            kept => kept.map(drop),
        };
        match kept {
            Ok(()) => {}
            Err(Error::Closed) => return,
            Err(error) => tracing::debug!(%error, "renewing the lease of asynchronous invocations failed"),
        }
    }
}
