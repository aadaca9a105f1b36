//! A placement that is held.

use super::Placements;
use crate::devices::Ordinal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_types::InvocationId;

/// A placement. Dropping it ends the invocation as far as the scheduler is concerned.
pub(crate) struct Placed {
    pub(super) placements: Arc<Placements>,
    pub(super) invocation: InvocationId,
    pub(super) by: By,
}

/// Where on this node a call was placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    /// The call, or the one that it is part of.
    pub(crate) invocation: InvocationId,
    /// The device that its models are granted on; none if it was granted none.
    pub(crate) device: Option<Ordinal>,
}

/// Who placed an invocation, and is told of its end.
pub(super) enum By {
    /// The scheduler that this node asks.
    Scheduler,
    /// Whoever sent it here, and tells the scheduler itself; or nobody, where it could not run where it was to.
    Grant,
    /// It was not asked for.
    Nobody,
}

impl Drop for Placed {
    fn drop(&mut self) {
        match self.by {
            By::Scheduler => self.placements.over(self.invocation),
            By::Grant => self.placements.lock().books.finish(self.invocation),
            By::Nobody => {
                // It held nothing of a device.
                self.placements.unasked.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
        self.placements.freed.notify_waiters();
    }
}
