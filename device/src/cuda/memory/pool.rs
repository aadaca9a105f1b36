//! Physical memory in blocks.
#![allow(unsafe_code, reason = "the driver is called")]

use super::allocation::device_full;
use super::block::{BLOCK_BYTES, Block, properties};
use super::span::Owner;
use crate::cuda::context::Context;
use crate::cuda::error::{CudaError, OutOfMemory};
use cudarc::driver::sys::CUmemAllocationGranularity_flags_enum as Granularity;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The blocks of a device that may be used, by all of its ranges together. Blocks that come back are kept for the next who asks.
#[derive(Debug)]
pub struct BlockPool {
    context: Arc<Context>,
    blocks_max: usize,
    state: Mutex<State>,
}

/// What a pool has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    /// The most that it may have.
    pub capacity_bytes: u64,
    /// What ranges hold.
    pub used_bytes: u64,
    /// What lies idle, held from the driver.
    pub idle_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Blocks by whose bytes are in them; nobody's have come from the driver.
    idle: HashMap<Option<Owner>, Vec<Block>>,
    idle_len: usize,
    /// Blocks lent, or about to be.
    lent: usize,
}

impl BlockPool {
    /// A pool of at most `capacity_bytes` of the device, rounded down to blocks. Holds none yet.
    pub fn new(context: &Arc<Context>, capacity_bytes: u64) -> Result<Arc<Self>, CudaError> {
        let info = context.info();
        if !info.maps_memory {
            return Err(CudaError::Invalid(format!(
                "{} cannot map memory into reserved addresses",
                info.name
            )));
        }
        let (mut granularity, properties) = (0, properties(context));
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
        let blocks_max = usize::try_from(capacity_bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        Ok(Arc::new(Self { context: Arc::clone(context), blocks_max, state: Mutex::default() }))
    }

    /// The device whose memory it is.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What it has now.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let state = self.state();
        PoolUsage {
            capacity_bytes: bytes(self.blocks_max),
            used_bytes: bytes(state.lent),
            idle_bytes: bytes(state.idle_len),
        }
    }

    /// Get idle blocks from the driver until `bytes` are held in all, or as many as there can be: getting them takes some milliseconds per hundred megabytes,
    /// which whoever needs them later does not have to wait for.
    pub fn warm(&self, bytes: u64) -> Result<(), CudaError> {
        loop {
            let usage = self.usage();
            let held = usage.used_bytes + usage.idle_bytes;
            if held + BLOCK_BYTES > bytes.min(usage.capacity_bytes) {
                return Ok(());
            }
            let block =
                Block::new(&self.context).map_err(|error| device_full(&self.context, error, bytes - held))?;
            let mut state = self.state();
            state.idle_len += 1;
            state.idle.entry(None).or_default().push(block);
        }
    }

    /// Give the driver back what lies idle, but for `keep_bytes` of it.
    pub fn trim(&self, keep_bytes: u64) {
        let mut gone = Vec::new();
        let mut state = self.state();
        while bytes(state.idle_len) > keep_bytes {
            let Some(block) = state.take_any() else { break };
            gone.push(block);
        }
        drop(state);
        // Released outside the lock: that takes a while.
        drop(gone);
    }

    /// Take `count` blocks for `owner`, all or none. With each it says whether it may hold bytes of somebody else.
    pub(super) fn take(&self, count: usize, owner: Owner) -> Result<Vec<(Block, bool)>, CudaError> {
        let mut blocks = self.reserve(count, owner)?;
        while blocks.len() < count {
            match Block::new(&self.context) {
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

    /// Take back blocks with bytes of `owner` in them.
    pub(super) fn put(&self, blocks: Vec<Block>, owner: Owner) {
        let mut state = self.state();
        state.lent = state.lent.saturating_sub(blocks.len());
        state.idle_len += blocks.len();
        state.idle.entry(Some(owner)).or_default().extend(blocks);
    }

    /// Count `count` blocks as lent, and take those of them that lie idle, the owner's own first.
    fn reserve(&self, count: usize, owner: Owner) -> Result<Vec<(Block, bool)>, CudaError> {
        let mut state = self.state();
        let free = self.blocks_max - state.lent.min(self.blocks_max);
        if count > free {
            return Err(CudaError::OutOfMemory(OutOfMemory {
                asked_bytes: bytes(count),
                missing_bytes: bytes(count - free),
                used_bytes: bytes(state.lent),
                capacity_bytes: bytes(self.blocks_max),
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

    /// Undo a [`reserve`](Self::reserve) of `count` blocks. Those that others' bytes may be in are given back to the driver.
    fn cancel(&self, blocks: Vec<(Block, bool)>, count: usize, owner: Owner) {
        let mut state = self.state();
        state.lent = state.lent.saturating_sub(count);
        let own = blocks.into_iter().filter_map(|(block, foreign)| (!foreign).then_some(block));
        let own: Vec<_> = own.collect();
        state.idle_len += own.len();
        state.idle.entry(Some(owner)).or_default().extend(own);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts and lists are whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_of(&mut self, owner: Option<Owner>) -> Option<Block> {
        let blocks = self.idle.get_mut(&owner)?;
        let block = blocks.pop();
        if blocks.is_empty() {
            self.idle.remove(&owner);
        }
        self.idle_len -= usize::from(block.is_some());
        block
    }

    fn take_any(&mut self) -> Option<Block> {
        let owner = *self.idle.keys().next()?;
        self.take_of(owner)
    }
}

fn bytes(blocks: usize) -> u64 {
    (blocks as u64).saturating_mul(BLOCK_BYTES)
}
