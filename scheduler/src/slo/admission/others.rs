//! Invocations without an SLO, which must not starve.

use super::AdmissionQueue;
use crate::{PlacementRequest, View};
use std::collections::BTreeSet;
use weir_types::InvocationId;

/// Invocations without an SLO that wait for the policy, in order of arrival. Tracked only after the
/// first invocation with an SLO.
#[derive(Debug, Default)]
pub(super) struct Others(BTreeSet<(u64, InvocationId)>);

/// Waiting time after which an invocation without an SLO is appended to the timetable of a device.
/// From then on, capacity is reserved for it, as for admitted invocations with an SLO.
pub(super) const PATIENCE_NS: u64 = 2_000_000_000;

impl AdmissionQueue {
    /// Tracks a waiting invocation without an SLO.
    pub(crate) fn watch(&mut self, invocation: InvocationId, arrived_at_ns: u64) {
        self.others.0.insert((arrived_at_ns, invocation));
    }

    /// Stops tracking an invocation that no longer waits for the policy.
    pub(crate) fn unwatch(&mut self, invocation: InvocationId, arrived_at_ns: u64) {
        self.others.0.remove(&(arrived_at_ns, invocation));
    }

    /// The oldest invocation whose waiting time exceeds the limit. `None` if every timetable
    /// already contains an invocation without an SLO.
    pub(crate) fn impatient(&self, now_ns: u64) -> Option<(u64, InvocationId)> {
        let (arrived_at_ns, invocation) = *self.others.0.first()?;
        let is_impatient = arrived_at_ns.saturating_add(PATIENCE_NS) <= now_ns;
        let has_line = || self.tables.values().any(|table| !table.has_other());
        (is_impatient && has_line()).then_some((arrived_at_ns, invocation))
    }

    /// When the next invocation exceeds the waiting time. `None` if no device has a timetable.
    pub(crate) fn impatient_at_ns(&self, now_ns: u64) -> Option<u64> {
        let (arrived_at_ns, _) = self.others.0.first()?;
        let at_ns = arrived_at_ns.saturating_add(PATIENCE_NS);
        (at_ns > now_ns && !self.tables.is_empty()).then_some(at_ns)
    }

    /// Appends a request without an SLO to the timetable of a device.
    ///
    /// # Errors
    /// The request itself, if no timetable accepts it.
    #[expect(clippy::result_large_err, reason = "the error returns the request itself")]
    pub(crate) fn take_in(
        &mut self,
        now_ns: u64,
        view: &View,
        request: PlacementRequest,
    ) -> Result<(), PlacementRequest> {
        match self.at_the_end(now_ns, view, &request).filter(|_| !request.models.is_empty()) {
            Some(seat) => {
                self.seat(now_ns, seat);
                Ok(())
            }
            None => Err(request),
        }
    }
}
