//! Intermediates of workflows whose steps are placed individually: tensors that one step leaves for
//! another, stored under a globally unique index in the memory of the node that computed them.
//!
//! A node that runs a forwarded step [keeps](Intermediates::keep) the outputs that only other steps
//! read, and responds with their indices. A later step receives the index and
//! [takes](Intermediates::take) the tensor from the node that has it, in one hop; if it runs on
//! that node, it gets a handle to the same memory. The node that coordinates the workflow therefore
//! transfers only indices, and the bytes that it needs itself. This is StreamBox's communication
//! store (Wu et al., USENIX ATC 2024), for host tensors and across nodes.
//!
//! The memory is a share of the *free* tensor memory. Tensors that do not fit, or that are too
//! small to be worth another round trip, are returned with the response. An intermediate is removed
//! when:
//! - the last step that reads it has taken it, or the run is over: the coordinating node drops its
//!   handle, which notifies the node that has the tensor;
//! - the deadline of the call passes, even if the coordinating node has failed:
//!   [`sweep`](Intermediates::sweep).
//!
//! A buffer that is being read stays in memory until the reader drops it.

mod config;
mod handle;
mod index;
mod kept;
mod release;
mod serve;

pub use handle::{Handle, stay};
pub use index::{Index, LEFT_HERE, Stands, region_of};
pub use serve::{PATH, answer};

pub use config::IntermediatesConfig;

use kept::IntermediateBytes;
use parking_lot::Mutex;
use release::ReleaseNotifier;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use weir_call::Fault;
use weir_cluster::Cluster;
use weir_device::{Arena, Buffer, share_of_free_bytes};
use weir_inference::Tensor;
use weir_telemetry::Metrics;
use weir_types::{ErrorCode, NodeId, TenantId};

/// Smaller tensors are returned with the response: a separate request would cost more than their
/// transfer.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// The interval of sweeps for expired intermediates.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The intermediates of a node, and its access to those of other nodes.
pub struct Intermediates {
    node: NodeId,
    cluster: Option<Arc<Cluster>>,
    arena: Arena,
    config: IntermediatesConfig,
    metrics: Arc<Metrics>,
    kept: Mutex<IntermediateBytes>,
    let_go: ReleaseNotifier,
}

impl Intermediates {
    /// Creates an empty store on the node with the identifier `node`.
    pub fn start(
        node: NodeId,
        cluster: Option<Arc<Cluster>>,
        arena: Arena,
        config: IntermediatesConfig,
        metrics: Arc<Metrics>,
    ) -> Self {
        let let_go = ReleaseNotifier::start(cluster.clone());
        Self { node, cluster, arena, config, metrics, kept: Mutex::default(), let_go }
    }

    /// The arena of this node's tensors.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Keeps `tensor` for steps of `tenant` until `until`. `None` if it should be sent at once: it
    /// is small, or there is no room.
    pub fn keep(&self, tenant: &TenantId, tensor: &Tensor, until: Instant) -> Option<Index> {
        let bytes = tensor.data().len();
        if bytes < KEPT_BYTES_MIN {
            return None;
        }
        let mut kept = self.kept.lock();
        let own_bytes = kept.bytes();
        let share_bytes = share_of_free_bytes(
            self.arena.bytes_max(),
            // The tensor is already in the arena, where it counts as other use.
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

    /// The bytes of an intermediate of `tenant`: shared if this node has it, and fetched otherwise.
    pub async fn take(&self, tenant: &TenantId, index: Index, bytes: u64) -> Result<Buffer, Fault> {
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

    /// The bytes of an intermediate that this node has.
    fn find(&self, tenant: &TenantId, number: u64) -> Result<Buffer, Fault> {
        let index = Index { node: self.node, number };
        self.kept.lock().get(tenant, number).ok_or_else(|| lost(index, "it was released or has expired"))
    }

    /// Removes an intermediate of `tenant`, which has no more readers.
    fn forget(&self, tenant: &TenantId, number: u64) {
        let mut kept = self.kept.lock();
        let gone = kept.remove(tenant, number);
        self.metrics.intermediates.usage(kept.len(), kept.bytes());
        drop(kept);
        drop(gone);
    }

    /// Removes expired intermediates periodically, until the store is dropped.
    pub async fn sweep(this: Weak<Self>) {
        let mut tick = interval(SWEEP_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let Some(this) = this.upgrade() else { return };
            let mut kept = this.kept.lock();
            let gone = kept.expire(Instant::now());
            this.metrics.intermediates.expired.inc_by(gone.len() as u64);
            this.metrics.intermediates.usage(kept.len(), kept.bytes());
            drop(kept);
            drop(gone);
        }
    }
}

/// The fault for an intermediate that cannot be read.
fn lost(index: Index, why: &str) -> Fault {
    let text = format!("intermediate {index}, which another step left, no longer exists: {why}; try again");
    Fault::new(ErrorCode::IntermediateLost, text)
}

#[cfg(test)]
mod tests;
