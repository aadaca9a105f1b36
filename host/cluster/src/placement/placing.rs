//! Announces a call to the scheduler and waits for its placement.

use super::guard::{LocalPlacement, PlacementOrigin};
use super::state::PlacementRefusal;
use super::{Placement, PlacementGuard, Placements, Placing};
use crate::wire::Granted;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;
use weir_call::Fault;
use weir_call::Objective;
use weir_scheduler::{Arrival, Rejection, Slo};
use weir_types::{Cost, ErrorCode, InvocationId, TenantId};

impl Placements {
    /// Waits for the placement of a call with this arrival. Dropping the future, or the placement,
    /// reports the end of the call to the scheduler.
    pub async fn place(
        self: &Arc<Self>,
        arrival: Arrival,
        objective: &Objective,
        arrived: Instant,
    ) -> Result<(Placement, PlacementGuard), Fault> {
        let models = arrival.models.iter().map(|demand| demand.model.clone()).collect();
        let deadline_at_ns = arrival.deadline_at_ns;
        let is_due_later = arrival.slo.is_some_and(|slo| slo.due_at_ns > deadline_at_ns);
        let guard = self.guard(arrival.invocation, PlacementOrigin::Scheduler);
        let answer = match self.arrive(arrival, models) {
            Placing::Done(answer) => answer,
            Placing::Waits(started) => started.await.unwrap_or(Err(PlacementRefusal::NoAnswer)),
        };
        let place = answer.map_err(|refusal| match refusal {
            // The objective could be met: the caller allows less time than the objective.
            PlacementRefusal::Rejected(Rejection::Slo, estimate)
                if is_due_later && objective.cost_max.is_none_or(|cost_max| estimate.cost <= cost_max) =>
            {
                let left_ns = deadline_at_ns.saturating_sub(self.time_ns(arrived));
                let text = format!(
                    "the call would finish after about {} ms, later than its deadline in {} ms (timeout, gateway.infer_wall_ms_max, limits.deadline_ms)",
                    estimate.finish_after_ns() / 1_000_000,
                    left_ns / 1_000_000,
                );
                Fault::new(ErrorCode::DeadlineExceeded, text)
            }
            PlacementRefusal::Rejected(Rejection::Slo, estimate) => objective.refuse(&estimate, arrived.elapsed()),
            refusal => refusal.into(),
        })?;
        Ok((place, guard))
    }

    /// Places a call without models here, without asking the scheduler: such a call would not gain
    /// from another node. `None` if too many such calls run, if the tenant has limits, or if this node
    /// has no devices.
    pub fn place_unasked(
        self: &Arc<Self>,
        id: InvocationId,
        tenant: &TenantId,
    ) -> Option<(Placement, PlacementGuard)> {
        self.take_unasked(tenant).then(|| {
            (Placement::Local(LocalPlacement::new(id, None)), self.guard(id, PlacementOrigin::Unasked))
        })
    }

    /// Converts an objective to the scheduler's clock.
    pub fn slo(&self, objective: &Objective, arrived: Instant) -> Option<Slo> {
        let due_at_ns = objective.latency.map_or(u64::MAX, |latency| self.time_ns(arrived + latency));
        let cost_max = objective.cost_max.unwrap_or(Cost::MAX);
        (!objective.is_none()).then_some(Slo { due_at_ns, cost_max })
    }

    /// The placement of a call that was granted its place on this node. Other schedulers learn of
    /// the call from `arrival` if they take over.
    pub fn granted(self: &Arc<Self>, granted: &Granted, arrival: Arrival) -> (Placement, PlacementGuard) {
        let invocation = arrival.invocation;
        // The scheduler that has placed the call learns of its end from this node.
        let (origin, arrival) = match granted.is_fallback {
            true => (PlacementOrigin::Fallback, None),
            false => (PlacementOrigin::Scheduler, Some(arrival)),
        };
        self.state.lock().begin(invocation, granted.clone(), None, arrival);
        (Placement::Local(LocalPlacement::new(invocation, granted.device)), self.guard(invocation, origin))
    }

    fn guard(self: &Arc<Self>, invocation: InvocationId, origin: PlacementOrigin) -> PlacementGuard {
        PlacementGuard { placements: self.clone(), invocation, origin, end: AtomicU8::default() }
    }

    /// Whether limits of the tenant's share may hold its calls back.
    #[must_use]
    pub fn may_hold_back(&self, tenant: &TenantId) -> bool {
        self.scheduler.settings.limits_of(tenant).may_hold_back()
    }

    /// Takes one of the permits for calls that would not gain from another node and that no cap
    /// holds back.
    fn take_unasked(&self, tenant: &TenantId) -> bool {
        if self.devices.is_empty() || self.may_hold_back(tenant) {
            return false;
        }
        let free = |taken| (taken < self.unasked_max).then_some(taken + 1);
        self.unasked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok()
    }
}
