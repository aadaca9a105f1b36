//! Drives a scheduler: a node's own, or the cluster's on the dispatcher.

use crate::wire::{DispatcherCommand, Hello, Resident, Running};
use std::collections::HashMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_scheduler::{Action, Event, Recorder, Rejection, Scheduler, Setup};
use weir_types::Ordinal;
use weir_types::{DeviceId, InvocationId, ModelId, NodeId};

/// The size limit of one scheduler's record.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// A scheduler, and the other nodes that request placements from it.
pub(super) struct Driver {
    /// The node on which the scheduler runs, and its address.
    own: (NodeId, String),
    scheduler: Scheduler,
    recorder: Option<Recorder>,
    nodes: HashMap<NodeId, Linked>,
    /// The originating node of each invocation of another node.
    origins: HashMap<InvocationId, NodeId>,
    /// Reused between calls, to save allocations.
    actions: Vec<Action>,
    /// Models that this node's devices may evict for invocations of other nodes.
    own_evict: Vec<(Ordinal, Vec<ModelId>)>,
    links: u64,
}

/// A node that requests placements over a link.
struct Linked {
    link: LinkId,
    address: String,
    commands: mpsc::Sender<DispatcherCommand>,
    /// Cancelled when the node cannot keep up with the link.
    broken: CancellationToken,
}

impl Linked {
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

impl Driver {
    /// Creates a scheduler that knows only its own node.
    pub(super) fn new(now_ns: u64, own: Hello, setup: &Setup, is_recorded: bool) -> Self {
        let (nodes, origins, actions) = Default::default();
        let address = own.address.clone();
        let mut driver = Self {
            own: (own.node, address),
            scheduler: setup.build(),
            recorder: is_recorded.then(|| Recorder::new(setup, RECORD_BYTES_MAX)),
            nodes,
            origins,
            actions,
            own_evict: Vec::new(),
            links: 0,
        };
        for event in up(own, now_ns) {
            // No invocation waits yet, so there are no actions to carry out.
            driver.handle(now_ns, event);
        }
        driver
    }

    /// Feeds an event to the scheduler and sends the actions about other nodes' invocations to
    /// those nodes. The caller carries out the returned actions and gives the list back with
    /// [`recycle`](Self::recycle).
    pub(super) fn handle(&mut self, now_ns: u64, event: Event) -> Vec<Action> {
        let mut actions = self.ask(now_ns, event);
        self.tell_evictable(&actions);
        if !self.origins.is_empty() {
            actions.retain(|action| !self.is_passed_on(action));
        }
        actions
    }

    /// Like [`handle`](Self::handle), for a node that has left in good order: invocations that run
    /// there are not lost.
    pub(super) fn dismiss(&mut self, now_ns: u64, node: NodeId) -> Vec<Action> {
        let mut actions = self.ask(now_ns, Event::NodeDown { node });
        self.tell_evictable(&actions);
        actions.retain(|action| {
            !matches!(action, Action::Reject { why: Rejection::NodeLost, .. }) && !self.is_passed_on(action)
        });
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
    pub(super) fn address(&self, node: NodeId) -> Option<&str> {
        if node == self.own.0 {
            return Some(&self.own.1);
        }
        self.nodes.get(&node).map(|linked| &*linked.address)
    }

    /// The other nodes that request placements.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Adds a node that requests placements. The returned events introduce it to the scheduler.
    pub(super) fn join(
        &mut self,
        hello: Hello,
        now_ns: u64,
        commands: mpsc::Sender<DispatcherCommand>,
        broken: CancellationToken,
    ) -> (LinkId, Vec<Event>) {
        let node = hello.node;
        let address = hello.address.clone();
        self.links += 1;
        let link = LinkId(self.links);
        // The previous link, if any, is over: the node requests its placements again.
        let mut events = self.forget(node);
        self.nodes.insert(node, Linked { link, address, commands, broken });
        for running in &hello.running {
            self.origins.insert(running.arrival.invocation, node);
        }
        events.extend(up(hello, now_ns));
        (link, events)
    }

    /// Removes a node that requests placements. The returned events withdraw its requests; the
    /// invocations that run on the node are not affected.
    pub(super) fn forget(&mut self, node: NodeId) -> Vec<Event> {
        self.nodes.remove(&node);
        let asked = self.origins.iter().filter(|(_, origin)| **origin == node);
        let asked: Vec<_> = asked.map(|(invocation, _)| *invocation).collect();
        for invocation in &asked {
            self.origins.remove(invocation);
        }
        asked.into_iter().map(|invocation| Event::Cancelled { invocation, used: None }).collect()
    }

    /// Whether `link` is the node's current link.
    pub(super) fn is_current(&self, node: NodeId, link: LinkId) -> bool {
        self.nodes.get(&node).is_some_and(|linked| linked.link == link)
    }

    /// Records the originating node of an invocation.
    pub(super) fn note_origin(&mut self, invocation: InvocationId, node: NodeId) {
        self.origins.insert(invocation, node);
    }

    /// Removes the originating node of an invocation that is over.
    pub(super) fn forget_origin(&mut self, invocation: InvocationId) {
        self.origins.remove(&invocation);
    }

    /// Sends the evictable models to the nodes of their devices: later placements rely on these
    /// evictions, even if the invocation never starts.
    fn tell_evictable(&mut self, actions: &[Action]) {
        if self.nodes.is_empty() {
            return;
        }
        for action in actions {
            let Action::Start { invocation, node, device: Some(device), evict, .. } = action else {
                continue;
            };
            if evict.is_empty() {
                continue;
            }
            let ordinal = device.ordinal;
            if let Some(linked) = self.nodes.get(node) {
                linked.send(DispatcherCommand::MayEvict { device: ordinal, evict: evict.clone() });
            } else if *node == self.own.0 && self.origins.contains_key(invocation) {
                self.own_evict.push((ordinal, evict.clone()));
            }
        }
    }

    /// Sends an action to the node that the invocation came from. Returns false if that is this
    /// node.
    fn is_passed_on(&self, action: &Action) -> bool {
        let (Action::Start { invocation, .. } | Action::Reject { invocation, .. }) = action else {
            return false;
        };
        let Some(origin) = self.origins.get(invocation).and_then(|node| self.nodes.get(node)) else {
            return false;
        };
        let command = match action {
            Action::Start { invocation, node, device, evict, why } => DispatcherCommand::Start {
                invocation: *invocation,
                node: *node,
                device: device.map(|device| device.ordinal),
                address: self.address(*node).map(str::to_owned),
                evict: evict.clone(),
                why: Box::new(why.clone()),
            },
            Action::Reject { invocation, why, estimate } => {
                DispatcherCommand::Reject { invocation: *invocation, why: *why, estimate: *estimate }
            }
            Action::WakeAt(_) => return false,
        };
        origin.send(command);
        true
    }
}

/// The events that introduce a node to a scheduler.
fn up(
    Hello { node, devices, resident, down, running, .. }: Hello,
    now_ns: u64,
) -> impl Iterator<Item = Event> {
    let device = move |ordinal| DeviceId { node, ordinal };
    let loaded = move |Resident { device: at, model, bytes, parts }| Event::Loaded {
        device: device(at),
        model,
        bytes,
        load_time_ns: None,
        parts,
    };
    let down = down.into_iter().map(move |at| Event::DeviceDown { device: device(at) });
    let runs = move |Running { mut arrival, deadline_in_ns, device }: Running| {
        arrival.deadline_at_ns = now_ns.saturating_add(deadline_in_ns);
        // Admitted by another scheduler already.
        arrival.slo = None;
        Event::Running { arrival, node, device }
    };
    std::iter::once(Event::NodeUp { node, devices })
        .chain(resident.into_iter().map(loaded))
        .chain(running.into_iter().map(runs))
        .chain(down)
}
