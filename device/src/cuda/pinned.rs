//! Pinned host memory, which devices read and write directly.
#![allow(unsafe_code, reason = "memory from the driver is exposed as slices")]

use super::context::Context;
use super::error::CudaError;
use super::memory::BLOCK_BYTES;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The memory is pinned for every context of the process.
const PORTABLE: u32 = 1;

/// Pinned memory: devices copy from and to it at the full speed of the bus, in parallel with other
/// work. Allocating takes about a millisecond per megabyte, so the memory is allocated once and
/// kept.
pub struct PinnedMemory {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the value owns its memory exclusively, like a `Box<[u8]>`.
unsafe impl Send for PinnedMemory {}
// SAFETY: a shared reference only allows reads.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `bytes` zeroed bytes, at least one.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let bytes = bytes.max(1);
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` outlives the call; the allocation is freed on drop.
        context.call(|driver| unsafe { driver.cuMemHostAlloc(&mut address, bytes, PORTABLE) })?;
        let start = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| CudaError::Invalid("the driver allocated memory at address 0".to_owned()))?;
        // SAFETY: the memory was just allocated with this length.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), start, bytes })
    }

    /// A pinned copy of `bytes`.
    pub fn copy_of(context: &Arc<Context>, bytes: &[u8]) -> Result<Self, CudaError> {
        let mut memory = Self::new(context, bytes.len())?;
        if let Some(to) = memory.as_mut_slice().get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        Ok(memory)
    }

    /// The whole memory.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `self` owns the memory, which has this length and has been initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The whole memory, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// A part of pinned memory that is immutable while this value lives.
pub struct PinnedSlice {
    memory: Arc<PinnedMemory>,
    range: Range<usize>,
    /// The adjacent slices that this one consists of, kept as long; none for most slices.
    _parts: Vec<Arc<PinnedSlice>>,
}

impl PinnedSlice {
    /// The part `range` of `memory`; `None` if it would exceed the end.
    #[must_use]
    pub fn new(memory: Arc<PinnedMemory>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.bytes).then_some(Self {
            memory,
            range,
            _parts: Vec::new(),
        })
    }

    /// A part that `fill` writes before any other code sees it.
    ///
    /// # Safety
    /// While this slice lives, no other slice of these bytes, nor of the whole memory, is created.
    pub(super) unsafe fn filled(
        memory: &Arc<PinnedMemory>,
        range: Range<usize>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<Self> {
        let slice = Self::new(memory.clone(), range)?;
        // SAFETY: the range lies within the memory; the caller guarantees exclusive access.
        fill(unsafe { std::slice::from_raw_parts_mut(slice.start(), slice.range.len()) });
        Some(slice)
    }

    /// Whether `next` begins where this slice ends, in the same memory.
    pub(super) fn is_before(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &next.memory) && self.range.end == next.range.start
    }

    /// One slice of all `parts`; `None` if there are none, or one does not begin where the one
    /// before it ends.
    pub(super) fn joined(parts: Vec<Arc<Self>>) -> Option<Self> {
        let first = parts.first()?;
        let memory = first.memory.clone();
        let range = first.range.start..parts.last()?.range.end;
        let mut neighbours = parts.iter().zip(parts.iter().skip(1));
        neighbours.all(|(part, next)| part.is_before(next)).then_some(Self { memory, range, _parts: parts })
    }

    /// Contents of the part.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies within the memory, which is initialised, and is not written while
        // this value lives.
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
        // SAFETY: allocated in `new`; callers wait for device work that uses the memory before they
        // drop it.
        self.context
            .release("pinned memory", |driver| unsafe { driver.cuMemFreeHost(self.start.as_ptr().cast()) });
    }
}

/// A few blocks of pinned memory, through which all copies between a device and unpinned memory
/// pass. One ring serves all devices of a process.
#[derive(Debug)]
pub struct PinnedRing {
    idle: Mutex<Vec<PinnedMemory>>,
    returned: Condvar,
    blocks: usize,
}

/// A block of a ring, returned to the ring on drop.
#[derive(Debug)]
pub struct PinnedBlock {
    ring: Arc<PinnedRing>,
    /// Present until the drop.
    memory: Option<PinnedMemory>,
}

impl PinnedRing {
    /// Creates a ring of `blocks` blocks, at least one, of 2 MiB each.
    pub fn new(context: &Arc<Context>, blocks: usize) -> Result<Arc<Self>, CudaError> {
        let blocks = blocks.max(1);
        let memory = (0..blocks).map(|_| PinnedMemory::new(context, BLOCK_BYTES as usize));
        let idle = Mutex::new(memory.collect::<Result<_, _>>()?);
        Ok(Arc::new(Self { idle, returned: Condvar::new(), blocks }))
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Takes a block, if one is idle.
    pub fn try_take(self: &Arc<Self>) -> Option<PinnedBlock> {
        let memory = self.idle.lock().pop()?;
        Some(PinnedBlock { ring: self.clone(), memory: Some(memory) })
    }

    /// Takes a block, and waits up to `wait` for one.
    pub fn take(self: &Arc<Self>, wait: Duration) -> Option<PinnedBlock> {
        let mut idle = self.idle.lock();
        self.returned.wait_while_for(&mut idle, |idle| idle.is_empty(), wait);
        let memory = idle.pop()?;
        Some(PinnedBlock { ring: self.clone(), memory: Some(memory) })
    }
}

/// A part of a split block, which one thread may write while other threads write other parts.
#[derive(Debug)]
pub struct PinnedPiece {
    split: Arc<SplitBlock>,
    range: Range<usize>,
}

/// A block in pieces.
#[derive(Debug)]
struct SplitBlock {
    block: PinnedBlock,
    pieces: usize,
    /// Number of pieces that are [finished](PinnedPiece::finish).
    finished: AtomicUsize,
}

impl PinnedBlock {
    /// Splits the first `bytes` bytes into pieces of `piece_bytes`; the last piece may be shorter.
    /// There is at least one piece. The block is whole again once all pieces are
    /// [finished](PinnedPiece::finish).
    #[must_use]
    pub fn split(self, bytes: usize, piece_bytes: usize) -> Vec<PinnedPiece> {
        let bytes = bytes.min(self.as_slice().len());
        let piece_bytes = piece_bytes.max(1);
        let pieces = bytes.div_ceil(piece_bytes).max(1);
        let split = Arc::new(SplitBlock { block: self, pieces, finished: AtomicUsize::new(0) });
        let piece = |number: usize| {
            let start = number * piece_bytes;
            PinnedPiece { split: split.clone(), range: start..bytes.min(start + piece_bytes) }
        };
        (0..pieces).map(piece).collect()
    }

    /// The whole block.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], PinnedMemory::as_slice)
    }

    /// The whole block, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], PinnedMemory::as_mut_slice)
    }
}

impl PinnedPiece {
    /// Offset of the piece in its block.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.range.start
    }

    /// The piece, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let Some(memory) = &self.split.block.memory else { return &mut [] };
        // SAFETY: `split` made ranges within the memory that do not overlap, and each piece is
        // borrowed exclusively. The block cannot be read before all pieces are finished.
        unsafe {
            std::slice::from_raw_parts_mut(memory.start.as_ptr().add(self.range.start), self.range.len())
        }
    }

    /// Ends writing. Returns the whole block if this was its last piece, and no piece was dropped
    /// unfinished.
    #[must_use]
    pub fn finish(self) -> Option<PinnedBlock> {
        self.split.finished.fetch_add(1, Ordering::Relaxed);
        // Acquires the writes of all pieces, because dropping an `Arc` releases them.
        let split = Arc::into_inner(self.split)?;
        (split.finished.into_inner() == split.pieces).then_some(split.block)
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.ring.idle.lock().push(memory);
            self.ring.returned.notify_one();
        }
    }
}
