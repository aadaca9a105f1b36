//! A queue in the order of arrival.

use crate::{PlacementRequest, View};
use std::collections::{BTreeMap, HashMap};
use weir_types::InvocationId;

/// A queue that supports removal at any place.
#[derive(Debug, Default)]
pub(super) struct Line {
    requests: BTreeMap<u64, PlacementRequest>,
    places: HashMap<InvocationId, u64>,
    arrivals: u64,
}

impl Line {
    pub(super) fn push(&mut self, request: PlacementRequest) {
        self.put_back(self.arrivals, request);
        self.arrivals += 1;
    }

    /// Returns an invocation to its former place.
    pub(super) fn put_back(&mut self, place: u64, request: PlacementRequest) {
        self.places.insert(request.invocation, place);
        self.requests.insert(place, request);
    }

    pub(super) fn take(&mut self, place: u64) -> Option<PlacementRequest> {
        let request = self.requests.remove(&place)?;
        self.places.remove(&request.invocation);
        Some(request)
    }

    /// The first invocation whose tenant may start it.
    pub(super) fn head(&self, view: &View) -> Option<(u64, &PlacementRequest)> {
        let (place, request) =
            self.requests.iter().find(|(_, request)| view.tenants().may_start(request.tenant))?;
        Some((*place, request))
    }

    /// All invocations, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &PlacementRequest)> {
        self.requests.iter().map(|(place, request)| (*place, request))
    }

    pub(super) fn get(&self, place: u64) -> Option<&PlacementRequest> {
        self.requests.get(&place)
    }

    pub(super) fn place_of(&self, invocation: InvocationId) -> Option<u64> {
        self.places.get(&invocation).copied()
    }

    pub(super) fn remove(&mut self, invocation: InvocationId) -> Option<(u64, PlacementRequest)> {
        let place = self.place_of(invocation)?;
        Some((place, self.take(place)?))
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}
