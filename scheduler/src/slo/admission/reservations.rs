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

use super::AdmissionQueue;
use super::offers::{RoughEstimate, Seat, TRIED_NS, Wish};
use super::others::PATIENCE_NS;
use crate::slo::Slo;
use crate::slo::front::{Front, FrontStep, PlacementOffer, Quote};
use crate::slo::timetable::TimetableEntry;
use crate::{DeviceKey, DeviceView, Estimate, PlacementRequest, View};
use smallvec::SmallVec;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use weir_types::{Cost, InvocationId};

/// A step is long overdue after this part of its run time (one part in `OVERDUE_PART`). Until then,
/// its slot stays free for it: a delay would also delay the steps that follow it on other devices.
const OVERDUE_PART: u64 = 4;

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

/// A workflow that asks for reservations.
struct SeparateWish<'a> {
    now_ns: u64,
    view: &'a View,
    steps: &'a [SeparateStep],
    /// The due time.
    slo: Slo,
    /// The due time, less the margin.
    due_at_ns: u64,
    quotes: Vec<Vec<Option<Quote>>>,
    /// Entries of timetables that may still be looked at. Without any, no further plan is made.
    entries_left: Cell<usize>,
}

/// Maximum number of entries of timetables that are looked at for one workflow. They take a few
/// milliseconds.
const ENTRIES_MAX: usize = 1 << 18;

/// Maximum number of partial placements that the front of a workflow keeps.
const BEGINNINGS_MAX: usize = 32;

/// Places for all steps of a workflow that use a device.
struct Plan {
    seats: Vec<Seat>,
    end_at_ns: u64,
    cost: Cost,
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
    /// If the workflow cannot meet its objectives. Contains the estimate if trials are allowed and all
    /// steps can run.
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

    /// Run time and cost of a step on each kind of device. A step without models takes no time.
    fn step_quotes(&self, now_ns: u64, view: &View, step: &SeparateStep) -> Vec<Option<Quote>> {
        if step.request.models.is_empty() {
            let none = Some(Quote { time_ns: 0, cost: Cost::ZERO });
            return std::iter::once(none)
                .chain(std::iter::repeat_n(None, view.kinds_len().saturating_sub(1)))
                .collect();
        }
        self.quotes(&Wish::unbound(now_ns, view, &step.request))
    }

    /// The preferred plan among those for the front's placements, or else the plan in which each step
    /// ends first.
    fn choose_plan(
        &mut self,
        wish: &SeparateWish<'_>,
        front: &Front,
        (budget_ns, cost_max): (u64, Cost),
        workflow: InvocationId,
    ) -> Option<Plan> {
        let how = (self.settings.sample_len, self.settings.choice, workflow.0);
        let offer = |plan: Plan| PlacementOffer {
            finish_after_ns: plan.end_at_ns.saturating_sub(wish.now_ns),
            cost: plan.cost,
            place: plan,
        };
        let chosen = front.choose((budget_ns, cost_max), how, |placement| {
            self.plan(wish, Some(&placement.kinds)).map(offer)
        });
        chosen.map(|offer| offer.place).or_else(|| {
            let meets = |plan: &Plan| plan.end_at_ns <= wish.due_at_ns && plan.cost <= cost_max;
            self.plan(wish, None).filter(meets)
        })
    }

    /// Places for all steps, on the given kinds of devices. `None` if a step finds no place. Changes
    /// nothing.
    fn plan(&mut self, wish: &SeparateWish<'_>, kinds: Option<&[usize]>) -> Option<Plan> {
        let tails_ns = wish.tails_ns(kinds);
        let mut ends_ns: Vec<Option<u64>> = vec![None; wish.steps.len()];
        let mut seats: Vec<Seat> = Vec::new();
        let mut cost = Cost::ZERO;
        while let Some((step, inputs_at_ns)) = wish.next_step(&ends_ns, &tails_ns) {
            if wish.entries_left.get() == 0 {
                break;
            }
            let SeparateStep { request, .. } = &wish.steps[step];
            if request.models.is_empty() {
                ends_ns[step] = Some(inputs_at_ns);
                continue;
            }
            let after_ns = tails_ns[step].1;
            let due_in = |due_at_ns: u64| due_at_ns.saturating_sub(after_ns);
            let slo = Slo { due_at_ns: due_in(wish.slo.due_at_ns), ..Slo::NONE };
            let request = PlacementRequest { slo, ..request.clone() };
            let step_wish = Wish {
                now_ns: wish.now_ns,
                view: wish.view,
                request: &request,
                due_at_ns: due_in(wish.due_at_ns),
                cost_max: Cost::MAX,
                inputs_at_ns: Some(inputs_at_ns),
            };
            let kind = kinds.map(|kinds| kinds[step]);
            let Some(PlacementOffer { finish_after_ns, cost: step_cost, place: seat }) =
                self.first_end(&step_wish, kind, &wish.entries_left)
            else {
                break;
            };
            let end_at_ns = wish.now_ns.saturating_add(finish_after_ns);
            cost = cost.saturating_add(step_cost);
            ends_ns[step] = Some(end_at_ns);
            let mut seat = self.try_seat(seat, end_at_ns);
            if wish.slo.cost_max < Cost::MAX {
                // On other devices, the step may not cost more.
                seat.entry.request.slo.cost_max = step_cost;
            }
            seats.push(seat);
        }
        // In reverse order, so that the places of earlier entries are right.
        for Seat { device, at, .. } in seats.iter().rev() {
            if let Some(table) = self.tables.get_mut(device) {
                table.take(*at, |_| true, |_, _| 0);
                if table.is_empty() {
                    self.tables.remove(device);
                }
            }
        }
        let end_at_ns = ends_ns.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(Plan { seats, end_at_ns, cost })
    }

    /// Enters a step until the end of the planning. From then on, it is due at its planned end: the
    /// place stays the same.
    fn try_seat(&mut self, mut seat: Seat, end_at_ns: u64) -> Seat {
        let table = self.tables.entry(seat.device).or_default();
        let before = seat.at.checked_sub(1).and_then(|before| table.entries().get(before));
        seat.entry.due_at_ns = before.map_or(0, |before| before.due_at_ns).max(end_at_ns);
        table.insert(seat.at, seat.entry.clone());
        seat
    }

    /// The place on which a step ends first.
    fn first_end(
        &self,
        wish: &Wish<'_>,
        kind: Option<usize>,
        entries_left: &Cell<usize>,
    ) -> Option<PlacementOffer<Seat>> {
        let mut candidates: Vec<_> = self.candidates(wish, kind).collect();
        candidates
            .sort_unstable_by_key(|candidate| (candidate.finish_after_ns, candidate.cost, candidate.key));
        let sample_len = self.settings.sample_len.max(1);
        let offers = candidates.iter().take(sample_len).filter_map(|candidate| {
            let entries = self.tables.get(&candidate.key).map_or(1, |table| table.entries().len() + 1);
            entries_left.set(entries_left.get().saturating_sub(entries));
            self.on_device(wish, candidate)
        });
        offers.min_by_key(|offer| (offer.finish_after_ns, offer.cost))
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

impl SeparateWish<'_> {
    /// For each step: the time from its start to the end of the workflow, and the time from its end.
    fn tails_ns(&self, kinds: Option<&[usize]>) -> Vec<(u64, u64)> {
        let time_ns = |step: usize| {
            let quotes = &self.quotes[step];
            let chosen = kinds.and_then(|kinds| *quotes.get(kinds[step])?);
            let fastest = || quotes.iter().flatten().min_by_key(|quote| quote.time_ns).copied();
            chosen.or_else(fastest).map_or(0, |quote| quote.time_ns)
        };
        let mut tails_ns = vec![(0, 0); self.steps.len()];
        for step in (0..self.steps.len()).rev() {
            let (_, after_ns) = tails_ns[step];
            let from_start_ns = time_ns(step).saturating_add(after_ns);
            tails_ns[step].0 = from_start_ns;
            for before in &self.steps[step].after {
                let (_, after_ns) = &mut tails_ns[*before];
                *after_ns = from_start_ns.max(*after_ns);
            }
        }
        tails_ns
    }

    /// The next step to plan, and when its inputs are expected: among the steps whose predecessors
    /// are planned, the one with the longest way to the end.
    fn next_step(&self, ends_ns: &[Option<u64>], tails_ns: &[(u64, u64)]) -> Option<(usize, u64)> {
        let inputs_at_ns = |step: usize| {
            let mut before = self.steps[step].after.iter().map(|before| ends_ns[*before]);
            before.try_fold(self.now_ns, |latest_ns, end_ns| Some(latest_ns.max(end_ns?)))
        };
        let open = (0..self.steps.len()).filter(|step| ends_ns[*step].is_none());
        let ready = open.filter_map(|step| Some((step, inputs_at_ns(step)?)));
        ready.min_by_key(|(step, _)| Reverse(tails_ns[*step].0))
    }
}

/// The room that the reservations at the head of a timetable leave for the entries behind them.
pub(super) struct GapsAhead<'a> {
    now_ns: u64,
    view: &'a View,
    device: &'a DeviceView,
    reserved: SmallVec<[&'a TimetableEntry; 4]>,
    /// Whether an entry that waits for a slot would be passed, too.
    pub(super) passes_waiting: bool,
}

impl<'a> GapsAhead<'a> {
    pub(super) fn new(now_ns: u64, view: &'a View, device: &'a DeviceView) -> Self {
        Self { now_ns, view, device, reserved: SmallVec::new(), passes_waiting: false }
    }

    /// Adds the next reservation.
    pub(super) fn add(&mut self, entry: &'a TimetableEntry) {
        self.reserved.push(entry);
    }

    pub(super) fn has_reservations(&self) -> bool {
        !self.reserved.is_empty()
    }

    /// Whether an entry can start before the reservations: a slot remains for each of them, or the
    /// entry ends before the first of their steps arrives. If a step is long overdue, and no other
    /// entry waits, the entry may also end later, as long as the step still ends in time.
    pub(super) fn has_room_for(&self, entry: &TimetableEntry) -> bool {
        let slots = self.device.slots_for_slos();
        if self.reserved.len() < slots.saturating_sub(self.device.running()) as usize {
            return true;
        }
        let mut free_at_ns = self.now_ns.saturating_add(self.work_ns(entry));
        self.reserved.iter().all(|reserved| match reserved.inputs_at_ns {
            // In another slot, the entry that waits could start before this one ends.
            Some(inputs_at_ns) if inputs_at_ns > self.now_ns => {
                free_at_ns <= inputs_at_ns && !(self.passes_waiting && slots > 1)
            }
            Some(_) if reserved.long_overdue_ns().is_some_and(|at_ns| at_ns > self.now_ns) => false,
            _ => {
                let is_in_time = !self.passes_waiting && free_at_ns <= reserved.latest_start_ns();
                free_at_ns = free_at_ns.saturating_add(reserved.work_ns());
                is_in_time
            }
        })
    }

    /// The time of an entry that starts now, with the loads of models that the reservations were to
    /// load for it.
    fn work_ns(&self, entry: &TimetableEntry) -> u64 {
        let missing = self
            .device
            .own(&entry.request.models)
            .filter(|demand| !self.device.holds(demand.model) && !entry.loads.contains(&demand.model));
        let load_ns = missing.map(|demand| self.view.load_time_ns(self.device, demand));
        load_ns.fold(entry.work_ns(), u64::saturating_add)
    }
}

impl TimetableEntry {
    /// The times at which a reservation changes what may start: the device is kept free for it, its
    /// step is long overdue, and it lapses. None for other entries.
    fn changes_ns(&self) -> impl Iterator<Item = u64> {
        let kept_from_ns = self.inputs_at_ns.map(|_| self.kept_from_ns);
        kept_from_ns.into_iter().chain(self.long_overdue_ns()).chain(self.lapses_at_ns())
    }

    /// The next of these times. `None` if the reservation lapses now, and for other entries.
    fn next_change_ns(&self, now_ns: u64) -> Option<u64> {
        let lapses_at_ns = self.lapses_at_ns().filter(|at_ns| *at_ns > now_ns)?;
        let next_ns = self.changes_ns().filter(|at_ns| *at_ns > now_ns).min();
        Some(next_ns.unwrap_or(lapses_at_ns))
    }

    fn long_overdue_ns(&self) -> Option<u64> {
        Some(self.inputs_at_ns?.saturating_add(self.work_ns() / OVERDUE_PART).saturating_add(1))
    }

    /// When a reservation lapses: when its step could no longer end in time, or was expected for so
    /// long that other invocations wait in vain.
    fn lapses_at_ns(&self) -> Option<u64> {
        let overdue_ns = self.inputs_at_ns?.saturating_add(PATIENCE_NS);
        Some(self.latest_start_ns().saturating_add(1).min(overdue_ns))
    }

    /// The latest start with which the entry ends in time.
    fn latest_start_ns(&self) -> u64 {
        let promised_ns = self.request.slo.due_before_ns(self.request.deadline_at_ns).max(self.due_at_ns);
        promised_ns.saturating_sub(self.work_ns())
    }
}
