//! What steps of a workflow leave for each other where each is placed by itself: tensors by a globally unique index, in the memory of the node
//! on which they were made.
//!
//! A node that is passed a step [keeps](Intermediates::keep) what nobody but other steps will read, and answers with its index. A later step is
//! given the index, and [takes](Intermediates::take) the tensor from the node that has it, in one hop; or as a handle, where that is the node
//! that it runs on. So the node that the workflow was asked of passes on indices, and only those bytes that it needs itself. It is StreamBox's
//! communication store (Wu et al., USENIX ATC 2024), for tensors of the host and over nodes.
//!
//! Memory is a share of what is *free* for tensors: what does not fit, and what is too small to be worth another round trip, goes back with the
//! answer. What ends an intermediate:
//! - the last step that reads it has it, or the run is over: the asked node lets go of its handle, which tells the node that has the tensor;
//! - the deadline of the call passes, whatever became of the asked node: [`sweep`](Intermediates::sweep).
//!
//! What somebody reads stays in memory until they have read it, as every buffer does.

mod handle;
mod index;
mod kept;
mod let_go;
mod serve;

pub(crate) use handle::{Handle, stay};
pub(crate) use index::{Index, LEFT_HERE, Stands, region_of};
pub(crate) use serve::{PATH, answer};

use crate::cluster::Cluster;
use crate::config::IntermediatesConfig;
use crate::instance::Fault;
use crate::telemetry::Metrics;
use kept::Kept;
use let_go::LetGo;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use weir_device::{Arena, Buffer, share_of_free_bytes};
use weir_inference::Tensor;
use weir_types::{ErrorCode, NodeId, TenantId};

/// Tensors below this go back with the answer: on their way they take less than asking for them would.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// How often what has expired is let go of.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The intermediates of a node, and its way to those of others.
pub(crate) struct Intermediates {
    node: NodeId,
    cluster: Option<Arc<Cluster>>,
    arena: Arena,
    config: IntermediatesConfig,
    metrics: Arc<Metrics>,
    kept: Mutex<Kept>,
    let_go: LetGo,
}

impl Intermediates {
    /// Begin with none, on the node that its cluster calls `node`.
    pub(crate) fn start(
        node: NodeId,
        cluster: Option<Arc<Cluster>>,
        arena: Arena,
        config: IntermediatesConfig,
        metrics: Arc<Metrics>,
    ) -> Self {
        let let_go = LetGo::start(cluster.clone());
        Self { node, cluster, arena, config, metrics, kept: Mutex::default(), let_go }
    }

    /// Where tensors are on this node.
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Keep `tensor` for steps of `tenant` until then. None where it is better sent at once: it is small, or there is no room for it.
    pub(crate) fn keep(&self, tenant: &TenantId, tensor: &Tensor, until: Instant) -> Option<Index> {
        let bytes = tensor.data().len();
        if bytes < KEPT_BYTES_MIN {
            return None;
        }
        let mut kept = self.lock();
        let own_bytes = kept.bytes();
        let share_bytes = share_of_free_bytes(
            self.arena.bytes_max(),
            // The tensor is in the arena already, as somebody else's.
            self.arena.used_bytes().saturating_sub(bytes as u64),
            own_bytes,
            self.config.free_percent_max,
        );
        if own_bytes.saturating_add(bytes as u64) > share_bytes || kept.len() >= self.config.len_max {
            self.metrics.intermediates.refused.inc();
            return None;
        }
        let number = kept.add(tenant, tensor.data(), until);
        self.metrics.intermediates.kept(bytes, (kept.len(), kept.bytes()));
        Some(Index { node: self.node, number })
    }

    /// The bytes of an intermediate of `tenant`: from where they are in memory, or from the node that has them.
    pub(crate) async fn take(&self, tenant: &TenantId, index: Index, bytes: u64) -> Result<Buffer, Fault> {
        let (data, metrics) = if index.node == self.node {
            (self.find(tenant, index.number)?, &self.metrics.intermediates.found_bytes)
        } else {
            let cluster = self.cluster.as_ref().ok_or_else(|| lost(index, "this node is in no cluster"))?;
            let data = serve::take(cluster, &self.arena, tenant, index, bytes).await?;
            (data, &self.metrics.intermediates.taken_bytes)
        };
        if data.len() as u64 != bytes {
            let text = format!("intermediate {index} has {} bytes, and {bytes} were expected", data.len());
            return Err(Fault::new(ErrorCode::Internal, text));
        }
        metrics.inc_by(bytes);
        Ok(data)
    }

    /// The bytes of one that is here.
    fn find(&self, tenant: &TenantId, number: u64) -> Result<Buffer, Fault> {
        let index = Index { node: self.node, number };
        self.lock().get(tenant, number).ok_or_else(|| lost(index, "it was let go of, or has expired"))
    }

    /// Nobody will read these of `tenant` any more.
    fn forget(&self, tenant: &TenantId, number: u64) {
        let mut kept = self.lock();
        let gone = kept.remove(tenant, number);
        self.metrics.intermediates.usage(kept.len(), kept.bytes());
        drop(kept);
        drop(gone);
    }

    /// Let go of what has expired, for as long as there is somebody who keeps anything.
    pub(crate) async fn sweep(this: Weak<Self>) {
        let mut tick = interval(SWEEP_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let Some(this) = this.upgrade() else { return };
            let mut kept = this.lock();
            let gone = kept.expire(Instant::now());
            this.metrics.intermediates.expired.inc_by(gone.len() as u64);
            this.metrics.intermediates.usage(kept.len(), kept.bytes());
            drop(kept);
            drop(gone);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An intermediate cannot be had.
fn lost(index: Index, why: &str) -> Fault {
    let text =
        format!("intermediate {index}, which another step has left, is not there any more: {why}; try again");
    Fault::new(ErrorCode::IntermediateLost, text)
}

#[cfg(test)]
mod tests;
