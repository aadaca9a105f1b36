//! Pool of physical memory blocks.
#![allow(unsafe_code, reason = "the driver is called")]

use super::allocation::device_full;
use super::block::{BLOCK_BYTES, DeviceBlock, properties};
use super::capacity::MeasuredMemory;
use super::span::MemoryOwner;
use crate::cuda::context::Context;
use crate::cuda::error::{CudaError, OutOfMemory};
use cudarc::driver::sys::CUmemAllocationGranularity_flags_enum as Granularity;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// The blocks that all ranges of a device may use together. Returned blocks are kept for later
/// requests.
#[derive(Debug)]
pub struct BlockPool {
    context: Arc<Context>,
    /// The most that the pool may ever have.
    limit_bytes: u64,
    state: Mutex<MemoryPoolState>,
    /// Number of existing blocks: lent, idle or in transit. The lock is held while the driver
    /// creates or releases blocks, so that a measurement sees none half-way. Locked before `state`
    /// where both are needed.
    created: Mutex<usize>,
}

/// Usage of a pool, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    /// The most that the pool may ever have.
    pub limit_bytes: u64,
    /// The most that the pool may have now: less than the limit if the device has less for the
    /// pool, by the last [measurement](BlockPool::measure).
    pub capacity_bytes: u64,
    /// Bytes that ranges hold.
    pub used_bytes: u64,
    /// Idle bytes, not returned to the driver.
    pub idle_bytes: u64,
}

#[derive(Debug, Default)]
struct MemoryPoolState {
    /// Idle blocks by last owner; `None`: fresh from the driver.
    idle: HashMap<Option<MemoryOwner>, Vec<DeviceBlock>>,
    idle_len: usize,
    /// Blocks lent, or about to be lent.
    lent: usize,
    /// The most blocks that may be lent.
    blocks_max: usize,
}

impl BlockPool {
    /// Creates an empty pool of at most `limit_bytes` of the device, rounded down to blocks.
    pub fn new(context: &Arc<Context>, limit_bytes: u64) -> Result<Arc<Self>, CudaError> {
        let info = context.info();
        if !info.maps_memory {
            return Err(CudaError::Invalid(format!(
                "{} cannot map memory into reserved addresses",
                info.name
            )));
        }
        let mut granularity = 0;
        let properties = properties(context);
        let option = Granularity::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: both outlive the call.
        context.call(|driver| unsafe {
            driver.cuMemGetAllocationGranularity(&mut granularity, &properties, option)
        })?;
        if granularity == 0 || !BLOCK_BYTES.is_multiple_of(granularity as u64) {
            return Err(CudaError::Invalid(format!(
                "{} maps memory in pieces of {granularity} bytes",
                info.name
            )));
        }
        let state = MemoryPoolState { blocks_max: blocks(limit_bytes), ..MemoryPoolState::default() };
        let context = context.clone();
        let created = Mutex::default();
        Ok(Arc::new(Self { context, limit_bytes, state: state.into(), created }))
    }

    /// The device that the memory belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Current usage.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let state = self.state();
        PoolUsage {
            limit_bytes: bytes(blocks(self.limit_bytes)),
            capacity_bytes: bytes(state.blocks_max),
            used_bytes: bytes(state.lent),
            idle_bytes: bytes(state.idle_len),
        }
    }

    /// Measures the memory that the device has for the pool, and limits the pool to it from now on:
    /// surplus idle blocks return to the driver. Lent blocks stay lent.
    ///
    /// Call it after large changes outside of the pool, and after an allocation failure. Takes some
    /// ten microseconds.
    pub fn measure(&self) -> Result<MeasuredMemory, CudaError> {
        let created = self.created();
        let measured = MeasuredMemory::new(self.context.memory()?, bytes(*created), self.limit_bytes);
        let mut state = self.state();
        state.blocks_max = blocks(measured.capacity_bytes);
        let surplus = (state.lent + state.idle_len).saturating_sub(state.blocks_max);
        let keep = bytes(state.idle_len.saturating_sub(surplus));
        drop((state, created));
        self.trim(keep);
        Ok(measured)
    }

    /// Creates idle blocks until the pool holds `bytes`, or as many as it can. Creating blocks
    /// takes some milliseconds per hundred megabytes, which later requests do not have to wait for.
    pub fn warm(&self, bytes: u64) -> Result<(), CudaError> {
        loop {
            let usage = self.usage();
            let held = usage.used_bytes + usage.idle_bytes;
            if held + BLOCK_BYTES > bytes.min(usage.capacity_bytes) {
                return Ok(());
            }
            let block = self.create().map_err(|error| device_full(&self.context, error, bytes - held))?;
            self.state().add(None, vec![block]);
        }
    }

    /// Returns idle blocks to the driver, except `keep_bytes`.
    pub fn trim(&self, keep_bytes: u64) {
        let mut gone = Vec::new();
        let mut state = self.state();
        while bytes(state.idle_len) > keep_bytes {
            let Some(block) = state.take_any() else { break };
            gone.push(block);
        }
        drop(state);
        self.release(gone);
    }

    /// Takes `count` blocks for `owner`, all or none. Each comes with a flag: whether it may hold
    /// another owner's bytes.
    pub(super) fn take(
        &self,
        count: usize,
        owner: MemoryOwner,
    ) -> Result<Vec<(DeviceBlock, bool)>, CudaError> {
        let mut blocks = self.reserve(count, owner)?;
        while blocks.len() < count {
            match self.create() {
                Ok(block) => blocks.push((block, true)),
                Err(error) => {
                    let missing = bytes(count - blocks.len());
                    self.cancel(blocks, count, owner);
                    return Err(device_full(&self.context, error, missing));
                }
            }
        }
        Ok(blocks)
    }

    /// Takes back blocks that contain bytes of `owner`.
    pub(super) fn put(&self, blocks: Vec<DeviceBlock>, owner: MemoryOwner) {
        let mut state = self.state();
        state.lent = state.lent.saturating_sub(blocks.len());
        state.add(Some(owner), blocks);
    }

    /// Counts `count` blocks as lent, and takes idle ones among them, the owner's own first.
    fn reserve(&self, count: usize, owner: MemoryOwner) -> Result<Vec<(DeviceBlock, bool)>, CudaError> {
        let mut state = self.state();
        let free = state.blocks_max.saturating_sub(state.lent);
        if count > free {
            return Err(CudaError::OutOfMemory(OutOfMemory {
                asked_bytes: bytes(count),
                missing_bytes: bytes(count - free),
                used_bytes: bytes(state.lent),
                capacity_bytes: bytes(state.blocks_max),
            }));
        }
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            if let Some(block) = state.take_of(Some(owner)) {
                blocks.push((block, false));
            } else if let Some(block) = state.take_any() {
                blocks.push((block, true));
            } else {
                break;
            }
        }
        state.lent += count;
        Ok(blocks)
    }

    /// Undoes a [`reserve`](Self::reserve) of `count` blocks. Blocks that may hold other owners'
    /// bytes return to the driver.
    fn cancel(&self, blocks: Vec<(DeviceBlock, bool)>, count: usize, owner: MemoryOwner) {
        let (foreign, own): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(_, foreign)| *foreign);
        let mut state = self.state();
        state.lent = state.lent.saturating_sub(count);
        state.add(Some(owner), own.into_iter().map(|(block, _)| block).collect());
        drop(state);
        self.release(foreign.into_iter().map(|(block, _)| block).collect());
    }

    /// Creates a block.
    fn create(&self) -> Result<DeviceBlock, CudaError> {
        let mut created = self.created();
        let block = DeviceBlock::new(&self.context)?;
        *created += 1;
        Ok(block)
    }

    /// Returns blocks to the driver, which takes a while.
    fn release(&self, blocks: Vec<DeviceBlock>) {
        let mut created = self.created();
        *created = created.saturating_sub(blocks.len());
        drop(blocks);
    }

    fn created(&self) -> MutexGuard<'_, usize> {
        self.created.lock()
    }

    fn state(&self) -> MutexGuard<'_, MemoryPoolState> {
        // Counts and lists are consistent between any two statements that can panic.
        self.state.lock()
    }
}

impl MemoryPoolState {
    fn add(&mut self, owner: Option<MemoryOwner>, blocks: Vec<DeviceBlock>) {
        // An owner without blocks would hide the blocks of others from `take_any`.
        if !blocks.is_empty() {
            self.idle_len += blocks.len();
            self.idle.entry(owner).or_default().extend(blocks);
        }
    }

    fn take_of(&mut self, owner: Option<MemoryOwner>) -> Option<DeviceBlock> {
        let blocks = self.idle.get_mut(&owner)?;
        let block = blocks.pop();
        if blocks.is_empty() {
            self.idle.remove(&owner);
        }
        self.idle_len -= usize::from(block.is_some());
        block
    }

    fn take_any(&mut self) -> Option<DeviceBlock> {
        let owner = *self.idle.keys().next()?;
        self.take_of(owner)
    }
}

fn blocks(bytes: u64) -> usize {
    usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX)
}

fn bytes(blocks: usize) -> u64 {
    (blocks as u64).saturating_mul(BLOCK_BYTES)
}
