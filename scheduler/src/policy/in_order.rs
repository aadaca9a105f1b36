//! Policies that serve invocations in the order of arrival.

use super::line::Line;
use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::{DeviceKey, View};
use weir_types::InvocationId;

/// Places the oldest waiting invocation on the device that `C` chooses. An invocation that fits on
/// no device blocks all later invocations.
pub struct InOrder<C> {
    placer: RoomFinder,
    line: Line,
    choice: C,
}

/// The choice of a device for the oldest waiting invocation.
pub trait DeviceSelector: Default + Send {
    /// Name of the policy in settings and reports.
    const NAME: &'static str;

    /// A device that can start `request` now, where it then starts; `None` leaves it waiting.
    fn choose(
        &mut self,
        now_ns: u64,
        view: &View,
        placer: &RoomFinder,
        request: &PlacementRequest,
    ) -> Option<DeviceKey>;
}

impl<C: DeviceSelector> InOrder<C> {
    /// Creates the policy with a victim selection.
    #[must_use]
    pub fn new(placer: RoomFinder) -> Self {
        Self { placer, line: Line::default(), choice: C::default() }
    }
}

impl<C: DeviceSelector> Policy for InOrder<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn arrived(&mut self, request: PlacementRequest, _view: &View) {
        self.line.push(request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        let (place, head) = self.line.head(view)?;
        let device = self.choice.choose(now_ns, view, &self.placer, head)?;
        self.placer.place(now_ns, view, device, self.line.take(place)?).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        self.line.remove(invocation).map(|(_, request)| request)
    }

    fn waiting(&self) -> usize {
        self.line.len()
    }

    fn keeps_order(&self) -> bool {
        true
    }
}
