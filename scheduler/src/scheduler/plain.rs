//! Queue of invocations without models: each starts at once on the node that runs the fewest
//! invocations, of the nodes with devices. Nodes without devices only accept invocations.

use crate::{PlacementDecision, PlacementRequest, View, Why};
use smallvec::SmallVec;
use std::collections::VecDeque;
use weir_types::InvocationId;

/// Invocations that wait only for a node to come up or for their tenant's turn.
#[derive(Debug, Default)]
pub(super) struct Plain(VecDeque<PlacementRequest>);

impl Plain {
    pub(super) fn push(&mut self, request: PlacementRequest) {
        self.0.push_back(request);
    }

    pub(super) fn next(&mut self, view: &View) -> Option<PlacementDecision> {
        if self.0.is_empty() {
            return None;
        }
        let with_devices = view.nodes().filter(|(_, node)| !node.devices().is_empty());
        let (node, _) = with_devices.min_by_key(|(_, node)| node.running())?;
        let at = self.0.iter().position(|request| view.tenants().may_start(request.tenant))?;
        let request = self.0.remove(at)?;
        Some(PlacementDecision {
            request,
            node,
            device: None,
            evict: Vec::new(),
            evict_elsewhere: SmallVec::new(),
            why: Why::default(),
        })
    }

    pub(super) fn remove(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        let at = self.0.iter().position(|request| request.invocation == invocation)?;
        self.0.remove(at)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
