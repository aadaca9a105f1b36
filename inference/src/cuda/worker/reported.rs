//! The memory of a device as its workers report it.

use super::message::MemoryReport;
use std::sync::{Arc, Mutex, PoisonError};

/// What was reported last. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct ReportedMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// What weights and runs may take together.
    limit_bytes: u64,
    last: Mutex<Option<MemoryReport>>,
}

impl ReportedMemory {
    /// Of a device of which weights and runs may take so much; nothing is reported yet.
    pub(in crate::cuda) fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Shared { limit_bytes, last: Mutex::default() }))
    }

    /// A worker has measured the memory of the device.
    pub(super) fn note(&self, report: MemoryReport) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// Memory of the device that is in use outside of the pool for weights and runs.
    pub(in crate::cuda) fn outside_bytes(&self) -> u64 {
        self.last().map_or(0, |report| report.outside_bytes)
    }

    /// Of memory that is configured as a share of the limit, what there is of it beside what others have; but for `accounted_bytes` of these, which are
    /// accounted for otherwise.
    pub(in crate::cuda) fn available_bytes(&self, configured_bytes: u64, accounted_bytes: u64) -> u64 {
        let limit_bytes = self.0.limit_bytes;
        let Some(MemoryReport { capacity_bytes, .. }) = self.last() else { return configured_bytes };
        let room_bytes = capacity_bytes.saturating_add(accounted_bytes).min(limit_bytes);
        let share = u128::from(configured_bytes) * u128::from(room_bytes) / u128::from(limit_bytes.max(1));
        u64::try_from(share).unwrap_or(configured_bytes)
    }

    fn last(&self) -> Option<MemoryReport> {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_their_share_of_what_others_leave() {
        let memory = ReportedMemory::new(1_000);
        assert_eq!((memory.available_bytes(750, 0), memory.outside_bytes()), (750, 0));
        memory.note(MemoryReport { outside_bytes: 650, capacity_bytes: 400 });
        assert_eq!((memory.available_bytes(750, 0), memory.outside_bytes()), (300, 650));
        // What the cache counts as a model's is not counted twice.
        assert_eq!((memory.available_bytes(750, 200), memory.available_bytes(750, 700)), (450, 750));
        memory.note(MemoryReport { outside_bytes: 10, capacity_bytes: 1_000 });
        assert_eq!(memory.available_bytes(750, 0), 750);
    }
}
