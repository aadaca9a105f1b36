//! Reservations for the steps of a workflow that are placed separately.
//!
//! A workflow is admitted with separate steps if every step gets a place in the timetable of a
//! device, after the places of the steps that it waits for, and if the last step ends by the due
//! time, within the maximum cost. The [`Front`] of the workflow provides the combinations of kinds of
//! devices to try. A reservation becomes an ordinary entry when its step arrives. Its due time is
//! that of its planned end, so that later arrivals do not delay the steps that follow it.
//!
//! A reservation whose step arrives too late *lapses*. Once the step arrives, it is admitted like an
//! invocation with the time that is left to it, or continues without an SLO.

mod gaps;
pub(super) use gaps::GapsAhead;

mod plan;

use super::AdmissionQueue;
use super::offers::{RoughEstimate, Seat, TRIED_NS, Wish};
use crate::slo::Slo;
use crate::slo::front::{Front, FrontStep, Quote};
use crate::slo::timetable::TimetableEntry;
use crate::{DeviceKey, Estimate, PlacementRequest, View};
use plan::{BEGINNINGS_MAX, ENTRIES_MAX, Plan, SeparateWish};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use weir_types::{Cost, InvocationId};

/// A step of a workflow that asks for reservations.
#[derive(Debug)]
pub(crate) struct SeparateStep {
    pub(crate) request: PlacementRequest,
    /// The indexes of the steps that end before this step starts.
    pub(crate) after: Vec<usize>,
}

/// The workflows with separate steps that have not ended.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// The steps of each workflow that had a reservation.
    workflows: HashMap<InvocationId, SmallVec<[InvocationId; 8]>>,
    /// The objectives of steps that have not arrived.
    expected: HashMap<InvocationId, Slo>,
    /// The next time at which each reservation changes what may start: see
    /// [`TimetableEntry::next_change_ns`].
    times: BTreeSet<(u64, InvocationId)>,
    /// Lapsed reservations since the last [`take_lapsed`](AdmissionQueue::take_lapsed).
    lapsed: Vec<PlacementRequest>,
    /// Whether reservations changed so that others may start, since the last
    /// [`take_gaps`](AdmissionQueue::take_gaps).
    has_gaps: bool,
}

impl AdmissionQueue {
    /// Whether any step of the workflow may still have a reservation.
    pub(crate) fn has_workflow(&self, workflow: InvocationId) -> bool {
        self.reservations.workflows.contains_key(&workflow)
    }

    /// The objectives of a step of an admitted workflow, when it arrives.
    pub(crate) fn take_expected(&mut self, step: InvocationId) -> Option<Slo> {
        self.reservations.expected.remove(&step)
    }

    /// Whether an invocation is a step that has not arrived.
    pub(crate) fn is_expected(&self, step: InvocationId) -> bool {
        self.reservations.expected.contains_key(&step)
    }

    /// Reserves places for the steps of a workflow. `may_try` allows a workflow that finds no places
    /// to run without reservations now and then, so that its models get loaded, or its run times
    /// measured again.
    ///
    /// # Errors
    /// If the workflow cannot meet its objectives. Contains the estimate if trials are allowed and
    /// all steps can run.
    pub(crate) fn reserve(
        &mut self,
        now_ns: u64,
        view: &View,
        workflow: &PlacementRequest,
        steps: &[SeparateStep],
        may_try: bool,
    ) -> Result<Estimate, Option<Estimate>> {
        self.is_used = true;
        if !self.has_room(view, workflow.tenant) {
            return Err(None);
        }
        let budget_ns = self.budget_ns(now_ns, workflow);
        let cost_max = workflow.slo.cost_max;
        let due_at_ns = now_ns.saturating_add(budget_ns);
        let quotes: Vec<_> = steps.iter().map(|step| self.step_quotes(now_ns, view, step)).collect();
        let front_step = |(step, quotes): (&SeparateStep, &Vec<Option<Quote>>)| FrontStep {
            after: step.after.clone(),
            quotes: quotes.clone(),
        };
        let front_steps: Vec<_> = steps.iter().zip(&quotes).map(front_step).collect();
        let front = Front::keeping(&front_steps, BEGINNINGS_MAX).map_err(|_| None)?;
        let entries_left = Cell::new(ENTRIES_MAX);
        let mut wish =
            SeparateWish { now_ns, view, steps, slo: workflow.slo, due_at_ns, quotes, entries_left };
        let plan = self.choose_plan(&wish, &front, (budget_ns, cost_max), workflow.invocation);
        let fastest_ns = front.placements().first().map_or(0, |placement| placement.time_ns);
        let estimate = |end_at_ns: u64, cost| Estimate {
            wait_ns: end_at_ns.saturating_sub(now_ns).saturating_sub(fastest_ns),
            run_time_ns: fastest_ns,
            cost,
            ..Estimate::default()
        };
        if let Some(Plan { seats, end_at_ns, cost }) = plan {
            self.expect(workflow.invocation, &seats);
            seats.into_iter().for_each(|seat| self.seat(now_ns, seat));
            return Ok(estimate(end_at_ns, cost));
        }
        if may_try && self.is_trial(&wish, &front, (budget_ns, cost_max), workflow) {
            self.tried.insert(workflow.function, now_ns);
            self.expect(workflow.invocation, &[]);
            return Ok(estimate(u64::MAX, Cost::MAX));
        }
        if !may_try {
            return Err(None);
        }
        // The estimate for the caller ignores the objectives.
        (wish.slo, wish.due_at_ns) = (Slo::NONE, u64::MAX);
        let unbound = self.plan(&wish, None);
        Err(Some(
            unbound.map_or_else(|| estimate(u64::MAX, Cost::MAX), |plan| estimate(plan.end_at_ns, plan.cost)),
        ))
    }

    /// Turns the reservation of a step that has arrived into an ordinary entry. Returns the request
    /// of the reservation.
    ///
    /// # Errors
    /// The request itself, if the step has no reservation.
    #[expect(clippy::result_large_err, reason = "the error returns the request itself")]
    pub(crate) fn confirm(
        &mut self,
        request: PlacementRequest,
    ) -> Result<PlacementRequest, PlacementRequest> {
        let Some((key, at)) = self.reservation(request.invocation) else { return Err(request) };
        let Some(entry) = self.tables.get_mut(&key).and_then(|table| table.entry_mut(at)) else {
            return Err(request);
        };
        if entry.request.tenant != request.tenant {
            return Err(request);
        }
        for at_ns in entry.changes_ns() {
            self.reservations.times.remove(&(at_ns, request.invocation));
        }
        entry.inputs_at_ns = None;
        let tenant = request.tenant;
        let reserved = std::mem::replace(&mut entry.request, request);
        if let Some(promised) = self.promised.get_mut(&tenant) {
            promised.reserved = promised.reserved.saturating_sub(1);
            promised.admitted += 1;
        }
        self.fresh.push(key);
        self.touched.push(key);
        Ok(reserved)
    }

    /// Ends a workflow with separate steps. Removes the reservations of steps that have not arrived,
    /// and returns their requests. `None` if there is no such workflow.
    pub(crate) fn end_workflow(
        &mut self,
        workflow: InvocationId,
        view: &View,
    ) -> Option<Vec<PlacementRequest>> {
        let steps = self.reservations.workflows.remove(&workflow)?;
        let mut removed = Vec::new();
        for step in steps {
            removed.extend(self.release(step, view));
        }
        Some(removed)
    }

    /// Removes the reservation of a step that will not arrive, and returns its request.
    pub(crate) fn release(&mut self, step: InvocationId, view: &View) -> Option<PlacementRequest> {
        self.reservations.expected.remove(&step)?;
        let (key, at) = self.reservation(step)?;
        let entry = self.unseat_before_start(view, key, at)?;
        for at_ns in entry.changes_ns() {
            self.reservations.times.remove(&(at_ns, step));
        }
        self.fresh.push(key);
        self.reservations.has_gaps = true;
        Some(entry.request)
    }

    /// Whether other invocations may start since the last call, because reservations changed.
    pub(crate) fn take_gaps(&mut self) -> bool {
        std::mem::take(&mut self.reservations.has_gaps)
    }

    /// Takes the requests of lapsed reservations.
    pub(crate) fn take_lapsed(&mut self) -> Vec<PlacementRequest> {
        std::mem::take(&mut self.reservations.lapsed)
    }

    /// When the next reservation changes what may start.
    pub(crate) fn reservation_at_ns(&self) -> Option<u64> {
        self.reservations.times.first().map(|(at_ns, _)| *at_ns)
    }

    /// Removes the reservations whose steps are too late, and notes the other changes.
    pub(super) fn lapse(&mut self, now_ns: u64, view: &View) {
        while let Some(&(at_ns, step)) = self.reservations.times.first() {
            if at_ns > now_ns {
                return;
            }
            self.reservations.times.pop_first();
            let Some((key, at)) = self.reservation(step) else { continue };
            self.touched.push(key);
            self.fresh.push(key);
            self.reservations.has_gaps = true;
            let entry = self.tables.get(&key).and_then(|table| table.entries().get(at));
            match entry.and_then(|entry| entry.next_change_ns(now_ns)) {
                Some(next_ns) => _ = self.reservations.times.insert((next_ns, step)),
                None => {
                    let entry = self.unseat_before_start(view, key, at);
                    self.reservations.lapsed.extend(entry.map(|entry| entry.request));
                }
            }
        }
    }

    /// Keeps the request of a reservation on a lost device.
    pub(super) fn lapsed_with_device(&mut self, request: PlacementRequest) {
        self.reservations.lapsed.push(request);
    }

    /// Records when a new reservation changes what may start.
    pub(super) fn note_reservation(&mut self, now_ns: u64, entry: &TimetableEntry) {
        if let Some(next_ns) = entry.next_change_ns(now_ns) {
            self.reservations.times.insert((next_ns, entry.request.invocation));
        }
    }

    /// The device and the place of a step's reservation.
    fn reservation(&self, step: InvocationId) -> Option<(DeviceKey, usize)> {
        let key = *self.places.get(&step)?;
        let table = self.tables.get(&key)?;
        let at = table.position(step)?;
        table.entries()[at].is_reserved().then_some((key, at))
    }

    fn expect(&mut self, workflow: InvocationId, seats: &[Seat]) {
        let steps = seats.iter().map(|seat| seat.entry.request.invocation).collect();
        self.reservations.workflows.insert(workflow, steps);
        let slos = seats.iter().map(|Seat { entry, .. }| (entry.request.invocation, entry.request.slo));
        self.reservations.expected.extend(slos);
    }

    /// Whether a workflow without a plan is to run without reservations: it would meet its objectives
    /// only with other estimates or with models in memory, and every step finds a free device.
    fn is_trial(
        &self,
        wish: &SeparateWish<'_>,
        front: &Front,
        (budget_ns, cost_max): (u64, Cost),
        workflow: &PlacementRequest,
    ) -> bool {
        let tried_at_ns = self.tried.get(&workflow.function);
        if tried_at_ns.is_some_and(|at_ns| at_ns.saturating_add(TRIED_NS) > wish.now_ns) {
            return false;
        }
        let mut models = wish.steps.iter().flat_map(|step| &step.request.models);
        let is_cold = models.any(|demand| wish.view.model(demand.model).holders().is_empty());
        let finds_device = |SeparateStep { request, .. }: &SeparateStep| {
            let step_wish = Wish::unbound(wish.now_ns, wish.view, request);
            let is_free = |candidate: &RoughEstimate<'_>| {
                !candidate.device.is_full() && !self.tables.contains_key(&candidate.key)
            };
            request.models.is_empty()
                || self.candidates(&step_wish, None).any(|candidate| is_free(&candidate))
        };
        (is_cold || front.within(budget_ns, cost_max).is_empty()) && wish.steps.iter().all(finds_device)
    }
}
