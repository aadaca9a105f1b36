//! Memory of the host that devices read and write by themselves.
#![allow(unsafe_code, reason = "memory of the driver's is handed out as slices")]

use super::context::Context;
use super::error::CudaError;
use super::memory::BLOCK_BYTES;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The memory is pinned for every context of the process.
const PORTABLE: u32 = 1;

/// Pinned memory: devices copy from and to it at the full speed of the bus, beside everything else. Getting it takes about a millisecond per
/// megabyte, so it is got once and kept.
pub struct PinnedMemory {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory alone, like a `Box<[u8]>`.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared, it can only be read.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Get `bytes` bytes, at least one; zeroes.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let bytes = bytes.max(1);
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` outlives the call; what is allocated is freed on drop.
        context.call(|driver| unsafe { driver.cuMemHostAlloc(&mut address, bytes, PORTABLE) })?;
        let start = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| CudaError::Invalid("the driver allocated memory at address 0".to_owned()))?;
        // SAFETY: the memory is ours and as long.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), start, bytes })
    }

    /// A pinned copy of `bytes`.
    pub fn copy_of(context: &Arc<Context>, bytes: &[u8]) -> Result<Self, CudaError> {
        let mut memory = Self::new(context, bytes.len())?;
        if let Some(to) = memory.as_mut_slice().get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        Ok(memory)
    }

    /// All of it.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is ours, as long, and was written whole.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All of it, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// A part of pinned memory that is not written any more.
pub struct PinnedSlice {
    memory: Arc<PinnedMemory>,
    range: Range<usize>,
}

impl PinnedSlice {
    /// That part of `memory`; none where it would go past the end.
    #[must_use]
    pub fn new(memory: Arc<PinnedMemory>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.bytes).then_some(Self { memory, range })
    }

    /// A part that the caller fills before anybody else sees it.
    ///
    /// # Safety
    /// No other slice of these bytes is made, nor one of all of the memory, as long as this one lives.
    pub(super) unsafe fn filled(
        memory: &Arc<PinnedMemory>,
        range: Range<usize>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<Self> {
        let slice = Self::new(Arc::clone(memory), range)?;
        // SAFETY: within the memory, and nobody else's: the caller's part.
        fill(unsafe { std::slice::from_raw_parts_mut(slice.start(), slice.range.len()) });
        Some(slice)
    }

    /// What is there.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the memory, which was written whole, and is not written while this lives.
        unsafe { std::slice::from_raw_parts(self.start(), self.range.len()) }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the range lies within the memory.
        unsafe { self.memory.start.as_ptr().add(self.range.start) }
    }
}

impl fmt::Debug for PinnedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedSlice({} bytes)", self.range.len())
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.bytes)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; whoever gave a device work with it has waited for that.
        self.context
            .release("pinned memory", |driver| unsafe { driver.cuMemFreeHost(self.start.as_ptr().cast()) });
    }
}

/// A few blocks of pinned memory, through which everything passes between a device and memory that is not pinned. One ring serves all devices
/// of a process.
#[derive(Debug)]
pub struct PinnedRing {
    idle: Mutex<Vec<PinnedMemory>>,
    returned: Condvar,
    blocks: usize,
}

/// A block of a ring, which it goes back to on drop.
#[derive(Debug)]
pub struct PinnedBlock {
    ring: Arc<PinnedRing>,
    /// Present until the drop.
    memory: Option<PinnedMemory>,
}

impl PinnedRing {
    /// A ring of `blocks` blocks, at least one, of 2 MiB each.
    pub fn new(context: &Arc<Context>, blocks: usize) -> Result<Arc<Self>, CudaError> {
        let blocks = blocks.max(1);
        let memory = (0..blocks).map(|_| PinnedMemory::new(context, BLOCK_BYTES as usize));
        let idle = Mutex::new(memory.collect::<Result<_, _>>()?);
        Ok(Arc::new(Self { idle, returned: Condvar::new(), blocks }))
    }

    /// How many blocks it has.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Take a block, if one is idle.
    pub fn try_take(self: &Arc<Self>) -> Option<PinnedBlock> {
        let memory = self.lock().pop()?;
        Some(PinnedBlock { ring: Arc::clone(self), memory: Some(memory) })
    }

    /// Take a block, waiting up to `wait` for one.
    pub fn take(self: &Arc<Self>, wait: Duration) -> Option<PinnedBlock> {
        let idle = self.returned.wait_timeout_while(self.lock(), wait, |idle| idle.is_empty());
        let memory = idle.unwrap_or_else(PoisonError::into_inner).0.pop()?;
        Some(PinnedBlock { ring: Arc::clone(self), memory: Some(memory) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PinnedMemory>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinnedBlock {
    /// All of it.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], PinnedMemory::as_slice)
    }

    /// All of it, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], PinnedMemory::as_mut_slice)
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.ring.lock().push(memory);
            self.ring.returned.notify_one();
        }
    }
}
