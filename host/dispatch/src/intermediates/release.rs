//! Notifies other nodes of intermediates that have no more readers.

use super::{Index, serve};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use weir_cluster::Cluster;
use weir_types::TenantId;

/// The limit of queued notifications; beyond it, intermediates are left to expire.
const WAITING_MAX: usize = 4_096;
/// The number of concurrent notifications.
const AT_ONCE_MAX: usize = 64;
/// The time limit of a notification; an unreachable node lets the intermediate expire.
const TIME_MAX: Duration = Duration::from_secs(1);

/// The sender of notifications. Cheap to clone; its task ends with the last clone.
#[derive(Debug, Clone)]
pub(super) struct ReleaseNotifier(Option<Arc<Telling>>);

#[derive(Debug)]
struct Telling {
    gone: mpsc::Sender<(Index, TenantId)>,
    _task: AbortOnDropHandle<()>,
}

impl ReleaseNotifier {
    /// Starts the task that notifies the nodes of `cluster`.
    pub(super) fn start(cluster: Option<Arc<Cluster>>) -> Self {
        Self(cluster.map(|cluster| {
            let (gone, told) = mpsc::channel(WAITING_MAX);
            let task = AbortOnDropHandle::new(tokio::spawn(tell(cluster, told)));
            Arc::new(Telling { gone, _task: task })
        }))
    }

    /// Queues the notification that an intermediate has no more readers. Returns at once.
    pub(super) fn tell(&self, index: Index, tenant: &TenantId) {
        let Some(Telling { gone, .. }) = self.0.as_deref() else { return };
        if gone.try_send((index, tenant.clone())).is_err() {
            tracing::debug!(%index, "releasing an intermediate failed, it stays until it expires");
        }
    }
}

async fn tell(cluster: Arc<Cluster>, mut told: mpsc::Receiver<(Index, TenantId)>) {
    let mut gone = Vec::with_capacity(AT_ONCE_MAX);
    while told.recv_many(&mut gone, AT_ONCE_MAX).await > 0 {
        let telling = gone.drain(..).map(async |(index, tenant)| {
            let telling = serve::let_go(&cluster, &tenant, index);
            match tokio::time::timeout(TIME_MAX, telling).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => tracing::debug!(%index, why, "releasing an intermediate failed, it stays until it expires"),
                Err(_) => tracing::debug!(%index, why = "no answer", "releasing an intermediate failed, it stays until it expires"),
            }
        });
        futures::future::join_all(telling).await;
    }
}
