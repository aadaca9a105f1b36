//! Plans: places for all steps of a workflow, chosen among the placements of its [`Front`].

use super::SeparateStep;
use crate::slo::Slo;
use crate::slo::admission::AdmissionQueue;
use crate::slo::admission::offers::{Seat, Wish};
use crate::slo::front::{Front, PlacementOffer, Quote};
use crate::{PlacementRequest, View};
use std::cell::Cell;
use std::cmp::Reverse;
use weir_types::{Cost, InvocationId};

/// A workflow that asks for reservations.
pub(super) struct SeparateWish<'a> {
    pub(super) now_ns: u64,
    pub(super) view: &'a View,
    pub(super) steps: &'a [SeparateStep],
    /// The due time.
    pub(super) slo: Slo,
    /// The due time, less the margin.
    pub(super) due_at_ns: u64,
    pub(super) quotes: Vec<Vec<Option<Quote>>>,
    /// Entries of timetables that may still be looked at. Without any, no further plan is made.
    pub(super) entries_left: Cell<usize>,
}

/// Maximum number of entries of timetables that are looked at for one workflow. They take a few
/// milliseconds.
pub(super) const ENTRIES_MAX: usize = 1 << 18;

/// Maximum number of partial placements that the front of a workflow keeps.
pub(super) const BEGINNINGS_MAX: usize = 32;

/// Places for all steps of a workflow that use a device.
pub(super) struct Plan {
    pub(super) seats: Vec<Seat>,
    pub(super) end_at_ns: u64,
    pub(super) cost: Cost,
}

impl AdmissionQueue {
    /// Run time and cost of a step on each kind of device. A step without models takes no time.
    pub(super) fn step_quotes(&self, now_ns: u64, view: &View, step: &SeparateStep) -> Vec<Option<Quote>> {
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
    pub(super) fn choose_plan(
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
    pub(super) fn plan(&mut self, wish: &SeparateWish<'_>, kinds: Option<&[usize]>) -> Option<Plan> {
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
