//! The state machine: events in, actions out.

mod arriving;
mod device_wait;
mod events;
mod pause;
mod plain;
mod required;
mod separate;
mod waiting;

use crate::slo::{AdmissionQueue, Refused};
use crate::{
    Action, Alternative, Arrival, DeviceView, Event, Network, PlacementDecision, PlacementRequest, Policy,
    PolicyKind, PolicyOptions, Rejection, SloSettings, TenantLimits, View, Why,
};
use device_wait::DeviceWait;
use plain::Plain;
use required::RequiredCopies;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use waiting::Waits;
use weir_types::{InvocationId, TenantId};

/// Settings of a scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Maximum number of waiting invocations; further arrivals are rejected.
    pub queue_len_max: usize,
    /// Limits by tenant.
    pub tenants: BTreeMap<TenantId, TenantLimits>,
    /// Default limits for tenants without an entry.
    pub tenant_default: TenantLimits,
    /// Settings of SLO admission.
    #[serde(default)]
    pub slo: SloSettings,
    /// Inter-node bandwidth and latency.
    #[serde(default, skip_serializing_if = "is_default")]
    pub network: Network,
    /// Device work, in milliseconds for each run slot, that may be committed to a device ahead of
    /// its runs, under [`DeviceRule::CommittedWork`](crate::DeviceRule::CommittedWork). Enough to
    /// hide the hand-over from one run to the next; more binds invocations to devices earlier than
    /// needed.
    #[serde(default = "commit_ahead_ms")]
    pub commit_ahead_ms: u32,
    /// Maximum part of a device's memory for required copies of models, in percent; 0: no model is
    /// required.
    #[serde(default = "required_percent_max")]
    pub required_percent_max: u32,
    /// Longest time, in milliseconds, that an invocation waits while no device is known; 0: such an
    /// invocation is rejected at once.
    #[serde(default = "device_wait_ms")]
    pub device_wait_ms: u32,
}

/// Enough to start a machine, to fetch an image and to start a node.
const fn device_wait_ms() -> u32 {
    120_000
}

/// Half of the memory stays free for the models of other calls.
const fn required_percent_max() -> u32 {
    50
}

/// Several times the hand-over from one run to the next, which takes about a millisecond between
/// nodes, and a small part of the time of a load.
const fn commit_ahead_ms() -> u32 {
    10
}

fn is_default(network: &Network) -> bool {
    *network == Network::default()
}

impl Settings {
    /// The limits of `tenant`.
    #[must_use]
    pub fn limits_of(&self, tenant: &TenantId) -> &TenantLimits {
        self.tenants.get(tenant).unwrap_or(&self.tenant_default)
    }
}

impl Default for Settings {
    fn default() -> Self {
        let (tenants, tenant_default, slo, network) = Default::default();
        Self {
            queue_len_max: 4_096,
            tenants,
            tenant_default,
            slo,
            network,
            commit_ahead_ms: commit_ahead_ms(),
            required_percent_max: required_percent_max(),
            device_wait_ms: device_wait_ms(),
        }
    }
}

/// Counts of events that were ignored or corrected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Corrections {
    /// The event names an invocation that neither waits nor runs.
    pub unknown_invocation: u64,
    /// The event names a node that is not up, or a device that the node does not have.
    pub unknown_device: u64,
    /// An invocation arrived again while it waited or ran.
    pub arrived_twice: u64,
    /// A model was reported loaded where it was loaded, or evicted where it was not.
    pub residency: u64,
    /// A model occurred twice in one arrival.
    pub named_twice: u64,
    /// A node came up while it was up.
    pub node_up_twice: u64,
    /// The time was before the last one. The last time was used instead.
    pub clock_went_back: u64,
}

/// Decides where invocations run. One driver feeds it events and carries out its actions in order.
pub struct Scheduler {
    queue_len_max: usize,
    /// Queue of invocations without models, which bypass the policy.
    plain: Plain,
    policy: Box<dyn Policy>,
    /// Queue of invocations with an SLO, which bypass the policy.
    admission: AdmissionQueue,
    /// Whether any invocation had an SLO so far.
    has_slos: bool,
    view: View,
    now_ns: u64,
    waiting: HashMap<InvocationId, Waits>,
    /// Predicted device time of all waiting invocations.
    waiting_ns: u64,
    /// Arrivals since [`Event::Paused`]; `None` unless the scheduler is paused.
    held: Option<Vec<Arrival>>,
    /// Deadlines of waiting invocations, earliest first.
    deadlines: BTreeSet<(u64, InvocationId)>,
    /// The waiting invocations for which no device is known.
    device_wait: DeviceWait,
    /// The copies of models that devices keep in memory.
    required: RequiredCopies,
    /// The pending wake-up request.
    wake_at_ns: Option<u64>,
    corrections: Corrections,
}

impl Scheduler {
    /// A scheduler with the default policy.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self::with_policy(settings, PolicyKind::default().build(&PolicyOptions::default()))
    }

    /// A scheduler with `policy`.
    #[must_use]
    pub fn with_policy(settings: &Settings, policy: Box<dyn Policy>) -> Self {
        let (waiting, deadlines, corrections) = Default::default();
        let queue_len_max = settings.queue_len_max;
        let view = View::new(settings);
        let admission = AdmissionQueue::new(&settings.slo);
        let has_slos = false;
        let now_ns = 0;
        let wake_at_ns = None;
        Self {
            queue_len_max,
            plain: Plain::default(),
            policy,
            admission,
            has_slos,
            view,
            now_ns,
            waiting,
            waiting_ns: 0,
            held: None,
            deadlines,
            device_wait: DeviceWait::new(settings.device_wait_ms),
            required: RequiredCopies::new(settings.required_percent_max),
            wake_at_ns,
            corrections,
        }
    }

    /// Processes `event`, which happened at `now_ns`, and appends the resulting actions to
    /// `actions`.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        if now_ns < self.now_ns {
            self.corrections.clock_went_back += 1;
        }
        self.now_ns = self.now_ns.max(now_ns);
        let freed = self.view.freed();
        self.view.begin(self.now_ns);
        let expired = self.expire(actions) | self.end_device_waits(actions);
        let woken = matches!(event, Event::Woken | Event::Resumed);
        let newcomer = match event {
            Event::Arrived(arrival) if self.held.is_some() => {
                self.hold(arrival, actions);
                None
            }
            Event::Arrived(arrival) => self.arrived(arrival, actions),
            other => {
                self.note(other, actions);
                None
            }
        };
        let mut has_gaps = false;
        if self.has_slos {
            self.settle_admission();
            has_gaps = self.admission.take_gaps();
        }
        // Expected completions need no replanning.
        if newcomer.is_some() || woken || expired || has_gaps || freed != self.view.freed() {
            self.place(actions);
        }
        if let Some(newcomer) = newcomer {
            self.bound_queue(newcomer, actions);
        }
        // A wait that this event began may have ended: its SLO cannot be met, or no wait is allowed.
        self.end_device_waits(actions);
        if self.held.is_none() {
            let waiting_bytes = || self.waiting.values().map(|waits| waits.bytes).max().unwrap_or_default();
            self.required.place(self.now_ns, waiting_bytes, &mut self.view, actions);
        }
        self.ask_to_be_woken(actions);
    }

    /// The scheduler's view of the cluster.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The policy in use.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Number of waiting invocations, with and without SLOs.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.held.as_ref().map_or(0, Vec::len)
    }

    /// Counts of ignored or corrected events so far.
    #[must_use]
    pub fn corrections(&self) -> Corrections {
        self.corrections
    }

    /// Starts the placements that the policy returns: first with the tenants' turns, then, if
    /// invocations still wait, without turns.
    fn place(&mut self, actions: &mut Vec<Action>) {
        if self.held.is_some() {
            return;
        }
        if self.has_slos {
            self.place_admitted(actions);
        }
        loop {
            self.policy.begin(self.now_ns, &self.view);
            while let Some(placement) = self.next() {
                self.start(placement, actions);
            }
            if self.waiting.is_empty() || !self.view.tenants_mut().waive_turns() {
                return;
            }
        }
    }

    fn next(&mut self) -> Option<PlacementDecision> {
        self.plain.next(&self.view).or_else(|| self.policy.next(self.now_ns, &self.view))
    }

    /// Queues a request that has no admitted SLO.
    fn queue(&mut self, request: PlacementRequest) {
        if request.models.is_empty() {
            self.plain.push(request);
        } else {
            self.policy.arrived(request, &self.view);
        }
    }

    /// Removes a request queued by [`queue`](Self::queue).
    fn unqueue(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        self.plain.remove(invocation).or_else(|| self.policy.remove(invocation, &self.view))
    }

    /// Starts the invocations admitted with an SLO first, and admits those without an SLO that have
    /// waited for too long.
    fn place_admitted(&mut self, actions: &mut Vec<Action>) {
        while let Some(request) = self.policy.late(self.now_ns, &self.view) {
            self.let_go(&request, actions, Rejection::Slo);
        }
        while let Some((arrived_at_ns, invocation)) = self.admission.impatient(self.now_ns) {
            self.admission.unwatch(invocation, arrived_at_ns);
            let Some(request) = self.unqueue(invocation) else { continue };
            if let Err(request) = self.admission.take_in(self.now_ns, &self.view, request) {
                self.queue(request);
                self.admission.watch(invocation, self.now_ns);
            }
        }
        while let Some(placement) = self.admission.next(self.now_ns, &self.view) {
            self.start(placement, actions);
        }
        for request in self.admission.take_late() {
            self.admission.watch(request.invocation, self.now_ns);
            self.queue(request);
        }
        self.settle_admission();
    }

    /// Rejects a request that no queue holds any more.
    fn let_go(&mut self, request: &PlacementRequest, actions: &mut Vec<Action>, why: Rejection) {
        self.waits_no_more(request);
        self.reject(request, why, actions);
    }

    fn refuse(&mut self, refused: Refused, actions: &mut Vec<Action>) {
        let Refused { request, estimate, alternatives, is_over_limits } = refused;
        // A rejection by the tenant's limits is no evidence about device capacity.
        if !is_over_limits {
            self.admission.note_turned_away(self.now_ns, &self.view, &request);
        }
        self.waits_no_more(&request);
        self.view.forget(&request);
        let invocation = request.invocation;
        actions.push(Action::Reject { invocation, why: Rejection::Slo, estimate, alternatives });
    }

    /// Carries out a placement.
    fn start(&mut self, mut placement: PlacementDecision, actions: &mut Vec<Action>) {
        let invocation = placement.request.invocation;
        self.waits_no_more(&placement.request);
        placement.why.queued_ns = self.now_ns.saturating_sub(placement.request.arrived_at_ns);
        self.view.place(&placement, self.now_ns);
        let PlacementDecision { node, device, evict, why, .. } = placement;
        let given_up = device.map(|device| self.view.take_given_up(device)).unwrap_or_default();
        let device = device.and_then(|device| self.view.device(device)).map(DeviceView::id);
        let evict =
            given_up.into_iter().chain(evict).map(|model| self.view.model_id(model).clone()).collect();
        actions.push(Action::Start { invocation, node, device, evict, why });
    }

    /// Rejects a newcomer that was not started in this call and exceeds the queue's limit.
    fn bound_queue(&mut self, newcomer: InvocationId, actions: &mut Vec<Action>) {
        if self.waiting.len() > self.queue_len_max
            && let Some(request) = self.give_up(newcomer)
        {
            self.reject(&request, Rejection::QueueFull, actions);
        }
    }

    /// Rejects waiting invocations past their deadline. Returns whether there were any.
    fn expire(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some(&(deadline_at_ns, invocation)) = self.deadlines.first() {
            if deadline_at_ns > self.now_ns {
                break;
            }
            if let Some(request) = self.give_up(invocation) {
                self.reject(&request, Rejection::Deadline, actions);
                any = true;
            }
        }
        any
    }

    /// Removes a waiting invocation from its queue.
    fn give_up(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        self.forget_waiting(invocation);
        let admitted = self.has_slos.then(|| self.admission.remove(invocation, &self.view)).flatten();
        let unjudged = || self.device_wait.take_unjudged(invocation);
        let request = admitted.or_else(unjudged).or_else(|| self.unqueue(invocation))?;
        self.view.tenants_mut().end_waiting(request.tenant);
        Some(request)
    }

    fn reject(&mut self, request: &PlacementRequest, why: Rejection, actions: &mut Vec<Action>) {
        let mut alternatives = self.closest(request);
        let estimate = alternatives.first().map(|best| best.estimate).unwrap_or_default();
        if why == Rejection::NoCapacity {
            alternatives.clear();
        }
        self.view.forget(request);
        actions.push(Action::Reject { invocation: request.invocation, why, estimate, alternatives });
    }

    fn ask_to_be_woken(&mut self, actions: &mut Vec<Action>) {
        let deadline_at_ns = self.deadlines.first().map(|(deadline_at_ns, _)| *deadline_at_ns);
        let impatient_at_ns = self.admission.impatient_at_ns(self.now_ns).filter(|_| self.has_slos);
        let lapse_at_ns = self.view.lapse_at_ns().filter(|_| !self.waiting.is_empty());
        let others = self.view.tenants().wake_at_ns().into_iter().chain(impatient_at_ns).chain(lapse_at_ns);
        let others = others.chain(self.admission.reservation_at_ns());
        let others = others.chain(self.required.place_at_ns().filter(|_| self.held.is_none()));
        let others = others.chain(self.device_wait.first_end_ns());
        let Some(first_ns) = deadline_at_ns.into_iter().chain(others).min() else {
            return;
        };
        if self.wake_at_ns.is_none_or(|wake_at_ns| first_ns < wake_at_ns) {
            self.wake_at_ns = Some(first_ns);
            actions.push(Action::WakeAt(first_ns));
        }
    }

    /// The devices on which a rejected invocation would end first if it started after the whole
    /// queue.
    fn closest(&self, request: &PlacementRequest) -> Vec<Alternative> {
        let suits = |device: &&DeviceView| device.suits(&request.models);
        let waiting = self.plain.len() + self.policy.waiting();
        let devices = self.view.devices().map(|(_, device)| device).filter(suits).map(|device| {
            let mut estimate = self.view.estimate(self.now_ns, device, request);
            let turn_ns = device.run_time_ns().mean / f64::from(device.spec().slots.max(1));
            let queue_ns = turn_ns * waiting as f64;
            estimate.wait_ns = estimate.wait_ns.saturating_add(crate::estimate::round_ns(queue_ns));
            Alternative { device: device.id(), estimate }
        });
        let mut closest = Why::best_of(devices);
        for Alternative { device, estimate } in &mut closest {
            let device = self.view.device_key(*device).and_then(|key| self.view.device(key));
            let explained = device.map(|device| self.view.explain(self.now_ns, device, request));
            estimate.load_by_tier = explained.map(|explained| explained.load_by_tier).unwrap_or_default();
        }
        closest
    }
}
