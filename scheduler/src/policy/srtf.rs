//! Shortest run time first.

use super::cycle::Cycle;
use super::line::Line;
use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::View;
use std::collections::BTreeSet;
use weir_types::InvocationId;

/// `srtf` of the KaaS thesis, chapter 6: the waiting invocation with the shortest run time goes to
/// the next free device. Run times are those expected on arrival. Long invocations starve while
/// enough short ones arrive.
///
/// This policy is work-conserving; [`Planned`](super::Planned) implements the thesis as printed.
pub struct Srtf {
    placer: RoomFinder,
    line: Line,
    /// Expected run time and place in the line.
    order: BTreeSet<(u64, u64)>,
    cycle: Cycle,
}

impl Srtf {
    /// Creates the policy with a victim selection.
    #[must_use]
    pub fn new(placer: RoomFinder) -> Self {
        let (line, order, cycle) = Default::default();
        Self { placer, line, order, cycle }
    }
}

impl Policy for Srtf {
    fn name(&self) -> &'static str {
        "srtf"
    }

    fn arrived(&mut self, request: PlacementRequest, view: &View) {
        let invocation = request.invocation;
        let run_time_ns = view.expected_run_time_ns(&request);
        self.line.push(request);
        if let Some(place) = self.line.place_of(invocation) {
            self.order.insert((run_time_ns, place));
        }
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        view.open().next()?;
        let may_start =
            |place: u64| self.line.get(place).filter(|request| view.tenants().may_start(request.tenant));
        let (key, head) = self.order.iter().find_map(|key| Some((*key, may_start(key.1)?)))?;
        let device = self.cycle.next_free(now_ns, view, &self.placer, head)?;
        self.cycle.used(device);
        self.order.remove(&key);
        self.placer.place(now_ns, view, device, self.line.take(key.1)?).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        let (place, request) = self.line.remove(invocation)?;
        self.order.retain(|(_, other)| *other != place);
        Some(request)
    }

    fn waiting(&self) -> usize {
        self.line.len()
    }
}
