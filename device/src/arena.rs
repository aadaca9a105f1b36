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

mod tenants;
pub use tenants::{ArenaScope, ShareReservation};

use crate::block::MemoryBlock;
use crate::buffer::{Buffer, BufferMut};
use crate::class::{CLASSES, SizeClass, class_of};
use crate::shared::SharedMemory;
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tenants::{TenantShare, TenantShares};
use weir_types::TenantId;

/// Returns to a pool between two sweeps of its idle blocks.
const RETURNS_PER_SWEEP: u32 = 1_024;

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

/// Idle blocks of one size; the most recently used is taken first.
#[derive(Default)]
struct Pool {
    idle: Vec<MemoryBlock>,
    /// The fewest idle blocks since the last sweep: this many blocks, from the front, were not
    /// needed.
    idle_len_min: usize,
    returns: u32,
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
            let unused = lock(pool).take_unused();
            self.node.give_back(unused);
        }
    }

    /// Frees all idle blocks.
    pub fn trim(&self) {
        for pool in &self.node.pools {
            let idle = lock(pool).take_all();
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
        let unused = lock(pool).put(block);
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
        let block = lock(self.node.pools.get(class.index?)?).take()?;
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

impl Pool {
    fn take(&mut self) -> Option<MemoryBlock> {
        let block = self.idle.pop()?;
        self.idle_len_min = self.idle_len_min.min(self.idle.len());
        Some(block)
    }

    /// Adds `block`; returns the blocks to free if a sweep is due.
    fn put(&mut self, block: MemoryBlock) -> Vec<MemoryBlock> {
        self.idle.push(block);
        self.returns += 1;
        if self.returns < RETURNS_PER_SWEEP {
            return Vec::new();
        }
        self.take_unused()
    }

    fn take_unused(&mut self) -> Vec<MemoryBlock> {
        let unused = self.idle.drain(..self.idle_len_min).collect();
        self.idle_len_min = self.idle.len();
        self.returns = 0;
        unused
    }

    fn take_all(&mut self) -> Vec<MemoryBlock> {
        self.idle_len_min = 0;
        std::mem::take(&mut self.idle)
    }
}

fn lock(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    // A pool is consistent between any two statements, so a panic while it was locked has not
    // broken it.
    pool.lock()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn freed_block_is_reused() {
        let arena = Arena::new(8 << 20);
        let first = arena.buffer(600_000).unwrap().freeze();
        let address = first.as_ptr();
        let bytes = arena.used_bytes();
        drop(first);
        assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (0, bytes));
        let second = arena.buffer(590_000).unwrap().freeze();
        assert_eq!((second.as_ptr(), arena.used_bytes(), arena.pooled_bytes()), (address, bytes, 0));
    }

    #[test]
    fn reused_block_is_zeroed() {
        let arena = Arena::new(8 << 20);
        for len in [100, 5_000, 600_000] {
            let mut secret = arena.buffer(len).unwrap();
            secret.fill(7);
            drop(secret);
            let mut streamed = arena.with_capacity(len).unwrap();
            streamed.extend_from_slice(&[7; 10]).unwrap();
            drop(streamed);
            assert!(arena.buffer(len).unwrap().iter().all(|byte| *byte == 0), "{len}");
        }
    }

    #[test]
    fn limit_holds_and_idle_blocks_make_room() {
        let arena = Arena::new(1 << 20);
        let half = arena.buffer(512 << 10).unwrap();
        let error = arena.buffer(600 << 10).unwrap_err();
        assert_eq!((error.asked_bytes, error.used_bytes, error.bytes_max), (600 << 10, 512 << 10, 1 << 20));
        drop(half);
        assert_eq!(arena.pooled_bytes(), 512 << 10);
        let _other_size = arena.buffer(600 << 10).unwrap();
        assert_eq!(arena.pooled_bytes(), 0, "the idle block should have been given back");
        assert!(arena.buffer(usize::MAX).is_err());
    }

    #[test]
    fn sweep_frees_only_blocks_idle_since_the_last_sweep() {
        let arena = Arena::new(64 << 20);
        let four: Vec<_> = (0..4).map(|_| arena.buffer(1 << 20).unwrap()).collect();
        drop(four);
        arena.sweep();
        assert_eq!(arena.pooled_bytes(), 4 << 20, "they were used since the last sweep");
        drop(arena.buffer(1 << 20).unwrap());
        arena.sweep();
        assert_eq!(arena.pooled_bytes(), 1 << 20, "one was used, three were not");
        arena.trim();
        assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (0, 0));
    }

    #[test]
    fn returned_blocks_trigger_sweeps() {
        let arena = Arena::new(64 << 20);
        let burst: Vec<_> = (0..8).map(|_| arena.buffer(1 << 20).unwrap()).collect();
        drop(burst);
        for _ in 0..2 * RETURNS_PER_SWEEP {
            drop(arena.buffer(1 << 20).unwrap());
        }
        assert_eq!(arena.pooled_bytes(), 1 << 20);
    }

    #[test]
    fn shared_block_is_readable_at_its_offset_until_freed() {
        let arena = Arena::new(64 << 20);
        let before = arena.copy_of(&[1; 100 << 10]).unwrap();
        let file = arena.share().unwrap();
        assert_eq!((arena.shared_offset(&before), arena.share().is_ok()), (None, true));
        let small = arena.copy_of(&[2; 100]).unwrap();
        assert_eq!(arena.shared_offset(&small), None);

        let (first, second) =
            (arena.copy_of(&[3; 300 << 10]).unwrap(), arena.copy_of(&[4; 300 << 10]).unwrap());
        for (buffer, value) in [(&first, 3), (&second, 4)] {
            let offset = arena.shared_offset(&buffer[1000..]).unwrap();
            let mut read = vec![0; 290 << 10];
            file.read_exact_at(&mut read, offset).unwrap();
            assert!(read.iter().all(|byte| *byte == value), "{value}");
        }
        assert!(file.write_at(&[0], 0).is_err(), "it can only be read");

        let offset = arena.shared_offset(&first).unwrap();
        drop((first, second));
        arena.trim();
        assert_eq!(file.metadata().unwrap().blocks(), 0, "the memory should have been given back");
        let mut read = [9; 10];
        file.read_exact_at(&mut read, offset).unwrap();
        assert_eq!(read, [0; 10]);
        let fresh = arena.buffer(300 << 10).unwrap();
        assert!(fresh.iter().all(|byte| *byte == 0) && arena.shared_offset(&fresh) != Some(offset));
    }

    #[test]
    fn reserved_bytes_count_until_released() {
        let arena = Arena::new(1 << 20);
        drop(arena.buffer(600 << 10).unwrap());
        arena.reserve(1 << 20).unwrap();
        assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (1 << 20, 0));
        assert!(arena.reserve(1).is_err() && arena.buffer(1).is_err());
        arena.release(1 << 20);
        arena.buffer(1).unwrap();
    }

    fn shared_by(names: [&str; 2]) -> (Arena, [Arena; 2]) {
        let arena = Arena::with_shares(1 << 20, |_| 512 << 10);
        let tenants = names.map(|name| arena.tenant(&TenantId::new(name).unwrap()));
        (arena, tenants)
    }

    #[test]
    fn tenant_with_its_whole_share_leaves_the_rest_to_others() {
        let (arena, [ours, theirs]) = shared_by(["ours", "theirs"]);
        let held = ours.buffer(500 << 10).unwrap().freeze();
        let error = ours.buffer(100 << 10).unwrap_err();
        assert_eq!((error.scope, error.bytes_max), (ArenaScope::Tenant, 512 << 10));
        assert!(error.to_string().contains("arena_bytes_max of [node.tenants]"), "{error}");
        assert_eq!(ours.reserve(100 << 10).unwrap_err().scope, ArenaScope::Tenant);
        let others = theirs.buffer(500 << 10).unwrap();
        let error = arena.buffer(100 << 10).unwrap_err();
        assert_eq!((error.asked_bytes, error.scope), (100 << 10, ArenaScope::Node));
        assert!(!error.to_string().contains("tenant"), "{error}");
        drop(held);
        assert_eq!(ours.buffer(500 << 10).unwrap().len(), 500 << 10);
        drop(others);
        assert!(arena.tenants_used_bytes().iter().all(|(_, bytes)| *bytes == 0));
    }

    #[test]
    fn slices_and_growth_count_against_the_share_until_dropped() {
        let (arena, [ours, theirs]) = shared_by(["ours", "theirs"]);
        let used = |name: &str| {
            let tenants = arena.tenants_used_bytes();
            tenants.into_iter().find(|(tenant, _)| tenant.as_str() == name).unwrap().1
        };
        let mut body = ours.with_capacity(0).unwrap();
        body.extend_from_slice(&[1; 200 << 10]).unwrap();
        let bytes = used("ours");
        assert!((200 << 10..=256 << 10).contains(&bytes), "{bytes}");
        let part = body.freeze().slice(..1);
        assert_eq!((used("ours"), used("theirs")), (bytes, 0));
        drop(part);
        assert_eq!((used("ours"), arena.pooled_bytes()), (0, bytes));
        // A block that one tenant has returned counts for the tenant that takes it.
        let taken = theirs.buffer(200 << 10).unwrap();
        assert_eq!((used("ours"), used("theirs"), arena.pooled_bytes()), (0, bytes, 0));
        drop(taken);
        ours.reserve(512 << 10).unwrap();
        assert!(ours.buffer(1).is_err() && theirs.buffer(1).is_ok());
        ours.release(512 << 10);
        assert_eq!((used("ours"), arena.used_bytes()), (0, 0));
    }

    #[test]
    fn bytes_that_the_arena_refuses_do_not_count_against_the_share() {
        let (arena, [ours, _]) = shared_by(["ours", "theirs"]);
        let all = arena.buffer(1 << 20).unwrap();
        assert_eq!(ours.buffer(1).unwrap_err().scope, ArenaScope::Node);
        assert_eq!(ours.reserve(1).unwrap_err().scope, ArenaScope::Node);
        drop(all);
        assert!(ours.buffer(512 << 10).is_ok());
    }

    #[test]
    fn share_of_the_whole_arena_is_not_counted() {
        let arena = Arena::with_shares(1 << 20, |_| 1 << 20);
        let tenant = arena.tenant(&TenantId::default());
        let _held = tenant.buffer(1 << 20).unwrap();
        assert_eq!((tenant.share.is_none(), arena.tenants_used_bytes()), (true, Vec::new()));
        assert!(Arena::new(1).tenant(&TenantId::default()).share.is_none());
    }

    proptest! {
        #[test]
        fn counts_add_up_after_any_operations(steps in prop::collection::vec((0_u8..8, 0_usize..2_000_000), 1..60)) {
            let arena = Arena::new(16 << 20);
            let mut alive = Vec::new();
            for (step, len) in steps {
                match step {
                    0 => arena.sweep(),
                    1 => arena.trim(),
                    2 | 3 if !alive.is_empty() => drop(alive.swap_remove(len % alive.len())),
                    _ => if let Ok(buffer) = arena.buffer(len) { alive.push(buffer.freeze()) },
                }
                let held: u64 = alive.iter().map(|b| class_of(b.len()).unwrap().block_bytes as u64).sum();
                prop_assert_eq!(arena.used_bytes(), held);
                prop_assert!(arena.used_bytes() + arena.pooled_bytes() <= arena.bytes_max());
            }
            alive.clear();
            arena.trim();
            prop_assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (0, 0));
        }
    }
}
