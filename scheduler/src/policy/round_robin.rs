//! Devices strictly in turn.

use super::cycle::Cycle;
use super::line::Line;
use super::{Placement, Placer, Policy, Request};
use crate::View;
use weir_types::InvocationId;

/// `round-robin` of seed 001, chapter 6: the oldest waiting invocation waits for the next device in
/// turn, even if other devices are free.
pub struct RoundRobin {
    placer: Placer,
    line: Line,
    cycle: Cycle,
}

impl RoundRobin {
    /// Creates the policy with a victim selection.
    #[must_use]
    pub fn new(placer: Placer) -> Self {
        Self { placer, line: Line::default(), cycle: Cycle::default() }
    }
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn arrived(&mut self, request: Request, _view: &View) {
        self.line.push(request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement> {
        let (place, head) = self.line.head(view)?;
        let device = self.cycle.next(now_ns, view, &self.placer, head)?;
        if !self.placer.can_start(now_ns, view, device, head) {
            return None;
        }
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
