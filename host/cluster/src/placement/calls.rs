//! The calls of a dispatcher that involve other nodes: calls that other nodes received, and calls
//! that run on other nodes.

use std::collections::HashMap;
use weir_types::{InvocationId, NodeId};

/// The calls that involve other nodes, until they end. At most as many as the scheduler knows.
#[derive(Debug, Default)]
pub(super) struct RemoteCalls(HashMap<InvocationId, RemoteCall>);

/// A call that involves another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteCall {
    /// The node that received the call.
    pub(super) origin: NodeId,
    /// The node on which the call was placed; `None` while it waits.
    pub(super) runs_on: Option<NodeId>,
    /// Whether the origin no longer waits for the call.
    pub(super) is_abandoned: bool,
}

impl RemoteCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, invocation: InvocationId) -> Option<&RemoteCall> {
        self.0.get(&invocation)
    }

    /// Adds a call that `origin` requests a placement for. Returns whether the origin has abandoned
    /// the same call before, which ends the earlier placement.
    pub(super) fn arrived(&mut self, invocation: InvocationId, origin: NodeId) -> bool {
        let before = self.0.get(&invocation).copied();
        let is_again = before.is_some_and(|before| before.is_abandoned);
        if before.is_none() || is_again {
            self.0.insert(invocation, RemoteCall { origin, runs_on: None, is_abandoned: false });
        }
        is_again
    }

    /// Adds a call that runs on a node, or records where a known one runs.
    pub(super) fn runs(&mut self, invocation: InvocationId, origin: NodeId, node: NodeId) {
        let call =
            self.0.entry(invocation).or_insert(RemoteCall { origin, runs_on: None, is_abandoned: false });
        call.runs_on = Some(node);
    }

    /// Records that the origin no longer waits for a call. Returns the node on which the call was
    /// placed.
    pub(super) fn abandoned(&mut self, invocation: InvocationId) -> Option<NodeId> {
        let call = self.0.get_mut(&invocation)?;
        call.is_abandoned = true;
        call.runs_on
    }

    pub(super) fn remove(&mut self, invocation: InvocationId) {
        self.0.remove(&invocation);
    }

    /// Removes the calls of a node that wait or run there, and returns them.
    pub(super) fn take_from(&mut self, origin: NodeId) -> Vec<InvocationId> {
        let is_there = |call: &RemoteCall| call.runs_on.is_none_or(|node| node == origin);
        let taken = self.0.extract_if(|_, call| call.origin == origin && is_there(call));
        taken.map(|(invocation, _)| invocation).collect()
    }

    /// Records that a node can no longer be asked about the calls that it has forwarded. Returns
    /// these calls, with the nodes that run them.
    pub(super) fn abandon_all(&mut self, origin: NodeId) -> Vec<(InvocationId, NodeId)> {
        let forwarded = self.0.iter_mut().filter(|(_, call)| call.origin == origin);
        let abandoned = forwarded.filter_map(|(invocation, call)| {
            call.is_abandoned = true;
            Some((*invocation, call.runs_on?))
        });
        abandoned.collect()
    }

    /// Whether `node` may report the end of a call: the node that received it, and the node that
    /// runs it. A rescheduled call may still run on an earlier node.
    pub(super) fn may_end(&self, invocation: InvocationId, node: NodeId) -> bool {
        self.0.get(&invocation).is_none_or(|call| call.origin == node || call.runs_on == Some(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: InvocationId = InvocationId(7);
    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);
    const THREE: NodeId = NodeId(3);

    #[test]
    fn only_nodes_that_take_part_may_end_a_call() {
        let mut calls = RemoteCalls::default();
        assert!(calls.may_end(CALL, THREE), "an unknown call is left to the scheduler");
        assert!(!calls.arrived(CALL, ONE) && calls.may_end(CALL, ONE) && !calls.may_end(CALL, TWO));
        calls.runs(CALL, ONE, TWO);
        assert!(calls.may_end(CALL, ONE) && calls.may_end(CALL, TWO) && !calls.may_end(CALL, THREE));
        assert!(!calls.arrived(CALL, THREE), "a call has one origin");
        assert_eq!(
            calls.get(CALL),
            Some(&RemoteCall { origin: ONE, runs_on: Some(TWO), is_abandoned: false })
        );
        assert_eq!(calls.abandoned(CALL), Some(TWO));
        assert!(calls.arrived(CALL, ONE), "the call is placed again");
        assert!(!calls.may_end(CALL, TWO), "the earlier run does not end the later one");
        calls.remove(CALL);
        assert!(calls.is_empty() && calls.abandoned(CALL).is_none());
    }
}
