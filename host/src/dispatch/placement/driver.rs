//! Drives a scheduler: this node's for itself, and the dispatcher's for the cluster.

use crate::cluster::wire::{Hello, Order, Resident};
use crate::devices::Ordinal;
use std::collections::HashMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_scheduler::{Action, Event, Recorder, Rejection, Scheduler, Setup};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId};

/// The longest record of one scheduler.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// A scheduler, and the nodes that ask it besides this one.
pub(super) struct Driver {
    /// The node that it runs on, and where that is reached.
    own: (NodeId, String),
    scheduler: Scheduler,
    recorder: Option<Recorder>,
    nodes: HashMap<NodeId, Linked>,
    /// Which of those nodes an invocation is of.
    origins: HashMap<InvocationId, NodeId>,
    /// Kept from call to call, for its memory.
    actions: Vec<Action>,
    /// What this node's devices may give up for invocations of other nodes.
    own_evict: Vec<(Ordinal, Vec<ModelId>)>,
    links: u64,
}

/// A node that asks over a link.
struct Linked {
    link: LinkId,
    address: String,
    orders: mpsc::Sender<Order>,
    /// Cancelled when the link cannot be kept up with.
    broken: CancellationToken,
}

impl Linked {
    fn send(&self, order: Order) {
        // One that misses an order asks anew, over another link.
        if self.orders.try_send(order).is_err() {
            self.broken.cancel();
        }
    }
}

/// Tells the links of one node, one after the other, apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkId(u64);

impl Driver {
    /// A scheduler that knows only of the node that it runs on.
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
        for event in up(own) {
            // Nothing waits yet, so that there is nothing to do.
            driver.handle(now_ns, event);
        }
        driver
    }

    /// Tell the scheduler. What it wants done about invocations of other nodes they are told; the rest is for the caller, who gives the list
    /// back.
    pub(super) fn handle(&mut self, now_ns: u64, event: Event) -> Vec<Action> {
        let mut actions = self.ask(now_ns, event);
        self.tell_evictable(&actions);
        if !self.origins.is_empty() {
            actions.retain(|action| !self.is_passed_on(action));
        }
        actions
    }

    /// The same for a node that has left in good order: what runs there is not lost.
    pub(super) fn dismiss(&mut self, now_ns: u64, node: NodeId) -> Vec<Action> {
        let mut actions = self.ask(now_ns, Event::NodeDown { node });
        self.tell_evictable(&actions);
        actions.retain(|action| {
            !matches!(action, Action::Reject { why: Rejection::NodeLost, .. }) && !self.is_passed_on(action)
        });
        actions
    }

    /// What this node's devices may give up for invocations of other nodes, since this was asked last.
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

    /// What was written down since this was asked last.
    pub(super) fn take_lines(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map(Recorder::take_lines).unwrap_or_default()
    }

    /// Give back what [`handle`](Self::handle) returned.
    pub(super) fn recycle(&mut self, mut actions: Vec<Action>) {
        actions.clear();
        self.actions = actions;
    }

    /// Where a node is reached; none if it has left.
    pub(super) fn address(&self, node: NodeId) -> Option<&str> {
        if node == self.own.0 {
            return Some(&self.own.1);
        }
        self.nodes.get(&node).map(|linked| &*linked.address)
    }

    /// The nodes that ask, besides this one.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// A node asks from now on. The events tell the scheduler.
    pub(super) fn join(
        &mut self,
        hello: Hello,
        orders: mpsc::Sender<Order>,
        broken: CancellationToken,
    ) -> (LinkId, Vec<Event>) {
        let (node, address) = (hello.node, hello.address.clone());
        self.links += 1;
        let link = LinkId(self.links);
        // The one before, if there is one, is over: what it asked for is asked again.
        let mut events = self.forget(node);
        self.nodes.insert(node, Linked { link, address, orders, broken });
        events.extend(up(hello));
        (link, events)
    }

    /// A node asks no more. The events tell the scheduler what it had asked for; what it runs is another matter.
    pub(super) fn forget(&mut self, node: NodeId) -> Vec<Event> {
        self.nodes.remove(&node);
        let asked = self.origins.iter().filter(|(_, origin)| **origin == node);
        let asked: Vec<_> = asked.map(|(invocation, _)| *invocation).collect();
        for invocation in &asked {
            self.origins.remove(invocation);
        }
        asked.into_iter().map(|invocation| Event::Cancelled { invocation }).collect()
    }

    /// Whether news from this link are from the node as it is now.
    pub(super) fn is_current(&self, node: NodeId, link: LinkId) -> bool {
        self.nodes.get(&node).is_some_and(|linked| linked.link == link)
    }

    /// An invocation is of another node.
    pub(super) fn note_origin(&mut self, invocation: InvocationId, node: NodeId) {
        self.origins.insert(invocation, node);
    }

    /// An invocation of another node's is over.
    pub(super) fn forget_origin(&mut self, invocation: InvocationId) {
        self.origins.remove(&invocation);
    }

    /// Tell the nodes of devices what those may give up: later placements count on it, also where the invocation never comes.
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
                linked.send(Order::MayEvict { device: ordinal, evict: evict.clone() });
            } else if *node == self.own.0 && self.origins.contains_key(invocation) {
                self.own_evict.push((ordinal, evict.clone()));
            }
        }
    }

    /// Tell the node whose invocation it is about. False if that is this one.
    fn is_passed_on(&self, action: &Action) -> bool {
        let (Action::Start { invocation, .. } | Action::Reject { invocation, .. }) = action else {
            return false;
        };
        let Some(origin) = self.origins.get(invocation).and_then(|node| self.nodes.get(node)) else {
            return false;
        };
        let order = match action {
            Action::Start { invocation, node, device, evict, .. } => Order::Start {
                invocation: *invocation,
                node: *node,
                device: device.map(|device| device.ordinal),
                address: self.address(*node).map(str::to_owned),
                evict: evict.clone(),
            },
            Action::Reject { invocation, why, estimate } => {
                Order::Reject { invocation: *invocation, why: *why, estimate: *estimate }
            }
            Action::WakeAt(_) => return false,
        };
        origin.send(order);
        true
    }
}

/// What tells a scheduler of a node.
fn up(Hello { node, devices, resident, down, .. }: Hello) -> impl Iterator<Item = Event> {
    let device = move |ordinal| DeviceId { node, ordinal };
    let loaded = move |Resident { device: at, model, bytes, parts }| Event::Loaded {
        device: device(at),
        model,
        bytes,
        load_time_ns: None,
        parts,
    };
    let down = down.into_iter().map(move |at| Event::DeviceDown { device: device(at) });
    std::iter::once(Event::NodeUp { node, devices }).chain(resident.into_iter().map(loaded)).chain(down)
}
