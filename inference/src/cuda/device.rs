//! What all models on a device share.

use super::chains::{Chains, CompilerConfig};
use super::kernels::Kernels;
use super::products::{LibraryConfig, ProductLibrary};
use super::slots::Slots;
use crate::integrity::Verified;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use weir_device::Arena;
use weir_device::cuda::{
    BlockPool, CommLimits, CommStore, Context, CudaError, Devices, Measured, PinnedCache, PinnedRing,
    TensorStore, TransferEngine, copy_threads,
};
use weir_kernels::Target;

/// Blocks of pinned memory that copies of weights go through: for all copy threads, and as many with the device.
const RING_BLOCKS: usize = 24;

/// The share of a device's memory that stays mapped for loads when weights have left it.
const SPARE_SHARE: u64 = 16;

/// Memory that is mapped ahead of the next load, within that share.
const MAPPED_AHEAD_BYTES: u64 = 256 << 20;

/// The share of a device's memory that is kept at hand for tensors that runs leave there, beyond those that there are.
const IDLE_SHARE: u64 = 64;

/// How a device is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuConfig {
    /// Which of the driver's.
    pub(super) ordinal: u32,
    /// Memory for weights and for what runs work in, together.
    pub(super) memory_bytes_max: u64,
    /// Runs at once.
    pub(super) slots: usize,
    /// What runs may leave there for others.
    pub(super) intermediates: IntermediateLimits,
    /// Memory of the host that is pinned for copies of weights, so that models that come back are copied straight from there; 0 for none.
    pub(super) pinned_cache_bytes_max: u64,
    /// None where Weir's own kernels are to compute all products of matrices.
    pub(super) library: Option<LibraryConfig>,
    /// None where all chains of elementwise operations are to be interpreted.
    pub(super) compiler: Option<CompilerConfig>,
}

/// How much tensors may take that runs leave on a device for other runs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntermediateLimits {
    /// The share of the device's *free* memory that they may take, in per cent. At 0 none stays.
    pub free_percent_max: u64,
    /// The most of them.
    pub len_max: usize,
    /// Memory of the host, in the worker of the device, for those that had to make room.
    pub spilled_bytes_max: u64,
}

impl Default for IntermediateLimits {
    fn default() -> Self {
        Self { free_percent_max: 50, len_max: 4_096, spilled_bytes_max: 256 << 20 }
    }
}

/// What is given up where the driver has no room for something of its own, which does not say how much it takes: modules and graphs take less.
const OUTSIDE_BYTES: u64 = 64 << 20;

/// A device that is held.
pub(super) struct Gpu {
    /// Before what lies in their memory.
    pub(super) slots: Slots,
    /// What runs have left for others.
    pub(super) intermediates: CommStore,
    pub(super) tensors: TensorStore,
    /// Pinned copies of weights that were loaded.
    pub(super) pinned: PinnedCache,
    /// What goes to the host besides outputs.
    pub(super) transfers: Arc<TransferEngine>,
    pub(super) kernels: Kernels,
    /// Files of weights that are known to be what they are named by.
    pub(super) verified: Verified,
    pub(super) products: ProductLibrary,
    pub(super) chains: Chains,
    pub(super) pool: Arc<BlockPool>,
    pub(super) context: Arc<Context>,
    pub(super) target: Target,
    pub(super) arena: Arena,
    /// By the last measurement.
    measured: Mutex<Measured>,
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
        let pool = BlockPool::new(&context, config.memory_bytes_max.min(context.memory()?.total_bytes))?;
        let capacity_bytes = pool.measure()?.capacity_bytes;
        let ring = PinnedRing::new(&context, RING_BLOCKS)?;
        let engine = Arc::new(TransferEngine::new(&context, &ring, copy_threads())?);
        let tensors = TensorStore::new(&pool, &engine, capacity_bytes / SPARE_SHARE)?;
        tensors.map_ahead(MAPPED_AHEAD_BYTES)?;
        let GpuConfig { ordinal, intermediates: limits, library, compiler, pinned_cache_bytes_max, .. } =
            config;
        let pinned = PinnedCache::new(&context, *pinned_cache_bytes_max)?;
        let spilled = Arena::new(limits.spilled_bytes_max);
        let limits = CommLimits {
            free_percent_max: limits.free_percent_max,
            entries_max: limits.len_max,
            idle_bytes_max: capacity_bytes / IDLE_SHARE,
        };
        let intermediates = CommStore::new(u64::from(*ordinal), limits, &pool, &engine, &spilled)?;
        let kernels = Kernels::new(&context, target.compute_capability);
        let products = ProductLibrary::open(library.as_ref(), &context, capacity_bytes);
        let chains = Chains::open(compiler.as_ref(), &context, target.compute_capability);
        let slots = Slots::new(&pool, config.slots)?;
        // What the libraries take they have by now.
        let measured = Mutex::new(pool.measure()?);
        Ok(Self {
            slots,
            intermediates,
            tensors,
            pinned,
            transfers: engine,
            kernels,
            verified: Verified::default(),
            products,
            chains,
            pool,
            context,
            target,
            arena: arena.clone(),
            measured,
            began: Instant::now(),
        })
    }

    /// Nanoseconds since the device was opened.
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// What the device has for weights and runs, and what others have of it, by the last measurement.
    pub(super) fn measured(&self) -> Measured {
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measure that anew, since memory outside of the pool has been taken or may have been.
    pub(super) fn measure(&self) -> Result<(), CudaError> {
        let measured = self.pool.measure()?;
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner) = measured;
        Ok(())
    }

    /// The same when there was no room. Gives whether there is more than was known.
    fn has_grown(&self) -> Result<bool, CudaError> {
        let before_bytes = self.measured().capacity_bytes;
        self.measure()?;
        Ok(self.measured().capacity_bytes > before_bytes)
    }

    /// Have the driver make something that takes memory outside of the pool: once more, if there is none, after the pool has given back what is idle
    /// or not needed.
    pub(super) fn outside_pool<T>(
        &self,
        mut make: impl FnMut() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match make() {
            Err(error) if error.is_out_of_memory() => {
                self.give_up(OUTSIDE_BYTES);
                self.pool.trim(0);
                make()
            }
            other => other,
        }
    }

    /// Do what takes memory, once more if there is none and something that nobody needs can make way.
    pub(super) fn make_room<T>(
        &self,
        mut take: impl FnMut() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match take() {
            Err(CudaError::OutOfMemory(lacking)) => {
                let has_grown = self.has_grown()?;
                if self.give_up(lacking.missing_bytes) || has_grown {
                    return take();
                }
                Err(lacking.into())
            }
            other => other,
        }
    }

    /// Give up what nobody needs; and, where that is not enough, move what runs have left for others to the host. Gives whether that was anything.
    pub(super) fn give_up(&self, bytes: u64) -> bool {
        let reclaimed = self.tensors.reclaim(bytes);
        let lacking = bytes.saturating_sub(reclaimed);
        if lacking == 0 {
            return reclaimed > 0;
        }
        let relieved = self.intermediates.relieve(lacking).unwrap_or_else(|error| {
            tracing::warn!(%error, "what runs have left on the device cannot make room");
            0
        });
        reclaimed > 0 || relieved > 0
    }

    /// Map memory for the next load, where that may be spare.
    pub(super) fn map_ahead(&self) {
        if let Err(error) = self.tensors.map_ahead(MAPPED_AHEAD_BYTES) {
            tracing::warn!(%error, "no memory is mapped ahead of the next load");
        }
    }

    /// Let go of what nobody needs. Memory for the next load stays mapped.
    pub(super) fn trim(&self) {
        self.tensors.trim();
        self.intermediates.trim();
        self.slots.settle(self.now_ns());
        self.pool.trim(0);
    }
}
