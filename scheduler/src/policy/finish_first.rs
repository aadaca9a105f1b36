//! Weir's default policy: places an invocation where it finishes first, weighed against the delay
//! of other invocations.
//!
//! No invocation is bound to a device before it can start there. After every event, the oldest
//! waiting invocations are costed on the candidate devices; the cost is the total additional
//! waiting time of all invocations, see `costs`. If the best device is free, the invocation starts
//! there. If not, the invocation waits, and its work counts as a claim on the busy device when
//! later invocations are costed.
//!
//! An invocation that needs a load takes a device for longer than one that does not. It yields to
//! invocations that arrived up to [`YIELD_LOADS`] load times after it and need no load; it yields
//! less the more invocations wait for the same load. An invocation also yields to those of tenants
//! that have had less device time, if the device holds their models: nothing interrupts its run.
//!
//! Invocations of the same function, models and tenant form a queue. The devices that hold the
//! models may serve the head of a queue soon, while later invocations of the queue would wait
//! longer than a load takes. The first invocation that a load would serve earlier is costed too,
//! and loads another copy of the models. To keep the cost of a decision about constant, only the
//! oldest heads and the heads whose models a free device holds are costed. Where even that would be
//! too much, only changes since the last event are considered; see `Scope`. Urgent invocations (a
//! priority other than 0) get a lead instead of absolute precedence: of its tenant's invocations,
//! each comes first after it has waited long enough. Whatever its
//! urgency and age, it yields to tenants with less device time whose models the device holds.

mod costs;
mod queues;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod brute_force;

use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::estimate::round_ns;
use crate::{DeviceKey, DeviceView, View};
use costs::{Best, CostInputs};
use queues::{LinePosition, QueueKey, Queues};
use smallvec::SmallVec;
use std::cell::OnceCell;
use weir_types::InvocationId;

/// The default policy.
pub struct FinishFirst {
    placer: RoomFinder,
    queues: Queues,
    /// The latest arrival, and the event of its arrival.
    latest: Option<(u64, (LinePosition, QueueKey))>,
    round: Round,
    passes: Passes,
}

/// The state of the decision since the last event.
#[derive(Debug, Default)]
struct Round {
    /// Heads still to be costed, in reverse order. `None`: not collected yet.
    heads: Option<Vec<Head>>,
    scope: Scope,
    claims: Claims,
}

/// An invocation to be costed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    /// The head's turn: its place in the order, or a later place if it yields.
    turn: LinePosition,
    order: LinePosition,
    queue: QueueKey,
}

/// Which heads are compared with which devices after an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Scope {
    /// All heads with all free devices, up to limits.
    #[default]
    All,
    /// Heads that found no placement before are not compared with the same devices again: the
    /// newcomer is compared with all free devices, the other heads with the devices that were
    /// freed.
    News,
}

/// Work that earlier heads of this round wait to bring to devices.
type Claims = SmallVec<[(DeviceKey, u64); 8]>;

/// How often other invocations started since the first invocation that found no room anywhere.
#[derive(Debug, Default)]
struct Passes {
    invocation: Option<InvocationId>,
    count: u32,
}

/// The decision about a waiting invocation.
enum Verdict {
    Start(DeviceKey),
    /// Wait for a device that holds its models.
    WaitForHolder,
    /// Wait for a device, bringing this much work to it.
    WaitToLoad(DeviceKey, u64),
    /// Wait until its tenant's other models are evicted.
    WaitForCap,
    /// Wait until a device that can run the invocation is up again.
    WaitForDevice,
    /// No device has room for its models.
    NoRoom,
}

/// Search limits per event.
#[derive(Debug, Clone, Copy)]
struct Reach {
    /// Heads that are costed.
    heads: usize,
    /// Free devices whose models are looked up, and on which a load is costed.
    free: usize,
    /// Busy devices on which a load is costed, first to be free first.
    busy: usize,
    /// Holders of a model on which a wait is costed, first to be free first.
    holders: usize,
}

impl Scope {
    const fn reach(self) -> Reach {
        match self {
            Self::All => Reach { heads: 32, free: 16, busy: 8, holders: 8 },
            Self::News => Reach { heads: 8, free: 6, busy: 2, holders: 3 },
        }
    }
}

/// Maximum number of heads for [`Scope::All`].
const HEADS_ALL_MAX: usize = 48;

/// Maximum product of heads and free devices for [`Scope::All`].
const ALL_MAX: usize = 128;

/// Load times by which an invocation that needs a load yields.
const YIELD_LOADS: f64 = 2.0;

/// Number of passes after which an invocation that finds no room has all devices kept for it.
const PASSES_MAX: u32 = 64;

impl FinishFirst {
    /// Creates the policy with a victim selection.
    #[must_use]
    pub fn new(placer: RoomFinder) -> Self {
        let (queues, latest, round, passes) = Default::default();
        Self { placer, queues, latest, round, passes }
    }

    /// The heads to cost for this event, in reverse order.
    fn heads(&self, view: &View, scope: Scope) -> Vec<Head> {
        if scope == Scope::News && view.eased().is_empty() {
            return self.newcomer(view).map(Head::new).into_iter().collect();
        }
        let reach = scope.reach();
        let mut heads: Vec<_> = self.queues.heads().take(reach.heads).map(Head::new).collect();
        if self.queues.heads_len() > heads.len() {
            let keys: SmallVec<[DeviceKey; 16]> = match scope {
                Scope::All => view.open().take(reach.free).collect(),
                Scope::News => view.eased().iter().copied().take(reach.free).collect(),
            };
            for model in keys.into_iter().filter_map(|key| view.device(key)).flat_map(DeviceView::held) {
                heads.extend(self.queues.heads_for(model).map(Head::new));
            }
            heads.extend(self.newcomer(view).map(Head::new));
            heads.sort_unstable();
            heads.dedup();
        }
        heads.reverse();
        heads
    }

    fn newcomer(&self, view: &View) -> Option<(LinePosition, QueueKey)> {
        self.latest.filter(|(event, _)| *event == view.event()).map(|(_, at)| at)
    }

    fn scope(&self, view: &View) -> Scope {
        let heads = self.queues.heads_len();
        let free = view.open().take(Scope::All.reach().free).count();
        if heads <= HEADS_ALL_MAX && heads * free <= ALL_MAX { Scope::All } else { Scope::News }
    }

    /// The head after it has yielded to one of `heads`; `None` if it starts now.
    fn yields(
        &self,
        view: &View,
        (head, request): (Head, &PlacementRequest),
        device: DeviceKey,
        heads: &[Head],
    ) -> Option<Head> {
        let later = head.yields(view, device, request);
        let later = later.filter(|later| heads.last().is_some_and(|other| *other < *later));
        later.or_else(|| self.last_of_tenants_behind(view, request, device, heads).map(|at| head.after(at)))
    }

    /// The last of `heads` whose tenant has had less device time than that of `request`, and whose
    /// models the device holds. A head yields to all of them at once, so that it is costed only once
    /// more.
    fn last_of_tenants_behind(
        &self,
        view: &View,
        request: &PlacementRequest,
        device: DeviceKey,
        heads: &[Head],
    ) -> Option<Head> {
        let tenants = view.tenants();
        if !tenants.is_ahead(request.tenant) {
            return None;
        }
        let device = view.device(device)?;
        let is_behind = |head: &&Head| {
            self.queues.get(head.queue, head.order).is_some_and(|other| {
                tenants.is_behind(other.tenant, request.tenant)
                    && tenants.may_start(other.tenant)
                    && device.own(&other.models).all(|demand| device.holds(demand.model))
            })
        };
        heads.iter().find(is_behind).copied()
    }

    /// The decision about an invocation, and the next invocation of its queue to cost separately.
    fn judge(
        &self,
        now_ns: u64,
        view: &View,
        head: Head,
        request: &PlacementRequest,
    ) -> (Verdict, Option<LinePosition>) {
        let news_only =
            self.round.scope == Scope::News && self.newcomer(view) != Some((head.order, head.queue));
        let costs = CostInputs {
            now_ns,
            view,
            placer: &self.placer,
            before: &|model, order| self.queues.before(model, order),
            claims: &self.round.claims,
            reach: self.round.scope.reach(),
            news_only,
            request,
            waited_ns: now_ns.saturating_sub(self.queues.waits_since_ns(head.queue)),
            quickest_ns: view.quickest_run_time_ns(request),
            load: OnceCell::new(),
        };
        let verdict = Verdict::from_best(costs.best(head.order), &costs);
        let next = match verdict {
            Verdict::WaitForHolder => {
                let would_not_wait = |order| !costs.best(order).waits_for_holder();
                self.queues.first_behind(head.queue, head.order, would_not_wait)
            }
            _ => None,
        };
        (verdict, next)
    }
}

impl Head {
    fn new((order, queue): (LinePosition, QueueKey)) -> Self {
        Self { turn: order, order, queue }
    }

    /// The postponed head of an invocation that would load on a device; `None` if it has yielded
    /// already.
    fn yields(self, view: &View, device: DeviceKey, request: &PlacementRequest) -> Option<Self> {
        let device = view.device(device).filter(|_| self.turn == self.order)?;
        let missing = || device.own(&request.models).filter(|demand| !device.holds(demand.model));
        let load_ns = missing().map(|demand| view.load_time_ns(device, demand)).fold(0, u64::saturating_add);
        let waiting = missing().map(|demand| view.model(demand.model).waiting()).max()?;
        let yield_ns = round_ns(YIELD_LOADS * load_ns as f64 / f64::from(waiting.max(1)));
        (yield_ns > 0).then(|| Self { turn: (self.order.0.saturating_add(yield_ns), self.order.1), ..self })
    }

    /// The head, postponed until after `other`.
    fn after(self, other: Self) -> Self {
        Self { turn: (other.turn.0, other.turn.1.saturating_add(1)), ..self }
    }
}

impl Verdict {
    fn from_best(best: Best, costs: &CostInputs<'_>) -> Self {
        match best.device {
            Some((device, true)) => Self::Start(device),
            Some(_) if best.waits_for_holder() => Self::WaitForHolder,
            Some((device, false)) => Self::WaitToLoad(device, best.work_ns),
            None if costs.is_capped() => Self::WaitForCap,
            None if !costs.has_device() => Self::WaitForDevice,
            None => Self::NoRoom,
        }
    }
}

impl Policy for FinishFirst {
    fn name(&self) -> &'static str {
        "finish-first"
    }

    fn arrived(&mut self, request: PlacementRequest, view: &View) {
        self.latest = Some((view.event(), self.queues.push(request)));
    }

    fn begin(&mut self, _now_ns: u64, _view: &View) {
        self.round = Round::default();
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        if self.queues.len() == 0 || view.open().next().is_none() {
            return None;
        }
        let mut heads = self.round.heads.take().unwrap_or_else(|| {
            self.round.scope = self.scope(view);
            self.heads(view, self.round.scope)
        });
        let mut placement = None;
        while let Some(head) = heads.pop() {
            let Head { order, queue, .. } = head;
            let Some(request) = self.queues.get(queue, order) else { continue };
            if !view.tenants().may_start(request.tenant) {
                continue;
            }
            let invocation = request.invocation;
            let (verdict, next) = self.judge(now_ns, view, head, request);
            insert(&mut heads, next.map(|next| Head::new((next, queue))));
            match verdict {
                Verdict::Start(device) => {
                    if !self.passes.are_spent(invocation)
                        && let Some(later) = self.yields(view, (head, request), device, &heads)
                    {
                        insert(&mut heads, Some(later));
                        continue;
                    }
                    let Some((request, next)) = self.queues.take(queue, order) else { continue };
                    insert(&mut heads, next.map(|next| Head::new((next, queue))));
                    self.passes.started(invocation);
                    placement = self.placer.place(now_ns, view, device, request).ok();
                    break;
                }
                Verdict::WaitForHolder | Verdict::WaitForCap | Verdict::WaitForDevice => {}
                Verdict::WaitToLoad(device, work_ns) => self.round.claims.push((device, work_ns)),
                Verdict::NoRoom if self.passes.is_kept_out(invocation) => heads.clear(),
                Verdict::NoRoom => {}
            }
        }
        self.round.heads = Some(heads);
        placement
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        self.passes.gone(invocation);
        self.queues.remove(invocation)
    }

    fn waiting(&self) -> usize {
        self.queues.len()
    }
}

/// Inserts a head into the heads still to be costed, in reverse order.
fn insert(heads: &mut Vec<Head>, head: Option<Head>) {
    if let Some(head) = head {
        let at = heads.partition_point(|other| *other > head);
        heads.insert(at, head);
    }
}

impl Passes {
    /// Tracks the first invocation that finds no room. Returns whether it was passed often enough.
    fn is_kept_out(&mut self, invocation: InvocationId) -> bool {
        if self.invocation.is_none() {
            *self = Self { invocation: Some(invocation), count: 0 };
        }
        self.are_spent(invocation)
    }

    fn are_spent(&self, invocation: InvocationId) -> bool {
        self.invocation == Some(invocation) && self.count >= PASSES_MAX
    }

    fn started(&mut self, invocation: InvocationId) {
        self.gone(invocation);
        self.count += u32::from(self.invocation.is_some());
    }

    fn gone(&mut self, invocation: InvocationId) {
        if self.invocation == Some(invocation) {
            *self = Self::default();
        }
    }
}
