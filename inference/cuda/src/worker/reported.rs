//! Memory of a device, and use of its pinned cache, as reported by its workers.

use super::message::MemoryReport;
use crate::weights::PinnedLookups;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_inference::PinnedCacheFigures;

/// Last memory report. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReportedMemory(Arc<ReportedShared>);

#[derive(Debug)]
struct ReportedShared {
    /// Configured limit of weights and runs together, in bytes.
    limit_bytes: u64,
    last: Mutex<Option<MemoryReport>>,
    /// Bytes of weights in the pinned cache, and of other weights, over all loads.
    hit_bytes: AtomicU64,
    miss_bytes: AtomicU64,
}

impl ReportedMemory {
    /// Creates an empty report for a device with this limit of weights and runs.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let hit_bytes = AtomicU64::new(0);
        let miss_bytes = AtomicU64::new(0);
        Self(Arc::new(ReportedShared { limit_bytes, last: Mutex::default(), hit_bytes, miss_bytes }))
    }

    /// Records a measurement of a worker.
    pub(super) fn note(&self, report: MemoryReport) {
        *self.0.last.lock() = Some(report);
    }

    /// Counts the use of the pinned cache by a load.
    pub(super) fn note_lookups(&self, lookups: PinnedLookups) {
        self.0.hit_bytes.fetch_add(lookups.hit_bytes, Relaxed);
        self.0.miss_bytes.fetch_add(lookups.miss_bytes, Relaxed);
    }

    /// Returns the state of the pinned cache at the last report, and the counters of all workers.
    pub(crate) fn pinned_cache(&self) -> PinnedCacheFigures {
        let MemoryReport { pinned_capacity_bytes, pinned_used_bytes, .. } = self.last().unwrap_or_default();
        PinnedCacheFigures {
            capacity_bytes: pinned_capacity_bytes,
            used_bytes: pinned_used_bytes,
            hit_bytes: self.0.hit_bytes.load(Relaxed),
            miss_bytes: self.0.miss_bytes.load(Relaxed),
        }
    }

    /// Returns the device memory in use outside the pool for weights and runs, in bytes.
    pub(crate) fn outside_bytes(&self) -> u64 {
        self.last().map_or(0, |report| report.outside_bytes)
    }

    /// Returns the memory that the pool for weights and runs has taken from the device, in bytes, by
    /// the last report; `None` before it.
    pub(crate) fn pool_bytes(&self) -> Option<u64> {
        self.last().map(|report| report.pool_bytes)
    }

    /// Scales `configured_bytes`, a part of the limit, by the share of the limit that other users
    /// of the device leave. `accounted_bytes` of their memory count as available, because they are
    /// accounted for elsewhere.
    pub(crate) fn available_bytes(&self, configured_bytes: u64, accounted_bytes: u64) -> u64 {
        let limit_bytes = self.0.limit_bytes;
        let Some(MemoryReport { capacity_bytes, .. }) = self.last() else { return configured_bytes };
        let room_bytes = capacity_bytes.saturating_add(accounted_bytes).min(limit_bytes);
        let share = u128::from(configured_bytes) * u128::from(room_bytes) / u128::from(limit_bytes.max(1));
        u64::try_from(share).unwrap_or(configured_bytes)
    }

    fn last(&self) -> Option<MemoryReport> {
        *self.0.last.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_bytes_scale_with_memory_left_by_others() {
        let memory = ReportedMemory::new(1_000);
        assert_eq!((memory.available_bytes(750, 0), memory.outside_bytes()), (750, 0));
        memory.note(MemoryReport { outside_bytes: 650, capacity_bytes: 400, ..MemoryReport::default() });
        assert_eq!((memory.available_bytes(750, 0), memory.outside_bytes()), (300, 650));
        // Memory that the cache attributes to a model is not counted twice.
        assert_eq!((memory.available_bytes(750, 200), memory.available_bytes(750, 700)), (450, 750));
        memory.note(MemoryReport { outside_bytes: 10, capacity_bytes: 1_000, ..MemoryReport::default() });
        assert_eq!(memory.available_bytes(750, 0), 750);
    }

    #[test]
    fn pinned_cache_counters_add_up_over_workers() {
        let memory = ReportedMemory::new(1_000);
        assert_eq!(memory.pinned_cache(), PinnedCacheFigures::default());
        let report = MemoryReport { pinned_capacity_bytes: 500, ..MemoryReport::default() };
        for (pinned_used_bytes, hit_bytes, miss_bytes) in [(0, 0, 300), (300, 200, 10), (0, 0, 5)] {
            memory.note(MemoryReport { pinned_used_bytes, ..report });
            memory.note_lookups(PinnedLookups { hit_bytes, miss_bytes });
        }
        let capacity_bytes = 500;
        let used_bytes = 0;
        let hit_bytes = 200;
        let miss_bytes = 315;
        let expected = PinnedCacheFigures { capacity_bytes, used_bytes, hit_bytes, miss_bytes };
        assert_eq!(memory.pinned_cache(), expected);
    }
}
