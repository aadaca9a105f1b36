//! Bounded, pooled memory for bodies and tensors.
//!
//! The system's allocator returns a 600 KB buffer to the system at the end of each call, and faults
//! it in again at the next. The arena keeps such blocks. Blocks are released as follows:
//! - The last [`Buffer`](crate::Buffer) of the block drops: the block goes to the pool of its size,
//!   or to the system if it is small or huge.
//! - The block was idle during 1,024 returns to its pool, or between two calls of [`Arena::sweep`]:
//!   it goes to the system.
//! - [`Arena::trim`] is called, for example when a model is unloaded: every idle block goes to the
//!   system.
//! - An allocation would exceed the arena's limit: idle blocks go to the system until it fits.
//!
//! The handle that [`Arena::tenant`] returns counts its buffers against the share of a tenant, until
//! their last use ends. Idle blocks count for no tenant.

mod pool;

mod tenants;
pub use tenants::{ArenaScope, ShareReservation};

use crate::block::MemoryBlock;
use crate::buffer::{Buffer, BufferMut};
use crate::class::{CLASSES, SizeClass, class_of};
use crate::shared::SharedMemory;
use parking_lot::Mutex;
use pool::Pool;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tenants::{TenantShare, TenantShares};
use weir_types::TenantId;

/// Memory for the bodies and tensors of current requests: bounded, counted, and reused. Cheap to
/// clone.
#[derive(Clone)]
pub struct Arena {
    node: Arc<ArenaShared>,
    /// The share against which buffers count, if any.
    share: Option<Arc<TenantShare>>,
}

/// The limit of the arena or of a tenant's share, or the system, leaves no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {asked_bytes} bytes: {used_bytes} of {bytes_max} bytes {} are in use",
    .scope.counted()
)]
pub struct ArenaExhausted {
    /// The requested bytes.
    pub asked_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// The limit of the arena or of the share.
    pub bytes_max: u64,
    /// The limit that leaves no room.
    pub scope: ArenaScope,
}

struct ArenaShared {
    bytes_max: u64,
    /// Bytes of all blocks, in use or idle. Never above `bytes_max`.
    held_bytes: AtomicU64,
    /// Bytes of the idle blocks.
    pooled_bytes: AtomicU64,
    pools: [Mutex<Pool>; CLASSES],
    /// The file that large blocks are parts of, once the arena is shared.
    shared: OnceLock<Arc<SharedMemory>>,
    /// `None` if every tenant may have the whole arena.
    shares: Option<TenantShares>,
}

impl Arena {
    /// Creates an empty arena that holds at most `bytes_max` bytes, including idle ones.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self::with(bytes_max, None)
    }

    /// Creates an empty arena in which buffers of a tenant hold at most `tenant_bytes_max` bytes.
    #[must_use]
    pub fn with_shares(
        bytes_max: u64,
        tenant_bytes_max: impl Fn(&TenantId) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self::with(bytes_max, Some(TenantShares::new(Box::new(tenant_bytes_max))))
    }

    fn with(bytes_max: u64, shares: Option<TenantShares>) -> Self {
        let node = Arc::new(ArenaShared {
            bytes_max,
            held_bytes: AtomicU64::new(0),
            pooled_bytes: AtomicU64::new(0),
            pools: std::array::from_fn(|_| Mutex::default()),
            shared: OnceLock::new(),
            shares,
        });
        Self { node, share: None }
    }

    /// The same arena, for buffers that count against the share of `tenant`.
    #[must_use]
    pub fn tenant(&self, tenant: &TenantId) -> Self {
        let shares = self.node.shares.as_ref();
        let share = shares.and_then(|shares| shares.tenant(tenant, self.node.bytes_max));
        Self { node: self.node.clone(), share }
    }

    /// Bytes that buffers of each tenant hold, rounded up to block sizes. Without the tenants that may
    /// have the whole arena.
    #[must_use]
    pub fn tenants_used_bytes(&self) -> Vec<(TenantId, u64)> {
        self.node.shares.as_ref().map(TenantShares::used_bytes).unwrap_or_default()
    }

    /// Bytes that buffers of `tenant` hold, and their limit. `is_alone`: whether all buffers of the
    /// arena are the tenant's. The bytes are `None` if the tenant may have the whole arena, because
    /// they are not counted by tenant then.
    #[must_use]
    pub fn tenant_usage(&self, tenant: &TenantId, is_alone: bool) -> (Option<u64>, u64) {
        match self.tenant(tenant).share {
            Some(share) => {
                let (used, max) = share.usage();
                (Some(used), max)
            }
            None => (is_alone.then(|| self.used_bytes()), self.bytes_max()),
        }
    }

    /// Allocates large blocks (64 KiB and more) in shared memory from now on. Returns a read-only
    /// file that another process can map.
    ///
    /// # Errors
    /// The system does not support such files.
    pub fn share(&self) -> io::Result<File> {
        let shared = match self.node.shared.get() {
            Some(shared) => shared,
            None => {
                let new = Arc::new(SharedMemory::new()?);
                self.node.shared.get_or_init(|| new)
            }
        };
        shared.reader()
    }

    /// Offset of `bytes` in the [shared](Self::share) file, valid while their buffer lives; `None`
    /// if they are elsewhere.
    #[must_use]
    pub fn shared_offset(&self, bytes: &[u8]) -> Option<u64> {
        self.node.shared.get()?.offset_of(bytes)
    }

    /// A buffer of `len` zeroes, to be overwritten.
    pub fn buffer(&self, len: usize) -> Result<BufferMut, ArenaExhausted> {
        let mut buffer = self.with_capacity(len)?;
        buffer.resize_with_zeroes(len)?;
        Ok(buffer)
    }

    /// An empty buffer with room for `capacity` bytes, to be extended: for a body that streams in.
    pub fn with_capacity(&self, capacity: usize) -> Result<BufferMut, ArenaExhausted> {
        Ok(BufferMut::new(self.clone(), self.take(capacity)?))
    }

    /// A copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Result<Buffer, ArenaExhausted> {
        let mut buffer = self.with_capacity(bytes.len())?;
        buffer.extend_from_slice(bytes)?;
        Ok(buffer.freeze())
    }

    /// Bytes that buffers hold, rounded up to block sizes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.node.held_bytes.load(Ordering::Relaxed).saturating_sub(self.pooled_bytes())
    }

    /// Idle bytes, ready for the next buffer.
    #[must_use]
    pub fn pooled_bytes(&self) -> u64 {
        self.node.pooled_bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that the arena holds, including idle ones.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.node.bytes_max
    }

    /// Frees blocks that have been idle since the last sweep. Callers should sweep every few
    /// seconds, so that an arena without traffic shrinks too.
    pub fn sweep(&self) {
        for pool in &self.node.pools {
            let unused = pool.lock().take_unused();
            self.node.give_back(unused);
        }
    }

    /// Frees all idle blocks.
    pub fn trim(&self) {
        for pool in &self.node.pools {
            let idle = pool.lock().take_all();
            self.node.give_back(idle);
        }
    }

    /// Counts `bytes` of memory held outside the arena as in use, until they are
    /// [released](Self::release).
    pub fn reserve(&self, bytes: u64) -> Result<(), ArenaExhausted> {
        self.charge(bytes)?;
        self.reserve_of_node(bytes).inspect_err(|_| self.discharge(bytes))
    }

    /// Releases reserved bytes.
    pub fn release(&self, bytes: u64) {
        self.node.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.discharge(bytes);
    }

    /// Counts `bytes` of memory that the arena holds in any case against the share of this handle's
    /// tenant, until the result is dropped.
    pub fn reserve_share(&self, bytes: u64) -> Result<ShareReservation, ArenaExhausted> {
        ShareReservation::new(self.share.clone(), bytes)
    }

    /// A block for `len` bytes: an idle one, or else a new one.
    pub(crate) fn take(&self, len: usize) -> Result<MemoryBlock, ArenaExhausted> {
        let class = class_of(len).ok_or_else(|| self.out_of_memory(len as u64))?;
        let bytes = class.block_bytes as u64;
        self.charge(bytes)?;
        self.take_of_node(class).map_err(|error| {
            self.discharge(bytes);
            ArenaExhausted { asked_bytes: len as u64, ..error }
        })
    }

    /// Takes back an unused block.
    pub(crate) fn put(&self, block: MemoryBlock) {
        self.discharge(block.bytes() as u64);
        let index = class_of(block.bytes()).and_then(|class| class.index);
        let Some(pool) = index.and_then(|index| self.node.pools.get(index)) else {
            self.node.held_bytes.fetch_sub(block.bytes() as u64, Ordering::Relaxed);
            return;
        };
        self.node.pooled_bytes.fetch_add(block.bytes() as u64, Ordering::Relaxed);
        let unused = pool.lock().put(block);
        self.node.give_back(unused);
    }

    fn take_of_node(&self, class: SizeClass) -> Result<MemoryBlock, ArenaExhausted> {
        if let Some(block) = self.take_idle(class) {
            return Ok(block);
        }
        let bytes = class.block_bytes as u64;
        self.reserve_of_node(bytes)?;
        MemoryBlock::new(class.block_bytes, self.node.shared.get()).ok_or_else(|| {
            self.node.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.out_of_memory(bytes)
        })
    }

    /// Counts bytes of the arena. Idle blocks make room.
    fn reserve_of_node(&self, bytes: u64) -> Result<(), ArenaExhausted> {
        if self.try_reserve(bytes) {
            return Ok(());
        }
        self.trim();
        if self.try_reserve(bytes) { Ok(()) } else { Err(self.out_of_memory(bytes)) }
    }

    /// Counts bytes of the tenant's share.
    fn charge(&self, bytes: u64) -> Result<(), ArenaExhausted> {
        self.share.as_ref().map_or(Ok(()), |share| share.reserve(bytes))
    }

    fn discharge(&self, bytes: u64) {
        if let Some(share) = &self.share {
            share.release(bytes);
        }
    }

    fn take_idle(&self, class: SizeClass) -> Option<MemoryBlock> {
        let block = self.node.pools.get(class.index?)?.lock().take()?;
        self.node.pooled_bytes.fetch_sub(block.bytes() as u64, Ordering::Relaxed);
        Some(block)
    }

    fn try_reserve(&self, bytes: u64) -> bool {
        let fits = |held: u64| held.checked_add(bytes).filter(|held| *held <= self.node.bytes_max);
        self.node.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn out_of_memory(&self, asked_bytes: u64) -> ArenaExhausted {
        ArenaExhausted {
            asked_bytes,
            used_bytes: self.used_bytes(),
            bytes_max: self.node.bytes_max,
            scope: ArenaScope::Node,
        }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena")
            .field("bytes_max", &self.node.bytes_max)
            .field("used_bytes", &self.used_bytes())
            .field("pooled_bytes", &self.pooled_bytes())
            .finish()
    }
}

impl ArenaShared {
    /// Returns idle blocks to the system. The counts decrease only once the memory is freed.
    fn give_back(&self, blocks: Vec<MemoryBlock>) {
        for block in blocks {
            let bytes = block.bytes() as u64;
            drop(block);
            self.pooled_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
