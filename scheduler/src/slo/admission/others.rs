//! Those without an SLO, who must not wait for ever.

use super::Admission;
use crate::{Request, View};
use std::collections::BTreeSet;
use weir_types::InvocationId;

/// Those that wait for the policy to start them, the first to arrive first. Kept only once somebody had an SLO.
#[derive(Debug, Default)]
pub(super) struct Others(BTreeSet<(u64, InvocationId)>);

/// After this time in the queue, one without an SLO gets a place among those that were admitted with one.
const PATIENCE_NS: u64 = 2_000_000_000;

impl Admission {
    /// One without an SLO waits.
    pub(crate) fn watch(&mut self, invocation: InvocationId, arrived_at_ns: u64) {
        self.others.0.insert((arrived_at_ns, invocation));
    }

    /// It waits no more, or not for the policy.
    pub(crate) fn unwatch(&mut self, invocation: InvocationId, arrived_at_ns: u64) {
        self.others.0.remove(&(arrived_at_ns, invocation));
    }

    /// One that has lost its patience, and that there may be a place for.
    pub(crate) fn impatient(&self, now_ns: u64) -> Option<(u64, InvocationId)> {
        let (arrived_at_ns, invocation) = *self.others.0.first()?;
        let is_impatient = arrived_at_ns.saturating_add(PATIENCE_NS) <= now_ns;
        let has_line = || self.tables.values().any(|table| !table.has_other());
        (is_impatient && has_line()).then_some((arrived_at_ns, invocation))
    }

    /// When the next will lose its patience, if that would change anything.
    pub(crate) fn impatient_at_ns(&self, now_ns: u64) -> Option<u64> {
        let (arrived_at_ns, _) = self.others.0.first()?;
        let at_ns = arrived_at_ns.saturating_add(PATIENCE_NS);
        (at_ns > now_ns && !self.tables.is_empty()).then_some(at_ns)
    }

    /// Give it a place.
    ///
    /// # Errors
    /// The request itself, if there is no line that it could join.
    #[expect(clippy::result_large_err, reason = "what has no place is handed back, not told of")]
    pub(crate) fn take_in(&mut self, now_ns: u64, view: &View, request: Request) -> Result<(), Request> {
        match self.at_the_end(now_ns, view, &request).filter(|_| !request.models.is_empty()) {
            Some(seat) => {
                self.seat(now_ns, seat);
                Ok(())
            }
            None => Err(request),
        }
    }
}
