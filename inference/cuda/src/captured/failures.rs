//! Failed captures, counted and logged by the node.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tracing::warn;
use weir_device::Device;
use weir_types::ModelId;

/// Maximum number of (model, reason) pairs that are remembered as logged. The set is cleared when
/// it is full.
const LOGGED_MAX: usize = 1_024;

/// Failed captures of one device. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CaptureFailures(Arc<FailuresShared>);

#[derive(Debug)]
struct FailuresShared {
    device: Device,
    count: AtomicU64,
    logged: Mutex<HashSet<(ModelId, String)>>,
}

impl CaptureFailures {
    pub(crate) fn new(device: Device) -> Self {
        Self(Arc::new(FailuresShared { device, count: AtomicU64::new(0), logged: Mutex::default() }))
    }

    /// Counts a failure, and logs the first failure of this model for this reason.
    pub(crate) fn note(&self, model: &ModelId, why: &str) {
        let FailuresShared { device, count, .. } = &*self.0;
        count.fetch_add(1, Relaxed);
        if self.is_new(model, why) {
            warn!(%model, %device, why, "CUDA graph capture failed: runs of the model launch their kernels one by one, which takes longer");
        }
    }

    /// Returns the number of failures.
    pub(crate) fn count(&self) -> u64 {
        self.0.count.load(Relaxed)
    }

    fn is_new(&self, model: &ModelId, why: &str) -> bool {
        let mut logged = self.0.logged.lock();
        if logged.len() >= LOGGED_MAX {
            logged.clear();
        }
        logged.insert((model.clone(), why.to_owned()))
    }
}
