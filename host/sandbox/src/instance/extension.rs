//! A later deadline, for guests that may run for longer once they have answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;

/// A later deadline of a guest, which takes effect once it is granted. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DeadlineExtension(Arc<ExtensionState>);

#[derive(Debug)]
struct ExtensionState {
    deadline: Instant,
    is_granted: AtomicBool,
}

impl DeadlineExtension {
    /// Creates an extension to `deadline`, which is not granted yet.
    pub fn new(deadline: Instant) -> Self {
        Self(Arc::new(ExtensionState { deadline, is_granted: AtomicBool::new(false) }))
    }

    /// Grants the extension, unless the guest was stopped before.
    pub fn grant(&self) {
        self.0.is_granted.store(true, Ordering::Release);
    }

    /// The later deadline, once granted.
    pub(super) fn granted(&self) -> Option<Instant> {
        self.0.is_granted.load(Ordering::Acquire).then_some(self.0.deadline)
    }
}
