//! The next free device, in turn.

use super::cycle::Cycle;
use super::line::Line;
use super::{Placement, Placer, Policy, Request};
use crate::View;
use weir_types::InvocationId;

/// `balance` of seed 001, chapter 6: the oldest waiting invocation goes to the next free device, in
/// turn.
pub struct Balance {
    placer: Placer,
    line: Line,
    cycle: Cycle,
}

impl Balance {
    /// Creates the policy with a victim selection.
    #[must_use]
    pub fn new(placer: Placer) -> Self {
        Self { placer, line: Line::default(), cycle: Cycle::default() }
    }
}

impl Policy for Balance {
    fn name(&self) -> &'static str {
        "balance"
    }

    fn arrived(&mut self, request: Request, _view: &View) {
        self.line.push(request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement> {
        let (place, head) = self.line.head(view)?;
        let device = self.cycle.next_free(now_ns, view, &self.placer, head)?;
        self.cycle.used(device);
        self.placer.place(now_ns, view, device, self.line.take(place)?).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<Request> {
        self.line.remove(invocation).map(|(_, request)| request)
    }

    fn waiting(&self) -> usize {
        self.line.len()
    }

    fn keeps_order(&self) -> bool {
        true
    }
}
