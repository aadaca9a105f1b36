//! A placement in use.

use super::Placements;
use crate::devices::Ordinal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_types::InvocationId;

/// A placement. Dropping it ends the invocation for the scheduler.
pub(crate) struct Placed {
    pub(super) placements: Arc<Placements>,
    pub(super) invocation: InvocationId,
    pub(super) by: By,
}

/// The device of this node on which a call was placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    /// The call, or the call that it is part of.
    pub(crate) invocation: InvocationId,
    /// The device on which its models are granted; `None` if no models are granted.
    pub(crate) device: Option<Ordinal>,
}

/// The placer of an invocation, which has to learn of its end.
pub(super) enum By {
    /// The scheduler that this node uses.
    Scheduler,
    /// The node that forwarded the invocation, which reports the end to the scheduler itself. Also
    /// used for a call that runs here because it could not run where it was placed.
    Grant,
    /// Placed here without asking the scheduler.
    Nobody,
}

impl Drop for Placed {
    fn drop(&mut self) {
        match self.by {
            By::Scheduler => self.placements.over(self.invocation),
            By::Grant => self.placements.lock().books.finish(self.invocation),
            By::Nobody => {
                // It had no models on a device.
                self.placements.unasked.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
        self.placements.freed.notify_waiters();
    }
}
