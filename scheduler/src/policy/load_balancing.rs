//! What today's platforms do: the invocation that waits longest goes to the device that is free.

use super::line::Line;
use super::{Placement, Placer, Policy, Request};
use crate::View;
use weir_types::InvocationId;

/// `lb` of seed 000: in the order of arrival, whatever is in memory where.
///
/// Of several free devices, the one with the most dispatches so far gets it. One that fits nowhere holds up those behind it.
pub struct LoadBalancing {
    placer: Placer,
    line: Line,
}

impl LoadBalancing {
    /// With this choice of victims.
    #[must_use]
    pub fn new(placer: Placer) -> Self {
        Self { placer, line: Line::default() }
    }
}

impl Policy for LoadBalancing {
    fn name(&self) -> &'static str {
        "lb"
    }

    fn arrived(&mut self, request: Request, _view: &View) {
        self.line.push(request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement> {
        let (place, head) = self.line.head(view)?;
        let device = view.open().find(|device| self.placer.fit(now_ns, view, *device, head).is_some())?;
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
