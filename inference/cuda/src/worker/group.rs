//! Group of a node's GPUs, which spill intermediates to each other.

use super::DeviceWorker;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// GPUs of one node. Devices opened with the same group spill intermediates to each other if they
/// can read each other's memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct GpuGroup(Arc<Mutex<BTreeMap<u32, Weak<DeviceWorker>>>>);

impl GpuGroup {
    /// Registers a worker, which replaces the former worker of its device.
    pub(super) fn join(&self, worker: &Arc<DeviceWorker>) {
        self.0.lock().insert(worker.config.gpu.ordinal, Arc::downgrade(worker));
    }

    /// Returns the workers that can read the memory of `worker`, in ascending order of their
    /// device-resident intermediates.
    pub(super) fn siblings_of(&self, worker: &DeviceWorker) -> Vec<Arc<DeviceWorker>> {
        // The handles are dropped outside the lock, because one of them may be the last handle of a
        // worker.
        let all: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        let is_sibling = |other: &Arc<DeviceWorker>| other.ended.get().is_none() && other.reads(worker);
        let mut siblings: Vec<_> = all.into_iter().filter(is_sibling).collect();
        siblings.sort_by_key(|sibling| sibling.config.hand_overs.counted().kept_bytes);
        siblings
    }
}

impl fmt::Debug for GpuGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuGroup").field(&self.0.lock().keys().collect::<Vec<_>>()).finish()
    }
}
