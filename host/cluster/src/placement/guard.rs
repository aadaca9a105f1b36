//! A placement in use.

use super::Placements;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use weir_types::InvocationId;
use weir_types::Ordinal;

/// A placement. Dropping the guard ends the invocation for the scheduler, once the device has ended
/// the invocation's remaining runs.
pub struct PlacementGuard {
    pub(super) placements: Arc<Placements>,
    pub(super) invocation: InvocationId,
    pub(super) origin: PlacementOrigin,
    pub(super) end: AtomicU8,
}

/// How a call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// Dropped before it had an outcome.
    Cancelled,
    Succeeded,
    Failed,
}

impl PlacementGuard {
    /// Records the outcome of the call, which is reported when the guard drops. A call without an
    /// outcome counts as cancelled.
    pub fn ended(&self, has_succeeded: bool) {
        let end = if has_succeeded { CallEnd::Succeeded } else { CallEnd::Failed };
        self.end.store(end as u8, Ordering::Relaxed);
    }

    fn end(&self) -> CallEnd {
        let end = self.end.load(Ordering::Relaxed);
        [CallEnd::Succeeded, CallEnd::Failed]
            .into_iter()
            .find(|known| *known as u8 == end)
            .unwrap_or(CallEnd::Cancelled)
    }
}

/// The device of this node on which a call was placed.
#[derive(Debug, Clone, Copy)]
pub struct LocalPlacement {
    /// The call, or the call that it is part of.
    pub invocation: InvocationId,
    /// The device on which its models are granted; `None` if no models are granted.
    pub device: Option<Ordinal>,
    /// Whether the call is a workflow that is not placed as a whole: each of its steps is placed
    /// separately.
    pub has_separate_steps: bool,
}

impl LocalPlacement {
    /// The placement of a whole call on a device.
    pub(super) fn new(invocation: InvocationId, device: Option<Ordinal>) -> Self {
        Self { invocation, device, has_separate_steps: false }
    }

    /// The coordination of a workflow whose steps are placed separately.
    pub fn of_separate_steps(invocation: InvocationId) -> Self {
        Self { invocation, device: None, has_separate_steps: true }
    }
}

/// The placer of an invocation, which has to learn of its end.
pub(super) enum PlacementOrigin {
    /// The scheduler that this node uses.
    Scheduler,
    /// The call runs here because it could not run on the node of its placement. The scheduler that
    /// placed it does not track it here.
    Fallback,
    /// Placed here without asking the scheduler.
    Unasked,
}

impl Drop for PlacementGuard {
    fn drop(&mut self) {
        match self.origin {
            PlacementOrigin::Scheduler => self.placements.over(self.invocation, self.end()),
            PlacementOrigin::Fallback => self.placements.over_unreported(self.invocation),
            PlacementOrigin::Unasked => {
                // It had no models on a device.
                self.placements.unasked.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
