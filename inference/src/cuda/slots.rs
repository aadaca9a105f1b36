//! Places for runs: each a stream, memory to work in, and pinned memory for what goes in and out.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weir_device::cuda::{BlockPool, CudaError, Priority, SlotMemory, StagingBuffer, Stream};

/// Pinned memory that each has before the first run: inputs and outputs of most take no more.
pub(super) const STAGING_BYTES: usize = 2 << 20;

/// A device's places. A device thread never waits for one: there are as many as threads.
pub(super) struct Slots {
    len: usize,
    idle: Mutex<Vec<Slot>>,
    returned: Condvar,
}

/// One of them.
pub(super) struct Slot {
    pub(super) number: usize,
    pub(super) stream: Arc<Stream>,
    pub(super) memory: SlotMemory,
    pub(super) staging: StagingBuffer,
}

/// A place that is taken, until it drops.
pub(super) struct Taken<'a> {
    slots: &'a Slots,
    slot: Option<Slot>,
}

impl Slots {
    /// `count` of them, each with addresses for as much memory as the pool may ever have.
    pub(super) fn new(pool: &Arc<BlockPool>, count: usize) -> Result<Self, CudaError> {
        let bytes_max = pool.usage().limit_bytes;
        let slot = |number| {
            let stream = Arc::new(Stream::new(pool.context(), Priority::Normal)?);
            let memory = SlotMemory::new(pool, &stream, bytes_max, 0)?;
            let staging = StagingBuffer::new(pool.context(), STAGING_BYTES)?;
            Ok(Slot { number, stream, memory, staging })
        };
        let idle: Vec<_> = (0..count.max(1)).rev().map(slot).collect::<Result<_, CudaError>>()?;
        Ok(Self { len: idle.len(), idle: Mutex::new(idle), returned: Condvar::new() })
    }

    /// Take the slot of that number if it is idle, so that what was captured there can be repeated; else another.
    pub(super) fn take(&self, preferred: Option<usize>) -> Taken<'_> {
        let idle = self.returned.wait_while(self.lock(), |idle| idle.is_empty());
        let mut idle = idle.unwrap_or_else(PoisonError::into_inner);
        let found = idle.iter().position(|slot| Some(slot.number) == preferred);
        let slot = match found {
            Some(place) => Some(idle.swap_remove(place)),
            None => idle.pop(),
        };
        Taken { slots: self, slot }
    }

    /// Give up memory that runs have not needed lately. Slots that are taken keep theirs.
    pub(super) fn settle(&self, now_ns: u64) {
        for slot in self.lock().iter_mut() {
            if let Err(error) = slot.memory.settle(now_ns) {
                tracing::warn!(%error, slot = slot.number, "the memory of a slot cannot be given up");
            }
        }
    }

    /// How many there are, taken or not.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory behind the addresses of those that are idle.
    pub(super) fn held_bytes(&self) -> u64 {
        self.lock().iter().map(|slot| slot.memory.held_bytes()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken<'_> {
    /// The slot itself; there is one until the drop.
    pub(super) fn slot(&mut self) -> Option<&mut Slot> {
        self.slot.as_mut()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.slots.lock().push(slot);
            self.slots.returned.notify_one();
        }
    }
}
