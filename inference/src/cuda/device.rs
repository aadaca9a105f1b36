//! What all models on a device share.

use super::kernels::Kernels;
use super::slots::Slots;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use weir_device::Arena;
use weir_device::cuda::{BlockPool, Context, CudaError, Devices, PinnedRing, TensorStore, TransferEngine};
use weir_kernels::Target;

/// Blocks of pinned memory that copies of weights go through.
const RING_BLOCKS: usize = 16;

/// How a device is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuConfig {
    /// Which of the driver's.
    pub(super) ordinal: u32,
    /// Memory for weights and for what runs work in, together.
    pub(super) memory_bytes_max: u64,
    /// Runs at once.
    pub(super) slots: usize,
}

/// A device that is held.
pub(super) struct Gpu {
    /// Before what lies in their memory.
    pub(super) slots: Slots,
    pub(super) tensors: TensorStore,
    pub(super) kernels: Kernels,
    pub(super) pool: Arc<BlockPool>,
    pub(super) context: Arc<Context>,
    pub(super) target: Target,
    pub(super) arena: Arena,
    began: Instant,
}

impl Gpu {
    pub(super) fn open(devices: &Devices, config: &GpuConfig, arena: &Arena) -> Result<Self, CudaError> {
        let context = devices.open(config.ordinal)?;
        let info = context.info();
        let (major, minor) = info.compute_capability;
        let target = Target {
            compute_capability: major * 10 + minor,
            multiprocessors: info.multiprocessors,
            shared_bytes_max: info.shared_bytes_max,
        };
        let capacity_bytes = config.memory_bytes_max.min(context.memory()?.free_bytes);
        let pool = BlockPool::new(&context, capacity_bytes)?;
        let ring = PinnedRing::new(&context, RING_BLOCKS)?;
        let engine = Arc::new(TransferEngine::new(&context, &ring)?);
        let tensors = TensorStore::new(&pool, &engine)?;
        let kernels = Kernels::new(&context, target.compute_capability);
        let slots = Slots::new(&pool, config.slots)?;
        Ok(Self {
            slots,
            tensors,
            kernels,
            pool,
            context,
            target,
            arena: arena.clone(),
            began: Instant::now(),
        })
    }

    /// Nanoseconds since the device was opened.
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Do what takes memory, once more if there is none and something that nobody needs can make way.
    pub(super) fn make_room<T>(
        &self,
        mut take: impl FnMut() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match take() {
            Err(CudaError::OutOfMemory(lacking)) if self.tensors.reclaim(lacking.missing_bytes) > 0 => take(),
            other => other,
        }
    }

    /// Let go of what nobody needs.
    pub(super) fn trim(&self) {
        self.tensors.reclaim(u64::MAX);
        self.slots.settle(self.now_ns());
        self.pool.trim(0);
    }
}
