//! The global queue of the LALB paper, with its index and visit counts.

use super::holds_all;
use crate::{DeviceView, ModelKey, PlacementRequest, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_types::InvocationId;

/// Invocations by their place in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct ArrivalQueue {
    requests: BTreeMap<u64, PlacementRequest>,
    places: HashMap<InvocationId, u64>,
    /// Places by the first model of the invocation.
    by_model: HashMap<ModelKey, BTreeSet<u64>>,
    /// Number of scans of the queue, by the place at which they ended. A scan starts at the head
    /// and visits every place before its end. Scans that ended at or before the current head are
    /// dropped.
    scans: BTreeMap<u64, u32>,
    arrivals: u64,
}

impl ArrivalQueue {
    pub(super) fn push(&mut self, request: PlacementRequest) {
        self.put_back(self.arrivals, request);
        self.arrivals += 1;
    }

    /// Returns an invocation to its former place.
    pub(super) fn put_back(&mut self, place: u64, request: PlacementRequest) {
        self.places.insert(request.invocation, place);
        if let Some(demand) = request.models.first() {
            self.by_model.entry(demand.model).or_default().insert(place);
        }
        self.requests.insert(place, request);
    }

    pub(super) fn take(&mut self, place: u64) -> Option<PlacementRequest> {
        let request = self.requests.remove(&place)?;
        self.places.remove(&request.invocation);
        if let Some(demand) = request.models.first()
            && let Some(places) = self.by_model.get_mut(&demand.model)
        {
            places.remove(&place);
            if places.is_empty() {
                self.by_model.remove(&demand.model);
            }
        }
        let head = self.requests.first_key_value().map_or(self.arrivals, |(head, _)| *head);
        while self.scans.first_key_value().is_some_and(|(end, _)| *end <= head) {
            self.scans.pop_first();
        }
        Some(request)
    }

    pub(super) fn remove(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        let place = *self.places.get(&invocation)?;
        self.take(place)
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// The first invocation after `place` that its tenant may start.
    pub(super) fn after(&self, place: Option<u64>, view: &View) -> Option<(u64, &PlacementRequest)> {
        let mut behind = self.requests.range(place.map_or(0, |place| place + 1)..);
        let (place, request) = behind.find(|(_, request)| view.tenants().may_start(request.tenant))?;
        Some((*place, request))
    }

    /// Whether the invocation at `place` was visited `limit` times.
    pub(super) fn is_forced(&self, place: u64, limit: u32) -> bool {
        let mut visits = 0;
        let mut scans = self.scans.range(place + 1..).rev();
        while visits < limit {
            let Some((_, count)) = scans.next() else { return false };
            visits = count.saturating_add(visits);
        }
        true
    }

    /// Records a scan that ended at `end`, or at the end of the queue.
    pub(super) fn note_scan(&mut self, end: Option<u64>) {
        let count = self.scans.entry(end.unwrap_or(self.arrivals)).or_default();
        *count = count.saturating_add(1);
    }

    /// The first place from `place` on whose models `device` holds and whose tenant may start.
    pub(super) fn first_hit(&self, place: u64, view: &View, device: &DeviceView) -> Option<u64> {
        let is_hit = |place: &&u64| {
            let request = &self.requests[*place];
            view.tenants().may_start(request.tenant) && holds_all(device, request)
        };
        let places = device.held().filter_map(|model| self.by_model.get(&model));
        places.filter_map(|places| places.range(place..).find(is_hit)).min().copied()
    }
}
