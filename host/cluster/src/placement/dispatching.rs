//! The dispatcher's side of placement: links, events and withdrawals of the other nodes.

use super::clock::now;
use super::driver::LinkId;
use super::state::{PlacementState, Placer};
use super::{MESSAGES_PER_LOCK, Placements};
use crate::wire::{DispatcherCommand, Hello, NodeEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_scheduler::{Backlog, DeviceBacklogs, DeviceUse, Event};
use weir_types::{InvocationId, NodeId};

impl Placements {
    /// Adds a node that requests placements here. `None` if this node does not place invocations
    /// itself.
    pub fn join(
        &self,
        hello: Hello,
        commands: mpsc::Sender<DispatcherCommand>,
        broken: CancellationToken,
    ) -> Option<LinkId> {
        let mut state = self.state.lock();
        let Placer::Own(driver) = &mut state.placer else { return None };
        let (link, events, here) = driver.join(hello, self.time_ns(now()), commands, broken);
        self.decide_all(&mut state, events);
        self.end_all_unknown(&mut state, here);
        Some(link)
    }

    /// Places nothing until those of `nodes` that have no link here have announced their calls,
    /// or until [`await_only`](Self::await_only) names none of them. Returns false if this node
    /// does not place invocations itself.
    pub fn await_nodes(&self, nodes: &[NodeId]) -> bool {
        let mut state = self.state.lock();
        let Placer::Own(driver) = &mut state.placer else { return false };
        let paused = driver.expect_unlinked(nodes);
        self.decide_all(&mut state, paused);
        true
    }

    /// Stops waiting for nodes other than these.
    pub fn await_only(&self, nodes: &[NodeId]) {
        let mut state = self.state.lock();
        let Placer::Own(driver) = &mut state.placer else { return };
        let resumed = driver.expect_only(nodes);
        self.decide_all(&mut state, resumed);
    }

    /// The nodes whose announcements the placements wait for.
    pub fn awaited_nodes(&self) -> Vec<NodeId> {
        match &self.state.lock().placer {
            Placer::Own(driver) => driver.awaited_nodes(),
            Placer::Dispatcher(_) => Vec::new(),
        }
    }

    /// Handles events from another node.
    pub fn hear(&self, node: NodeId, link: LinkId, events: Vec<NodeEvent>) {
        let mut events = events.into_iter();
        while events.len() > 0 {
            let mut state = self.state.lock();
            for event in events.by_ref().take(MESSAGES_PER_LOCK) {
                let Placer::Own(driver) = &mut state.placer else { return };
                if !driver.is_current(node, link) {
                    return;
                }
                self.feed(&mut state, node, event);
            }
        }
    }

    /// Feeds an event of a node to this node's scheduler.
    pub(super) fn feed(&self, state: &mut PlacementState, node: NodeId, event: NodeEvent) {
        let Placer::Own(driver) = &mut state.placer else { return };
        let mut earlier = None;
        match &event {
            NodeEvent::Arrived { arrival, .. } => earlier = driver.arrived(arrival.invocation, node),
            NodeEvent::Finished { invocation, .. }
            | NodeEvent::Failed { invocation, .. }
            | NodeEvent::Cancelled { invocation, .. }
                if !driver.ended(*invocation, node) =>
            {
                return;
            }
            NodeEvent::Running { .. } => return self.adopt(state, node, event),
            NodeEvent::Staged { .. } => return self.stage(state, node, event),
            NodeEvent::Answered { invocation } => driver.answered(*invocation),
            NodeEvent::Abandoned { invocation } if driver.abandoned(*invocation) => {
                self.end_unknown(state, *invocation);
            }
            _ => {}
        }
        let event = event.into_scheduler_event(node, self.time_ns(now()));
        self.decide_all(state, earlier.into_iter().chain(event));
    }

    fn adopt(&self, state: &mut PlacementState, node: NodeId, event: NodeEvent) {
        let now_ns = self.time_ns(now());
        if let (Placer::Own(driver), NodeEvent::Running { running, is_last }) = (&mut state.placer, event) {
            let events = driver.adopt(node, running, is_last, now_ns);
            self.decide_all(state, events);
        }
    }

    fn stage(&self, state: &mut PlacementState, node: NodeId, event: NodeEvent) {
        if let NodeEvent::Staged { models } = event {
            self.decide_all(state, models.into_iter().map(|staged| staged.into_scheduler_event(node)));
        }
    }

    /// Reports the ends of calls that were placed here and abandoned. Skips calls that run here;
    /// the others have not arrived.
    fn end_all_unknown(&self, state: &mut PlacementState, invocations: Vec<InvocationId>) {
        for invocation in invocations {
            self.end_unknown(state, invocation);
        }
    }

    /// Like [`end_all_unknown`](Self::end_all_unknown), for one call.
    pub(super) fn end_unknown(&self, state: &mut PlacementState, invocation: InvocationId) {
        if !state.running.contains_key(&invocation) {
            self.tell(state, NodeEvent::Cancelled { invocation, used: Some(DeviceUse::default()) });
        }
    }

    /// Handles the end of another node's link. A node that leaves in good order finishes its
    /// invocations; the invocations of a lost node are lost.
    pub fn leave(&self, node: NodeId, link: LinkId, is_orderly: bool) {
        let mut state = self.state.lock();
        let Placer::Own(driver) = &mut state.placer else { return };
        if !driver.is_current(node, link) {
            return;
        }
        let (mut events, here) = driver.forget(node);
        let resumed = driver.expect_no_more(node);
        if is_orderly {
            let actions = driver.dismiss(self.time_ns(now()), node);
            self.carry_out_all(&mut state, actions, |state, action| self.carry_out(state, action));
        } else {
            events.push(Event::NodeDown { node });
        }
        events.extend(resumed);
        self.decide_all(&mut state, events);
        self.end_all_unknown(&mut state, here);
    }

    /// The nodes that request placements from this one.
    pub fn nodes(&self) -> Vec<NodeId> {
        match &self.state.lock().placer {
            Placer::Own(driver) => driver.nodes(),
            Placer::Dispatcher(_) => Vec::new(),
        }
    }

    /// Work of the devices that this node's scheduler places invocations on, and work that waits for
    /// them; none if another node places this node's invocations. Takes time in proportion to the
    /// devices.
    pub fn backlog(&self) -> Backlog {
        match &self.state.lock().placer {
            Placer::Own(driver) => driver.backlog(),
            Placer::Dispatcher(_) => Backlog::default(),
        }
    }

    /// Work of each of the first `devices_max` devices of this node's scheduler; none if another node
    /// places this node's invocations.
    pub fn device_backlogs(&self, devices_max: usize) -> DeviceBacklogs {
        match &self.state.lock().placer {
            Placer::Own(driver) => driver.device_backlogs(devices_max),
            Placer::Dispatcher(_) => DeviceBacklogs::default(),
        }
    }

    /// Whether another node places this node's invocations.
    pub fn asks(&self) -> bool {
        matches!(self.state.lock().placer, Placer::Dispatcher(_))
    }

    pub(super) fn decide_all(&self, state: &mut PlacementState, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.decide(state, event, |state, action| self.carry_out(state, action));
        }
    }
}
