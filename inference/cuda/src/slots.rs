//! Run slots: a stream, working memory, and pinned staging memory for inputs and outputs.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use weir_device::cuda::{BlockPool, CudaError, Priority, SlotMemory, StagingBuffer, Stream};

/// Initial size of each slot's staging memory in bytes, which fits the inputs and outputs of most
/// models.
pub(crate) const STAGING_BYTES: usize = 2 << 20;

/// Run slots of a device. Device threads never wait for a slot, because there are as many slots as
/// threads.
pub struct RunSlots {
    len: usize,
    idle: Mutex<Vec<RunSlot>>,
    returned: Condvar,
}

/// Run slot.
pub struct RunSlot {
    pub(crate) number: usize,
    /// Stream of the runs.
    pub stream: Arc<Stream>,
    /// Working memory of the runs.
    pub memory: SlotMemory,
    pub(crate) staging: StagingBuffer,
}

/// Slot taken for a run, returned on drop.
pub struct TakenSlot<'a> {
    slots: &'a RunSlots,
    slot: Option<RunSlot>,
}

impl RunSlots {
    /// Creates `count` slots, each with an address range for the maximum size of the pool.
    pub(crate) fn new(pool: &Arc<BlockPool>, count: usize) -> Result<Self, CudaError> {
        let bytes_max = pool.usage().limit_bytes;
        let slot = |number| {
            let stream = Arc::new(Stream::new(pool.context(), Priority::Normal)?);
            let memory = SlotMemory::new(pool, &stream, bytes_max, 0)?;
            let staging = StagingBuffer::new(pool.context(), STAGING_BYTES)?;
            Ok(RunSlot { number, stream, memory, staging })
        };
        let idle: Vec<_> = (0..count.max(1)).rev().map(slot).collect::<Result<_, CudaError>>()?;
        Ok(Self { len: idle.len(), idle: Mutex::new(idle), returned: Condvar::new() })
    }

    /// Takes the preferred slot if it is idle, because runs captured there can be repeated;
    /// otherwise takes another slot.
    pub fn take(&self, preferred: Option<usize>) -> TakenSlot<'_> {
        let mut idle = self.idle.lock();
        self.returned.wait_while(&mut idle, |idle| idle.is_empty());
        let found = idle.iter().position(|slot| Some(slot.number) == preferred);
        let slot = match found {
            Some(place) => Some(idle.swap_remove(place)),
            None => idle.pop(),
        };
        TakenSlot { slots: self, slot }
    }

    /// Releases memory that recent runs have not needed. Taken slots keep their memory. One idle slot
    /// after the other is taken for it, so that runs can take the others: unmapping a gigabyte takes
    /// longer than many runs.
    pub(crate) fn settle(&self, now_ns: u64) {
        for number in 0..self.len {
            let mut taken = TakenSlot { slots: self, slot: self.take_idle(number) };
            let Some(slot) = taken.slot() else { continue };
            if let Err(error) = slot.memory.settle(now_ns) {
                tracing::warn!(%error, slot = number, "releasing the memory of a run slot failed");
            }
        }
    }

    fn take_idle(&self, number: usize) -> Option<RunSlot> {
        let mut idle = self.idle.lock();
        let place = idle.iter().position(|slot| slot.number == number)?;
        Some(idle.swap_remove(place))
    }

    /// Returns the number of slots, including taken slots.
    pub fn count(&self) -> usize {
        self.len
    }

    /// Returns the memory mapped by idle slots, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.idle.lock().iter().map(|slot| slot.memory.held_bytes()).sum()
    }
}

impl TakenSlot<'_> {
    /// Returns the slot, which is present until the drop.
    pub fn slot(&mut self) -> Option<&mut RunSlot> {
        self.slot.as_mut()
    }
}

impl Drop for TakenSlot<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.slots.idle.lock().push(slot);
            self.slots.returned.notify_one();
        }
    }
}
