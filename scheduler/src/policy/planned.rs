//! A fixed order of invocations.

use super::cycle::Cycle;
use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::View;
use std::collections::{HashMap, VecDeque};
use weir_types::InvocationId;

/// SRTF and MLFQS as the KaaS thesis prints them: the whole submission is ordered in advance,
/// future arrivals included. The head of that order blocks the rest until it arrives and a device
/// is free.
///
/// Only a simulation knows the future; this policy exists to reproduce the figures. Invocations
/// outside the plan follow it in the order of arrival.
pub struct Planned {
    placer: RoomFinder,
    order: VecDeque<InvocationId>,
    waiting: HashMap<InvocationId, PlacementRequest>,
    cycle: Cycle,
}

impl Planned {
    /// Creates the policy with a victim selection and an order.
    #[must_use]
    pub fn new(placer: RoomFinder, order: impl IntoIterator<Item = InvocationId>) -> Self {
        Self { placer, order: order.into_iter().collect(), waiting: HashMap::new(), cycle: Cycle::default() }
    }
}

impl Policy for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn arrived(&mut self, request: PlacementRequest, _view: &View) {
        if !self.order.contains(&request.invocation) {
            self.order.push_back(request.invocation);
        }
        self.waiting.insert(request.invocation, request);
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        let head = self.waiting.get(self.order.front()?)?;
        let device = self.cycle.next_free(now_ns, view, &self.placer, head)?;
        self.cycle.used(device);
        let request = self.waiting.remove(&self.order.pop_front()?)?;
        self.placer.place(now_ns, view, device, request).ok()
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        let request = self.waiting.remove(&invocation)?;
        self.order.retain(|other| *other != invocation);
        Some(request)
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
