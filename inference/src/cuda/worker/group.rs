//! The GPUs of a node, which take each other's tensors in.

use super::Worker;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// GPUs of one node: those that are opened with the same group make room for what runs have left on others, where they reach each other's memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct GpuGroup(Arc<Mutex<BTreeMap<u32, Weak<Worker>>>>);

impl GpuGroup {
    /// A worker holds its device now, instead of the former one.
    pub(super) fn join(&self, worker: &Arc<Worker>) {
        self.lock().insert(worker.config.gpu.ordinal, Arc::downgrade(worker));
    }

    /// Those that read what `worker` has where it is, the one that has least of tensors that were left there first.
    pub(super) fn siblings_of(&self, worker: &Worker) -> Vec<Arc<Worker>> {
        // Given out of the lock: the last handle of a worker may be among them.
        let all: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        let is_sibling = |other: &Arc<Worker>| other.ended.get().is_none() && other.reads(worker);
        let mut siblings: Vec<_> = all.into_iter().filter(is_sibling).collect();
        siblings.sort_by_key(|sibling| sibling.config.hand_overs.counted().kept_bytes);
        siblings
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Worker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for GpuGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuGroup").field(&self.lock().keys().collect::<Vec<_>>()).finish()
    }
}
