//! Where it finishes first: Weir's own policy, and the default.
//!
//! Nothing is bound to a device before it can start there. Whenever something has happened, those that wait longest are costed anew on the
//! devices that count; see [`costs`]. If the best is a device that can take it now, it starts there. If not, it waits, and what it would
//! bring to the busy device is counted in what those behind it are offered.
//!
//! Invocations of the same models and tenant form a queue. The head of a queue may be served well by the devices that hold its models while
//! those behind it would have to wait longer than a load takes: then the first of them that would is costed too, and brings another copy.
//! Only the [`HEADS_MAX`] heads that wait longest are looked at, and those whose models a free device holds, so that a decision costs about
//! the same whatever waits. Urgent ones (a priority other than 0) have a lead, not a right of way: whatever waits long enough is first, and
//! that bounds all waits.

mod costs;
mod queues;

use super::plain::Plain;
use super::{Placement, Placer, Policy, Request};
use crate::{DeviceKey, DeviceView, View};
use costs::Costs;
use queues::{Order, QueueKey, Queues};
use smallvec::SmallVec;
use weir_types::InvocationId;

/// The default policy.
pub struct FinishFirst {
    placer: Placer,
    plain: Plain,
    queues: Queues,
    round: Round,
    passes: Passes,
}

/// What has been looked at since the last event.
#[derive(Debug, Default)]
struct Round {
    /// Heads to be costed, the first last. None: not collected yet.
    heads: Option<Vec<(Order, QueueKey)>>,
    claims: Claims,
}

/// Work that those looked at before are waiting to bring to devices.
type Claims = SmallVec<[(DeviceKey, u64); 8]>;

/// How often others have started since the first that found no room anywhere.
#[derive(Debug, Default)]
struct Passes {
    invocation: Option<InvocationId>,
    count: u32,
}

/// What becomes of one that waits.
enum Verdict {
    Start(DeviceKey),
    /// For devices that hold its models.
    WaitForHolder,
    /// For a device that it would bring this much work to.
    WaitToLoad(DeviceKey, u64),
    /// No device has room for its models.
    NoRoom,
}

/// Heads that are costed for one event.
const HEADS_MAX: usize = 32;

/// Free devices whose models are looked up, and on which a load is costed.
const FREE_MAX: usize = 16;

/// How often others may start before one that finds no room has all devices kept for it.
const PASSES_MAX: u32 = 64;

impl FinishFirst {
    /// With this choice of victims.
    #[must_use]
    pub fn new(placer: Placer) -> Self {
        let (plain, queues, round, passes) = Default::default();
        Self { placer, plain, queues, round, passes }
    }

    /// The heads that are costed for this event, the first last.
    fn heads(&self, view: &View) -> Vec<(Order, QueueKey)> {
        let mut heads: Vec<_> = self.queues.heads().take(HEADS_MAX).collect();
        if self.queues.heads_len() > heads.len() {
            let free = view.open().take(FREE_MAX).filter_map(|device| view.device(device));
            for model in free.flat_map(DeviceView::held) {
                heads.extend(self.queues.heads_for(model));
            }
            heads.sort_unstable();
            heads.dedup();
        }
        heads.reverse();
        heads
    }

    /// What becomes of the one at a place, and which one behind it in its queue is to be looked at for its own sake.
    fn judge(
        &self,
        now_ns: u64,
        view: &View,
        at: (Order, QueueKey),
        request: &Request,
    ) -> (Verdict, Option<Order>) {
        let costs =
            Costs { now_ns, view, placer: &self.placer, queues: &self.queues, claims: &self.round.claims };
        let best = costs.best(at.0, request);
        let verdict = match best.device {
            Some((device, true)) => Verdict::Start(device),
            Some((device, false)) if best.work_ns > 0 => Verdict::WaitToLoad(device, best.work_ns),
            Some(_) => Verdict::WaitForHolder,
            None => Verdict::NoRoom,
        };
        let next = match verdict {
            Verdict::WaitForHolder => {
                let mut load = None;
                self.queues.first_behind(at.1, at.0, |order| costs.would_load(order, request, &mut load))
            }
            _ => None,
        };
        (verdict, next)
    }
}

impl Policy for FinishFirst {
    fn name(&self) -> &'static str {
        "finish-first"
    }

    fn arrived(&mut self, request: Request, _view: &View) {
        if request.models.is_empty() { self.plain.push(request) } else { self.queues.push(request) }
    }

    fn begin(&mut self, _now_ns: u64, _view: &View) {
        self.round = Round::default();
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<Placement> {
        if let Some(placement) = self.plain.next(view) {
            return Some(placement);
        }
        if self.queues.len() == 0 || view.open().next().is_none() {
            return None;
        }
        let mut heads = self.round.heads.take().unwrap_or_else(|| self.heads(view));
        let mut placement = None;
        while let Some((order, key)) = heads.pop() {
            let Some(request) = self.queues.get(key, order) else { continue };
            if !view.tenants().may_start(request.tenant) {
                continue;
            }
            let invocation = request.invocation;
            let (verdict, next) = self.judge(now_ns, view, (order, key), request);
            insert(&mut heads, next.map(|next| (next, key)));
            match verdict {
                Verdict::Start(device) => {
                    let Some((request, next)) = self.queues.take(key, order) else { continue };
                    insert(&mut heads, next.map(|next| (next, key)));
                    self.passes.started(invocation);
                    placement = self.placer.place(now_ns, view, device, request).ok();
                    break;
                }
                Verdict::WaitForHolder => {}
                Verdict::WaitToLoad(device, work_ns) => self.round.claims.push((device, work_ns)),
                Verdict::NoRoom if self.passes.is_kept_out(invocation) => heads.clear(),
                Verdict::NoRoom => {}
            }
        }
        self.round.heads = Some(heads);
        placement
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<Request> {
        self.passes.gone(invocation);
        self.queues.remove(invocation).or_else(|| self.plain.remove(invocation))
    }

    fn waiting(&self) -> usize {
        self.plain.len() + self.queues.len()
    }
}

/// Put one among those that are still to be costed, the first last.
fn insert(heads: &mut Vec<(Order, QueueKey)>, head: Option<(Order, QueueKey)>) {
    if let Some(head) = head {
        let at = heads.partition_point(|other| *other > head);
        heads.insert(at, head);
    }
}

impl Passes {
    /// The first that finds no room is watched. True if it was passed often enough.
    fn is_kept_out(&mut self, invocation: InvocationId) -> bool {
        if self.invocation.is_none() {
            *self = Self { invocation: Some(invocation), count: 0 };
        }
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
