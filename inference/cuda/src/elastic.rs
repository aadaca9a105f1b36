//! Elastic device memory: memory that was not used for some time returns to the driver.

use crate::device::Gpu;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

/// Interval between adjustments of the memory.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time for which weights stay on the device after the last model that had them has left it.
pub(crate) const WEIGHTS_NS: u64 = 10_000_000_000;

/// Time after the last load for which memory stays mapped for the next one.
pub(crate) const MAPPED_NS: u64 = 60_000_000_000;

/// State between the adjustments of a device.
#[derive(Debug, Default)]
pub(crate) struct Elastic {
    loaded_at_ns: AtomicU64,
    /// Idle bytes of the pool at the last adjustment.
    idle_bytes: AtomicU64,
}

impl Gpu {
    /// Adjusts the memory every second, on a thread that ends with the device.
    pub(crate) fn keep_elastic(self: &Arc<Self>) -> io::Result<()> {
        let gpu = Arc::downgrade(self);
        Builder::new().name("memory".to_owned()).stack_size(256 << 10).spawn(move || adjust(&gpu))?;
        Ok(())
    }

    /// Records that a model was loaded now.
    pub(crate) fn note_load(&self) {
        self.elastic.loaded_at_ns.store(self.now_ns(), Relaxed);
    }

    /// Returns memory that was not used for some time to the driver: of run slots, of weights
    /// without a model, of intermediates, and of blocks that were idle since the last call. While
    /// models are loaded now and then, memory is mapped ahead of the next load; afterwards, that
    /// memory returns, too.
    pub(crate) fn adjust_memory(&self, now_ns: u64) {
        self.slots.settle(now_ns);
        self.tensors.sweep(now_ns, WEIGHTS_NS);
        self.intermediates.settle(now_ns);
        let since_load_ns = now_ns.saturating_sub(self.elastic.loaded_at_ns.load(Relaxed));
        if since_load_ns >= MAPPED_NS {
            self.tensors.release_spare();
        } else {
            self.map_ahead();
        }
        let idle_bytes = self.pool.usage().idle_bytes;
        let idle_before_bytes = self.elastic.idle_bytes.load(Relaxed);
        self.pool.trim(idle_bytes.saturating_sub(idle_before_bytes));
        self.elastic.idle_bytes.store(self.pool.usage().idle_bytes, Relaxed);
    }
}

fn adjust(gpu: &Weak<Gpu>) {
    loop {
        std::thread::sleep(INTERVAL);
        let Some(gpu) = gpu.upgrade() else { return };
        gpu.adjust_memory(gpu.now_ns());
    }
}
