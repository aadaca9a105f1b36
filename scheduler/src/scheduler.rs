//! The state machine: events in, actions out.

use crate::{Action, Arrival, Estimate, Event, Fifo, Placement, Policy, Rejection, View, expect};
use std::collections::{BTreeSet, HashMap};
use weir_types::{DeviceId, InvocationId, NodeId};

/// Limits of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Invocations that may wait; one more is rejected.
    pub queue_len_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { queue_len_max: 4_096 }
    }
}

/// Events that were ignored, or taken with a grain of salt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Corrections {
    /// About an invocation that neither waits nor runs.
    pub unknown_invocation: u64,
    /// About a node that is not up, or a device it does not have.
    pub unknown_device: u64,
    /// An invocation that arrived while it waited or ran.
    pub arrived_twice: u64,
    /// A model that was loaded or evicted where it already was, or was not.
    pub residency: u64,
    /// A model that was named twice in one arrival.
    pub named_twice: u64,
    /// A node that came up while it was up.
    pub node_up_twice: u64,
    /// A time before an earlier one; the earlier was used.
    pub clock_went_back: u64,
}

/// Decides where invocations run. Fed by one driver, which carries out the actions in order.
pub struct Scheduler {
    settings: Settings,
    policy: Box<dyn Policy>,
    view: View,
    now_ns: u64,
    waiting: HashMap<InvocationId, Waiting>,
    /// When waiting invocations become useless, in order.
    deadlines: BTreeSet<(u64, InvocationId)>,
    /// The latest wake that was asked for and did not come.
    wake_at_ns: Option<u64>,
    corrections: Corrections,
}

struct Waiting {
    arrived_at_ns: u64,
    deadline_at_ns: u64,
}

impl Scheduler {
    /// A scheduler for one node, first come first served.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with_policy(settings, Box::new(Fifo::new()))
    }

    /// A scheduler of another policy.
    #[must_use]
    pub fn with_policy(settings: Settings, policy: Box<dyn Policy>) -> Self {
        let (view, waiting, deadlines, corrections) = Default::default();
        Self { settings, policy, view, now_ns: 0, waiting, deadlines, wake_at_ns: None, corrections }
    }

    /// Take in `event`, which happened at `now_ns`, and add what is to be done to `actions`.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        if now_ns < self.now_ns {
            self.corrections.clock_went_back += 1;
        }
        self.now_ns = self.now_ns.max(now_ns);
        self.expire(actions);
        let newcomer = match event {
            Event::Arrived(arrival) => self.arrived(arrival, actions),
            other => {
                self.note(other, actions);
                None
            }
        };
        while let Some(placement) = self.policy.next(self.now_ns, &self.view) {
            self.start(placement, actions);
        }
        if let Some((newcomer, deadline_at_ns)) = newcomer {
            self.keep_waiting(newcomer, deadline_at_ns, actions);
        }
        self.ask_to_be_woken(actions);
    }

    /// What it knows of the cluster.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The policy in charge.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// What it had to ignore or correct so far.
    #[must_use]
    pub fn corrections(&self) -> Corrections {
        self.corrections
    }

    /// Hand an arrival to the policy, unless it can be told at once that it will not run.
    fn arrived(&mut self, mut arrival: Arrival, actions: &mut Vec<Action>) -> Option<(InvocationId, u64)> {
        let (invocation, deadline_at_ns) = (arrival.invocation, arrival.deadline_at_ns);
        if self.waiting.contains_key(&invocation) || self.view.is_running(invocation) {
            self.corrections.arrived_twice += 1;
            return None;
        }
        if !arrival.models.is_empty() {
            self.drop_repeated_models(&mut arrival);
            let bytes = arrival.models.iter().fold(0_u64, |sum, demand| sum.saturating_add(demand.bytes));
            let largest = self.view.devices().map(|(_, device)| device.spec().capacity_bytes).max();
            if largest.is_some_and(|largest| bytes > largest) {
                let estimate = Estimate { missing_bytes: bytes, ..Estimate::default() };
                actions.push(Action::Reject { invocation, why: Rejection::NoCapacity, estimate });
                return None;
            }
        }
        if deadline_at_ns <= self.now_ns {
            let estimate = self.estimate(&arrival);
            actions.push(Action::Reject { invocation, why: Rejection::Deadline, estimate });
            return None;
        }
        self.policy.arrived(arrival);
        Some((invocation, deadline_at_ns))
    }

    fn drop_repeated_models(&mut self, arrival: &mut Arrival) {
        let mut at = 0;
        while at < arrival.models.len() {
            let (before, from) = arrival.models.split_at(at);
            if from.first().is_some_and(|demand| before.iter().any(|other| other.model == demand.model)) {
                arrival.models.remove(at);
                self.corrections.named_twice += 1;
            } else {
                at += 1;
            }
        }
    }

    /// Bring the view up to date.
    fn note(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Arrived(_) => {}
            Event::Woken => self.wake_at_ns = None,
            Event::Started { invocation } => {
                let known = self.view.started(invocation, self.now_ns);
                self.corrections.unknown_invocation += u64::from(!known);
            }
            Event::Finished { invocation } => self.over(invocation, true),
            Event::Failed { invocation } => self.over(invocation, false),
            Event::Cancelled { invocation } => {
                if self.waiting.contains_key(&invocation) {
                    self.give_up(invocation);
                } else {
                    self.over(invocation, false);
                }
            }
            Event::Loaded { device, model, bytes, load_time_ns } => {
                if self.knows(device) {
                    let news = self.view.loaded(device, model, bytes, load_time_ns);
                    self.corrections.residency += u64::from(!news);
                }
            }
            Event::Evicted { device, model } => {
                if self.knows(device) {
                    let news = self.view.evicted(device, &model);
                    self.corrections.residency += u64::from(!news);
                }
            }
            Event::NodeUp { node, devices } => {
                if self.view.node(node).is_some() {
                    self.corrections.node_up_twice += 1;
                    self.node_down(node, actions);
                }
                self.view.node_up(node, devices);
            }
            Event::NodeDown { node } => self.node_down(node, actions),
        }
    }

    fn knows(&mut self, device: DeviceId) -> bool {
        let known = self.view.device(device).is_some();
        self.corrections.unknown_device += u64::from(!known);
        known
    }

    fn over(&mut self, invocation: InvocationId, worked: bool) {
        let known = self.view.over(invocation, self.now_ns, worked);
        self.corrections.unknown_invocation += u64::from(!known);
    }

    fn node_down(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let Some(lost) = self.view.node_down(node) else {
            self.corrections.unknown_device += 1;
            return;
        };
        actions.extend(lost.into_iter().map(|invocation| Action::Reject {
            invocation,
            why: Rejection::NodeLost,
            estimate: Estimate::default(),
        }));
    }

    /// Carry out a placement.
    fn start(&mut self, mut placement: Placement, actions: &mut Vec<Action>) {
        let invocation = placement.arrival.invocation;
        if let Some(waited) = self.forget(invocation) {
            placement.why.queued_ns = self.now_ns.saturating_sub(waited.arrived_at_ns);
        }
        self.view.place(&mut placement, self.now_ns);
        let Placement { node, device, evict, why, .. } = placement;
        actions.push(Action::Start { invocation, node, device, evict, why });
    }

    /// See whether a newcomer was started just now, and else let it wait if it may.
    fn keep_waiting(&mut self, invocation: InvocationId, deadline_at_ns: u64, actions: &mut Vec<Action>) {
        if self.view.is_running(invocation) {
            return;
        }
        if self.policy.waiting() > self.settings.queue_len_max {
            let rejected = self.policy.remove(invocation);
            let estimate = rejected.map(|arrival| self.estimate(&arrival)).unwrap_or_default();
            actions.push(Action::Reject { invocation, why: Rejection::QueueFull, estimate });
            return;
        }
        self.waiting.insert(invocation, Waiting { arrived_at_ns: self.now_ns, deadline_at_ns });
        self.deadlines.insert((deadline_at_ns, invocation));
    }

    /// Reject what waited until it was of no use.
    fn expire(&mut self, actions: &mut Vec<Action>) {
        while let Some(&(deadline_at_ns, invocation)) = self.deadlines.first() {
            if deadline_at_ns > self.now_ns {
                return;
            }
            let expired = self.give_up(invocation);
            let estimate = expired.map(|arrival| self.estimate(&arrival)).unwrap_or_default();
            actions.push(Action::Reject { invocation, why: Rejection::Deadline, estimate });
        }
    }

    /// Let go of an invocation that waits.
    fn give_up(&mut self, invocation: InvocationId) -> Option<Arrival> {
        self.forget(invocation);
        self.policy.remove(invocation)
    }

    /// An invocation does not wait any more.
    fn forget(&mut self, invocation: InvocationId) -> Option<Waiting> {
        let waited = self.waiting.remove(&invocation)?;
        self.deadlines.remove(&(waited.deadline_at_ns, invocation));
        Some(waited)
    }

    fn ask_to_be_woken(&mut self, actions: &mut Vec<Action>) {
        let Some(&(first_ns, _)) = self.deadlines.first() else { return };
        if self.wake_at_ns.is_none_or(|wake_at_ns| first_ns < wake_at_ns) {
            self.wake_at_ns = Some(first_ns);
            actions.push(Action::WakeAt(first_ns));
        }
    }

    /// What an invocation that will not run would have taken: the best device, behind everything that waits.
    fn estimate(&self, arrival: &Arrival) -> Estimate {
        let devices = self.view.devices().map(|(_, device)| {
            let mut estimate = expect(self.view.load_times(), device, &arrival.models);
            let turn_ns = device.run_time_ns().mean / f64::from(device.spec().slots.max(1));
            let queue_ns = turn_ns * self.policy.waiting() as f64;
            estimate.wait_ns = estimate.wait_ns.saturating_add(queue_ns as u64);
            estimate
        });
        devices.min_by_key(Estimate::ready_after_ns).unwrap_or_default()
    }
}
