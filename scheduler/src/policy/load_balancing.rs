//! First come, first served, as on today's platforms: the oldest waiting invocation goes to a free
//! device.

use super::line::Line;
use super::{Placement, Placer, Policy, Request};
use crate::View;
use weir_types::InvocationId;

/// `lb` of seed 000: in the order of arrival, ignoring resident models.
///
/// Of several free devices, the device with the most dispatches is chosen. An invocation that fits
/// nowhere blocks the invocations behind it.
pub struct LoadBalancing {
    placer: Placer,
    line: Line,
}

impl LoadBalancing {
    /// Creates the policy with a victim selection.
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
        let device = view.open().find(|device| self.placer.can_start(now_ns, view, *device, head))?;
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
