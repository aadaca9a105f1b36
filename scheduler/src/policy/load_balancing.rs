//! What today's platforms do: the invocation that waits longest goes to the device that is free.

use super::line::Line;
use super::plain::Plain;
use super::{Placement, Placer, Policy, Request};
use crate::View;
use weir_types::InvocationId;

/// `lb` of seed 000: in the order of arrival, whatever is in memory where.
///
/// Of several free devices, the one with the most dispatches so far gets it. One that fits nowhere holds up those behind it.
pub struct LoadBalancing {
    placer: Placer,
    plain: Plain,
    line: Line,
}

impl LoadBalancing {
    /// With this choice of victims.
    #[must_use]
    pub fn new(placer: Placer) -> Self {
        Self { placer, plain: Plain::default(), line: Line::default() }
    }
}

impl Policy for LoadBalancing {
    fn name(&self) -> &'static str {
        "lb"
    }

    fn arrived(&mut self, request: Request, _view: &View) {
        if request.models.is_empty() { self.plain.push(request) } else { self.line.push(request) }
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement> {
        if let Some(placement) = self.plain.next(view) {
            return Some(placement);
        }
        let (place, head) = self.line.head(view)?;
        let device = view.open().find(|device| self.placer.fit(now_ns, view, *device, head).is_some())?;
        self.placer.place(now_ns, view, device, self.line.take(place)?).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<Request> {
        let waiting = self.line.remove(invocation).map(|(_, request)| request);
        waiting.or_else(|| self.plain.remove(invocation))
    }

    fn waiting(&self) -> usize {
        self.plain.len() + self.line.len()
    }

    fn keeps_order(&self) -> bool {
        true
    }
}
