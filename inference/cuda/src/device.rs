//! Device state shared by all models on the device.

use crate::chains::{Chains, CompilerConfig};
use crate::elastic::Elastic;
use crate::kernels::Kernels;
use crate::products::{LibraryConfig, ProductLibrary};
use crate::programs::ProgramCache;
use crate::slots::RunSlots;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use weir_device::Arena;
use weir_device::cuda::{
    BlockPool, CommLimits, CommStore, Context, CudaError, Devices, MeasuredMemory, PinnedCache, PinnedRing,
    TensorStore, TransferEngine, copy_threads,
};
use weir_inference::VerifiedFiles;
use weir_kernels::KernelTarget;

/// Number of pinned staging blocks for copies of weights: enough for all copy threads, and as many
/// again in transfer to the device.
const RING_BLOCKS: usize = 24;

/// Share of device memory that stays mapped for the next loads after weights are evicted, as a
/// divisor.
const SPARE_SHARE: u64 = 16;

/// Memory mapped in advance for the next load within that share, in bytes: enough for most models
/// of a service. Mapping a block takes about as long as copying it.
const MAPPED_AHEAD_BYTES: u64 = 1 << 30;

/// Maximum share of device memory kept idle for new intermediates, as a divisor. Less is kept if
/// recent intermediates have needed less.
const IDLE_SHARE: u64 = 8;

/// Configuration of an opened device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuConfig {
    /// CUDA driver ordinal of the device.
    pub ordinal: u32,
    /// Device memory for weights and run memory together, in bytes.
    pub memory_bytes_max: u64,
    /// Number of concurrent runs.
    pub slots: usize,
    /// Limits of the intermediates that runs keep on the device.
    pub intermediates: IntermediateLimits,
    /// Pinned host memory for copies of weights, in bytes, from which evicted models are reloaded;
    /// 0 disables the cache.
    pub pinned_cache_bytes_max: u64,
    /// `None`: Weir's own kernels compute all matrix products.
    pub library: Option<LibraryConfig>,
    /// `None`: all chains of elementwise operations are interpreted.
    pub compiler: Option<CompilerConfig>,
}

/// Limits of the intermediates that runs keep on a device for later runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntermediateLimits {
    /// Maximum share of the device's *free* memory, in per cent. 0 disables device-resident
    /// intermediates.
    pub free_percent_max: u64,
    /// Maximum number of intermediates.
    pub len_max: usize,
    /// Host memory for spilled intermediates in the device's worker, in bytes.
    pub spilled_bytes_max: u64,
}

impl Default for IntermediateLimits {
    fn default() -> Self {
        Self { free_percent_max: 50, len_max: 4_096, spilled_bytes_max: 256 << 20 }
    }
}

/// Memory to free when the driver runs out of memory for its own allocations, in bytes. The driver
/// does not report the required size; modules and graphs need less than this.
const OUTSIDE_BYTES: u64 = 64 << 20;

/// Opened device.
pub struct Gpu {
    /// Run slots, dropped before the memory that they use.
    pub slots: RunSlots,
    /// Intermediates that runs keep for later runs.
    pub intermediates: CommStore,
    /// Weights and constants of the models.
    pub tensors: TensorStore,
    /// Pinned copies of loaded weights.
    pub(crate) pinned: PinnedCache,
    /// Transfers to the host other than outputs.
    pub(crate) transfers: Arc<TransferEngine>,
    /// Weir's own kernels.
    pub kernels: Kernels,
    /// Weight files whose hash has been verified.
    pub(crate) verified: VerifiedFiles,
    /// cuBLASLt, if it is used.
    pub products: ProductLibrary,
    /// Compiled programs of models.
    pub(crate) programs: ProgramCache,
    /// Compiled chains of elementwise operations.
    pub chains: Chains,
    /// Memory that all of the above take from.
    pub pool: Arc<BlockPool>,
    /// Context of the process on the device.
    pub context: Arc<Context>,
    /// Device as the planner of launches sees it.
    pub target: KernelTarget,
    pub(crate) arena: Arena,
    /// Result of the last measurement.
    measured: Mutex<MeasuredMemory>,
    pub(crate) elastic: Elastic,
    began: Instant,
}

impl Gpu {
    /// Opens the device. Outputs of its runs are allocated in `arena`. Blocks for some hundred
    /// milliseconds.
    pub fn open(devices: &Devices, config: &GpuConfig, arena: &Arena) -> Result<Self, CudaError> {
        let context = devices.open(config.ordinal)?;
        let info = context.info();
        let (major, minor) = info.compute_capability;
        let target = KernelTarget {
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
        let slots = RunSlots::new(&pool, config.slots)?;
        // The libraries have allocated their memory by now.
        let measured = Mutex::new(pool.measure()?);
        Ok(Self {
            slots,
            intermediates,
            tensors,
            pinned,
            transfers: engine,
            kernels,
            verified: VerifiedFiles::default(),
            products,
            programs: ProgramCache::default(),
            chains,
            pool,
            context,
            target,
            arena: arena.clone(),
            measured,
            elastic: Elastic::default(),
            began: Instant::now(),
        })
    }

    /// Returns the nanoseconds since the device was opened.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the device memory available to the pool and the memory used outside the pool, from
    /// the last measurement.
    pub(crate) fn measured(&self) -> MeasuredMemory {
        *self.measured.lock()
    }

    /// Repeats the measurement. Call it after memory outside the pool may have been allocated.
    pub(crate) fn measure(&self) -> Result<(), CudaError> {
        let measured = self.pool.measure()?;
        *self.measured.lock() = measured;
        Ok(())
    }

    /// Repeats the measurement after an allocation failed. Returns whether the available memory has
    /// grown.
    fn has_grown(&self) -> Result<bool, CudaError> {
        let before_bytes = self.measured().capacity_bytes;
        self.measure()?;
        Ok(self.measured().capacity_bytes > before_bytes)
    }

    /// Runs a driver call that allocates memory outside the pool. If memory runs out, frees unused
    /// pool memory and retries once.
    pub(crate) fn outside_pool<T>(
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

    /// Runs an allocation. If memory runs out, frees unused memory and retries once.
    pub fn make_room<T>(&self, mut take: impl FnMut() -> Result<T, CudaError>) -> Result<T, CudaError> {
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

    /// Frees memory that intermediates have left, then unused weights and, if that is not enough,
    /// spills intermediates to the host. Returns whether any memory was freed.
    pub(crate) fn give_up(&self, bytes: u64) -> bool {
        let idle = self.intermediates.release_idle(bytes);
        let reclaimed = idle + self.tensors.reclaim(bytes.saturating_sub(idle));
        let lacking = bytes.saturating_sub(reclaimed);
        if lacking == 0 {
            return reclaimed > 0;
        }
        let relieved = self.intermediates.relieve(lacking).unwrap_or_else(|error| {
            tracing::warn!(%error, "spilling intermediates of the device failed");
            0
        });
        reclaimed > 0 || relieved > 0
    }

    /// Frees memory that intermediates have left, as far as `bytes` of weights need it.
    pub(crate) fn make_room_for_weights(&self, bytes: u64) {
        let usage = self.pool.usage();
        let free_bytes = usage.capacity_bytes.saturating_sub(usage.used_bytes);
        let free_bytes = free_bytes + self.tensors.usage().spare_bytes;
        self.intermediates.release_idle(bytes.saturating_sub(free_bytes));
    }

    /// Maps memory in advance for the next load, within the spare share.
    pub(crate) fn map_ahead(&self) {
        if let Err(error) = self.tensors.map_ahead(MAPPED_AHEAD_BYTES) {
            tracing::warn!(%error, "mapping memory ahead of the next load failed");
        }
    }

    /// Frees unused memory. Memory mapped for the next load stays mapped.
    pub fn trim(&self) {
        self.tensors.trim();
        self.intermediates.trim();
        self.slots.settle(self.now_ns());
        self.pool.trim(0);
    }
}
