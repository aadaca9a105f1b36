//! Drives a scheduler: a node's own, or the cluster's on the dispatcher.

use super::calls::RemoteCalls;
use crate::wire::{AnnouncedInvocation, AnnouncedModel, DispatcherCommand, Hello};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_scheduler::{
    Action, Backlog, DeviceBacklogs, Event, Recorder, Rejection, RequiredModel, Scheduler, Setup,
};
use weir_types::Ordinal;
use weir_types::{DeviceId, InvocationId, ModelId, NodeId};

/// The size limit of one scheduler's record.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// A scheduler, and the other nodes that request placements from it.
pub(super) struct PlacementDriver {
    /// The node on which the scheduler runs, and its address.
    own: (NodeId, Arc<str>),
    scheduler: Scheduler,
    recorder: Option<Recorder>,
    nodes: HashMap<NodeId, RequestingNode>,
    calls: RemoteCalls,
    /// The nodes whose running invocations are not known yet; this node while it awaits its election.
    /// While there are any, the scheduler is paused.
    awaited: HashSet<NodeId>,
    /// Reused between calls, to save allocations: all actions of a call, and those about this
    /// node's calls.
    actions: Vec<Action>,
    own_actions: Vec<Action>,
    /// Models that this node's devices may evict for invocations of other nodes.
    own_evict: Vec<(Ordinal, Vec<ModelId>)>,
    links: u64,
    /// The required models, as last given to the scheduler.
    required: Vec<RequiredModel>,
}

/// A node that requests placements over a link.
struct RequestingNode {
    link: LinkId,
    address: Arc<str>,
    commands: mpsc::Sender<DispatcherCommand>,
    /// Cancelled when the node cannot keep up with the link.
    broken: CancellationToken,
}

impl RequestingNode {
    fn send(&self, command: DispatcherCommand) {
        // A node that misses a command requests its placements again, over a new link.
        if self.commands.try_send(command).is_err() {
            self.broken.cancel();
        }
    }
}

/// Distinguishes successive links of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId(u64);

impl PlacementDriver {
    /// Creates a scheduler that knows only its own node.
    pub(super) fn new(now_ns: u64, own: Hello, setup: &Setup, is_recorded: bool) -> Self {
        let (nodes, calls, awaited, actions) = Default::default();
        let address = own.address.clone();
        let mut driver = Self {
            own: (own.node, address),
            scheduler: setup.build(),
            recorder: is_recorded.then(|| Recorder::new(setup, RECORD_BYTES_MAX)),
            nodes,
            calls,
            awaited,
            actions,
            own_actions: Vec::new(),
            own_evict: Vec::new(),
            links: 0,
            required: Vec::new(),
        };
        for event in up(own, now_ns) {
            // No invocation waits yet, so there are no actions to carry out.
            driver.handle(now_ns, event);
        }
        driver
    }

    /// Pauses the scheduler until its node is the dispatcher. For a node without devices: the next
    /// dispatcher may know devices.
    pub(super) fn await_election(&mut self, now_ns: u64) {
        if let Some(paused) = self.expect([self.own.0]) {
            self.handle(now_ns, paused);
        }
    }

    /// Work of the scheduler's devices, and work that waits for them.
    pub(super) fn backlog(&self) -> Backlog {
        self.scheduler.backlog()
    }

    /// Work of each of the first `devices_max` devices.
    pub(super) fn device_backlogs(&self, devices_max: usize) -> DeviceBacklogs {
        self.scheduler.device_backlogs(devices_max)
    }

    /// Converts a list of required models to an event; `None` if the scheduler has this list.
    pub(super) fn require(&mut self, models: Vec<RequiredModel>) -> Option<Event> {
        if self.required == models {
            return None;
        }
        self.required.clone_from(&models);
        Some(Event::Required { models })
    }

    /// Required copies of models that no device keeps.
    pub(super) fn copies_missing(&self) -> u64 {
        self.scheduler.copies_missing()
    }

    /// Feeds an event to the scheduler and sends the actions about other nodes' invocations to
    /// those nodes. The caller carries out the returned actions and gives the list back with
    /// [`recycle`](Self::recycle).
    pub(super) fn handle(&mut self, now_ns: u64, event: Event) -> Vec<Action> {
        let mut actions = self.ask(now_ns, event);
        self.tell_evictable(&actions);
        if !self.nodes.is_empty() || !self.calls.is_empty() {
            self.pass_on_all(&mut actions);
        }
        actions
    }

    /// Like [`handle`](Self::handle), for a node that has left in good order: invocations that run
    /// there are not lost.
    pub(super) fn dismiss(&mut self, now_ns: u64, node: NodeId) -> Vec<Action> {
        let mut actions = self.ask(now_ns, Event::NodeDown { node });
        self.tell_evictable(&actions);
        actions.retain(|action| {
            let Action::Reject { invocation, why: Rejection::NodeLost, .. } = action else { return true };
            self.calls.remove(*invocation);
            false
        });
        self.pass_on_all(&mut actions);
        actions
    }

    /// Takes the models that this node's devices may evict for invocations of other nodes, as added
    /// since the last call.
    pub(super) fn take_own_evict(&mut self) -> Vec<(Ordinal, Vec<ModelId>)> {
        std::mem::take(&mut self.own_evict)
    }

    fn ask(&mut self, now_ns: u64, event: Event) -> Vec<Action> {
        let mut actions = std::mem::take(&mut self.actions);
        match &mut self.recorder {
            None => self.scheduler.handle(now_ns, event, &mut actions),
            Some(recorder) => recorder.handle(&mut self.scheduler, now_ns, event, &mut actions),
        }
        actions
    }

    /// Takes the lines recorded since the last call.
    pub(super) fn take_lines(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map(Recorder::take_lines).unwrap_or_default()
    }

    /// Takes back the list that [`handle`](Self::handle) returned.
    pub(super) fn recycle(&mut self, mut actions: Vec<Action>) {
        actions.clear();
        self.actions = actions;
    }

    /// The address of a node; `None` if it has left.
    pub(super) fn address(&self, node: NodeId) -> Option<&Arc<str>> {
        if node == self.own.0 {
            return Some(&self.own.1);
        }
        self.nodes.get(&node).map(|linked| &linked.address)
    }

    /// The other nodes that request placements.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Adds a node that requests placements. The returned events introduce the node to the
    /// scheduler, which places nothing until it knows the calls that run there. Also returns the
    /// invocations whose ends this node must report, as after [`forget`](Self::forget).
    pub(super) fn join(
        &mut self,
        hello: Hello,
        now_ns: u64,
        commands: mpsc::Sender<DispatcherCommand>,
        broken: CancellationToken,
    ) -> (LinkId, Vec<Event>, Vec<InvocationId>) {
        let node = hello.node;
        let mut events: Vec<_> = self.expect([node]).into_iter().collect();
        let address = hello.address.clone();
        self.links += 1;
        let link = LinkId(self.links);
        // The previous link, if any, is over: the node requests its placements again.
        let (withdrawn, here) = self.forget(node);
        events.extend(withdrawn);
        self.nodes.insert(node, RequestingNode { link, address, commands, broken });
        let has_more = hello.has_more;
        self.follow(node, &hello.running);
        events.extend(up(hello, now_ns));
        events.extend(if has_more { None } else { self.expect_no_more(node) });
        (link, events, here)
    }

    /// Adds invocations that run on a node that has joined. The returned events announce them to
    /// the scheduler.
    pub(super) fn adopt(
        &mut self,
        node: NodeId,
        running: Vec<AnnouncedInvocation>,
        is_last: bool,
        now_ns: u64,
    ) -> Vec<Event> {
        self.follow(node, &running);
        let running = running.into_iter().map(|running| adopted(node, running, now_ns));
        running.chain(is_last.then(|| self.expect_no_more(node)).flatten()).collect()
    }

    fn follow(&mut self, node: NodeId, running: &[AnnouncedInvocation]) {
        for AnnouncedInvocation { arrival, origin, .. } in running {
            self.calls.runs(arrival.invocation, origin.unwrap_or(node), node);
        }
    }

    /// Removes a node that requests placements. The returned events withdraw its invocations that
    /// wait or run there. Its invocations on other nodes continue. Those nodes are asked to report
    /// the end of each such invocation that has not arrived there. Returns the invocations for
    /// which this node must do the same.
    pub(super) fn forget(&mut self, node: NodeId) -> (Vec<Event>, Vec<InvocationId>) {
        self.nodes.remove(&node);
        let withdrawn = self.calls.take_from(node).into_iter();
        let withdrawn = withdrawn.map(|invocation| Event::Cancelled { invocation, used: None }).collect();
        let mut here = Vec::new();
        for (invocation, runs_on) in self.calls.abandon_all(node) {
            if runs_on == self.own.0 {
                here.push(invocation);
            } else if let Some(linked) = self.nodes.get(&runs_on) {
                linked.send(DispatcherCommand::Abandoned { invocation });
            }
        }
        (withdrawn, here)
    }

    /// Waits for nodes to announce their calls. Returns the event that pauses the scheduler, if
    /// it is not paused yet.
    fn expect(&mut self, nodes: impl IntoIterator<Item = NodeId>) -> Option<Event> {
        let was_empty = self.awaited.is_empty();
        self.awaited.extend(nodes);
        (was_empty && !self.awaited.is_empty()).then_some(Event::Paused)
    }

    /// Stops waiting for other nodes than these. Returns the event that resumes the scheduler, if
    /// it waits for none.
    pub(super) fn expect_only(&mut self, nodes: &[NodeId]) -> Option<Event> {
        let was_empty = self.awaited.is_empty();
        self.awaited.retain(|node| nodes.contains(node));
        (!was_empty && self.awaited.is_empty()).then_some(Event::Resumed)
    }

    /// The nodes that have not announced all their invocations.
    pub(super) fn awaited_nodes(&self) -> Vec<NodeId> {
        self.awaited.iter().copied().collect()
    }

    /// Waits for those of these nodes that have no link.
    pub(super) fn expect_unlinked(&mut self, nodes: &[NodeId]) -> Option<Event> {
        let unlinked: Vec<_> = nodes.iter().copied().filter(|node| !self.nodes.contains_key(node)).collect();
        self.expect(unlinked)
    }

    /// Records that a node has announced all its invocations, or has left. Returns the event that
    /// resumes the scheduler, unless other nodes are still awaited.
    pub(super) fn expect_no_more(&mut self, node: NodeId) -> Option<Event> {
        (self.awaited.remove(&node) && self.awaited.is_empty()).then_some(Event::Resumed)
    }

    /// Whether `link` is the node's current link.
    pub(super) fn is_current(&self, node: NodeId, link: LinkId) -> bool {
        self.nodes.get(&node).is_some_and(|linked| linked.link == link)
    }

    /// Records that `origin` requests a placement. Returns the event that ends an earlier placement
    /// of the same call, which the origin has abandoned.
    pub(super) fn arrived(&mut self, invocation: InvocationId, origin: NodeId) -> Option<Event> {
        if origin == self.own.0 && self.calls.get(invocation).is_none() {
            return None;
        }
        self.calls.arrived(invocation, origin).then_some(Event::Cancelled { invocation, used: None })
    }

    /// Handles the report of a node that an invocation is over there. Returns whether the report
    /// concerns the current placement of the invocation.
    pub(super) fn ended(&mut self, invocation: InvocationId, node: NodeId) -> bool {
        let may_end = self.calls.may_end(invocation, node);
        if may_end {
            self.calls.remove(invocation);
        }
        may_end
    }

    /// Stops following a call whose answer has reached its origin.
    pub(super) fn answered(&mut self, invocation: InvocationId) {
        self.calls.remove(invocation);
    }

    /// Handles a call that its origin no longer waits for: asks the node where it was placed to
    /// report its end. Returns whether that node is this one.
    pub(super) fn abandoned(&mut self, invocation: InvocationId) -> bool {
        let Some(node) = self.calls.abandoned(invocation) else { return false };
        if let Some(linked) = self.nodes.get(&node) {
            linked.send(DispatcherCommand::Abandoned { invocation });
        }
        node == self.own.0
    }

    /// Sends the evictable models to the nodes of their devices: later placements rely on these
    /// evictions, even if the invocation never starts.
    fn tell_evictable(&mut self, actions: &[Action]) {
        if self.nodes.is_empty() {
            return;
        }
        for action in actions {
            self.tell_required(action);
            let Action::Start { invocation, node, device: Some(device), evict, .. } = action else {
                continue;
            };
            if evict.is_empty() {
                continue;
            }
            let ordinal = device.ordinal;
            if let Some(linked) = self.nodes.get(node) {
                linked.send(DispatcherCommand::MayEvict { device: ordinal, evict: evict.clone() });
            } else if *node == self.own.0 && self.calls.get(*invocation).is_some() {
                self.own_evict.push((ordinal, evict.clone()));
            }
        }
    }

    /// Sends an action about required models to the node of the device.
    fn tell_required(&self, action: &Action) {
        let (Action::Load { device, .. } | Action::Release { device, .. }) = action else { return };
        let Some(linked) = self.nodes.get(&device.node) else { return };
        match action {
            Action::Load { model, evict, .. } => linked.send(DispatcherCommand::Load {
                device: device.ordinal,
                model: model.clone(),
                evict: evict.clone(),
            }),
            Action::Release { model, .. } => {
                linked.send(DispatcherCommand::Release { device: device.ordinal, model: model.clone() });
            }
            _ => {}
        }
    }

    /// Sends the actions about other nodes' calls to these nodes. Keeps the others.
    fn pass_on_all(&mut self, actions: &mut Vec<Action>) {
        let mut own = std::mem::take(&mut self.own_actions);
        own.extend(actions.drain(..).filter_map(|action| self.pass_on(action)));
        std::mem::swap(actions, &mut own);
        self.own_actions = own;
    }

    /// Follows the call of an action, and sends the action to the node that the call came from.
    /// Returns the action if that is this node.
    fn pass_on(&mut self, action: Action) -> Option<Action> {
        let (Action::Start { invocation, .. }
        | Action::Reject { invocation, .. }
        | Action::Reserved { invocation, .. }) = &action
        else {
            return Some(action);
        };
        let origin = self.calls.get(*invocation).map_or(self.own.0, |call| call.origin);
        match &action {
            Action::Start { node, .. } if origin != self.own.0 || *node != self.own.0 => {
                self.calls.runs(*invocation, origin, *node);
            }
            // The reservations are kept until the origin reports the end, or is lost.
            Action::Reserved { .. } if origin != self.own.0 => {}
            _ => self.calls.remove(*invocation),
        }
        let Some(linked) = self.nodes.get(&origin) else { return Some(action) };
        linked.send(match action {
            Action::Start { invocation, node, device, evict, why } => DispatcherCommand::Start {
                invocation,
                node,
                device: device.map(|device| device.ordinal),
                address: self.address(node).cloned(),
                evict,
                why: Box::new(why),
            },
            Action::Reject { invocation, why, estimate, alternatives } => {
                DispatcherCommand::Reject { invocation, why, estimate, alternatives }
            }
            Action::Reserved { invocation, .. } => DispatcherCommand::Reserved { invocation },
            Action::Load { .. } | Action::Release { .. } | Action::WakeAt(_) => return Some(action),
        });
        None
    }
}

/// The events that introduce a node to a scheduler.
fn up(
    Hello { node, devices, resident, origin, staged, down, running, .. }: Hello,
    now_ns: u64,
) -> impl Iterator<Item = Event> {
    let device = move |ordinal| DeviceId { node, ordinal };
    let loaded = move |AnnouncedModel { device: at, model, bytes, parts }| Event::Loaded {
        device: device(at),
        model,
        bytes,
        load_time_ns: None,
        parts,
    };
    let down = down.into_iter().map(move |at| Event::DeviceDown { device: device(at) });
    [Event::NodeUp { node, devices }, Event::Origin { node, tier: origin }]
        .into_iter()
        .chain(staged.into_iter().map(move |staged| staged.into_scheduler_event(node)))
        .chain(resident.into_iter().map(loaded))
        .chain(running.into_iter().map(move |running| adopted(node, running, now_ns)))
        .chain(down)
}

/// The event for an invocation that runs on `node`.
fn adopted(
    node: NodeId,
    AnnouncedInvocation { mut arrival, deadline_in_ns, device, .. }: AnnouncedInvocation,
    now_ns: u64,
) -> Event {
    arrival.deadline_at_ns = now_ns.saturating_add(deadline_in_ns);
    // Admitted by another scheduler already.
    arrival.slo = None;
    Event::Running { arrival, node, device }
}
