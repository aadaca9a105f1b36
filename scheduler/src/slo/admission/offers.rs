//! Possible places for an arriving request, and the choice among them.

use super::AdmissionQueue;
use crate::slo::front::{Front, FrontStep, PlacementOffer, Quote};
use crate::slo::timetable::{Insertion, Now, Timetable, TimetableEntry};
use crate::slo::{PlacementPreference, Slo};
use crate::{Alternative, DeviceKey, DeviceView, Estimate, PlacementRequest, View, Why};
use smallvec::SmallVec;
use weir_types::Cost;

/// A place in the timetable of a device.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) device: DeviceKey,
    pub(super) at: usize,
    pub(super) entry: TimetableEntry,
}

/// A request that needs a place, its objectives, and the current state of the devices.
pub(super) struct Wish<'a> {
    pub(super) now_ns: u64,
    pub(super) view: &'a View,
    pub(super) request: &'a PlacementRequest,
    /// The due time, less the margin.
    pub(super) due_at_ns: u64,
    pub(super) cost_max: Cost,
    /// When the inputs are expected, for a step that has not arrived.
    pub(super) inputs_at_ns: Option<u64>,
}

/// A device, with an estimate for the request that ignores the order of the timetable.
pub(super) struct RoughEstimate<'a> {
    pub(super) key: DeviceKey,
    pub(super) device: &'a DeviceView,
    /// Time from start to end, on and off the device: an invocation with an SLO has a slot for all
    /// of it.
    pub(super) run_ns: u64,
    load_ns: u64,
    pub(super) cost: Cost,
    pub(super) finish_after_ns: u64,
}

/// Number of measured runs after which a run time estimate is reliable enough to reject by.
const RUNS_MIN: u64 = 8;

/// Interval of trials for functions whose estimate is unreliable or old.
pub(super) const TRIED_NS: u64 = 60_000_000_000;

impl AdmissionQueue {
    /// The place for an arriving request, if there is one.
    pub(super) fn offer(
        &mut self,
        now_ns: u64,
        view: &View,
        request: &PlacementRequest,
        may_try: bool,
    ) -> Option<Seat> {
        let wish = self.wish(now_ns, view, request);
        let Wish { cost_max, .. } = wish;
        let budget_ns = wish.due_at_ns - now_ns;
        let quotes = self.quotes(&wish);
        let front = Front::from_steps(&[FrontStep { after: Vec::new(), quotes: quotes.clone() }]).ok()?;
        let how = (self.settings.sample_len, self.settings.choice, request.invocation.0);
        let chosen =
            front.choose((budget_ns, cost_max), how, |placement| self.on_kind(&wish, placement.kinds[0]));
        // Placements that are both slower and more expensive are used only if no better placement
        // has room.
        let beaten = || {
            let is_beaten =
                |kind: &usize| !front.placements().iter().any(|placement| placement.kinds[0] == *kind);
            (0..quotes.len()).filter(|kind| quotes[*kind].is_some()).filter(is_beaten)
        };
        let chosen = chosen.or_else(|| beaten().find_map(|kind| self.on_kind(&wish, kind)));
        let chosen = chosen.map(|offer| offer.place);
        // A load takes device time that a move does not.
        if chosen.as_ref().is_some_and(|seat| seat.entry.loads.is_empty()) {
            return chosen;
        }
        self.by_move(&wish).or(chosen).or_else(|| if may_try { self.on_trial(&wish, &front) } else { None })
    }

    /// A trial of a request that finds no other place.
    pub(super) fn trial(&mut self, now_ns: u64, view: &View, request: &PlacementRequest) -> Option<Seat> {
        let wish = self.wish(now_ns, view, request);
        let step = FrontStep { after: Vec::new(), quotes: self.quotes(&wish) };
        let front = Front::from_steps(&[step]).ok()?;
        self.on_trial(&wish, &front)
    }

    fn wish<'a>(&self, now_ns: u64, view: &'a View, request: &'a PlacementRequest) -> Wish<'a> {
        let due_at_ns = now_ns + self.budget_ns(now_ns, request);
        let Slo { cost_max, .. } = request.slo;
        Wish { now_ns, view, request, due_at_ns, cost_max, inputs_at_ns: None }
    }

    /// The time until the request is due, less the margin.
    pub(super) fn budget_ns(&self, now_ns: u64, request: &PlacementRequest) -> u64 {
        match request.slo.due_before_ns(request.deadline_at_ns) {
            u64::MAX => u64::MAX - now_ns,
            due_at_ns => self.settings.without_margin_ns(due_at_ns.saturating_sub(now_ns)),
        }
    }

    /// The devices reported with a rejection: those on which the request would end first if it
    /// started after everything that waits.
    pub(super) fn closest(&self, now_ns: u64, view: &View, request: &PlacementRequest) -> Vec<Alternative> {
        let wish = Wish::unbound(now_ns, view, request);
        let mut candidates: Vec<_> = self.candidates(&wish, None).collect();
        candidates.sort_by_key(|candidate| (candidate.finish_after_ns, candidate.key));
        let behind_all = candidates.iter().take(self.settings.sample_len.max(1)).map(|candidate| {
            let RoughEstimate { key, device, run_ns, load_ns, cost, .. } = candidate;
            let empty = Timetable::default();
            let now = Now::for_device(now_ns, device);
            let mut last = TimetableEntry::new(request.clone(), u64::MAX, *run_ns);
            last.load_ns = *load_ns;
            let table = self.tables.get(key).unwrap_or(&empty);
            let end_at_ns = table.end_behind_all_ns(&now, &last, |model| device.place_of(model));
            let work_ns = last.work_ns();
            // Models that an earlier call brings are not loaded for this one.
            let is_brought = |model| table.brings(model, wish.due_at_ns);
            let missing = device.own(&request.models).filter(|demand| !device.holds(demand.model));
            let estimate = Estimate {
                wait_ns: (end_at_ns - now_ns).saturating_sub(work_ns),
                load_time_ns: *load_ns,
                load_by_tier: view.load_by_tier(device, missing.filter(|demand| !is_brought(demand.model))),
                cost: *cost,
                ..view.estimate(now_ns, device, request)
            };
            Alternative { device: device.id(), estimate }
        });
        Why::best_of(behind_all)
    }

    /// Run time and cost on each kind of device.
    pub(super) fn quotes(&self, wish: &Wish<'_>) -> Vec<Option<Quote>> {
        let mut quotes = vec![None; wish.view.kinds_len()];
        for (_, device) in wish.devices() {
            if let Some(quote @ None) = quotes.get_mut(device.kind().index()) {
                let time_ns = wish.view.life_ns(device, wish.request);
                *quote = Some(Quote { time_ns, cost: self.cost(wish.view, device, time_ns) });
            }
        }
        quotes
    }

    /// The best device of a kind that has room before the due time.
    fn on_kind(&self, wish: &Wish<'_>, kind: usize) -> Option<PlacementOffer<Seat>> {
        let mut candidates: Vec<_> = self.candidates(wish, Some(kind)).collect();
        candidates.retain(|candidate| candidate.cost <= wish.cost_max);
        let sample_len = self.settings.sample_len.max(1);
        // Half of the sample by cost, the rest by finish time.
        let by_cost =
            if self.settings.choice == PlacementPreference::Cheapest { sample_len.div_ceil(2) } else { 0 };
        candidates
            .sort_unstable_by_key(|candidate| (candidate.cost, candidate.finish_after_ns, candidate.key));
        let rest = candidates.get_mut(by_cost..).unwrap_or_default();
        rest.sort_unstable_by_key(|candidate| (candidate.finish_after_ns, candidate.cost, candidate.key));
        let offers =
            candidates.iter().take(sample_len).filter_map(|candidate| self.on_device(wish, candidate));
        match self.settings.choice {
            PlacementPreference::Cheapest => offers.min_by_key(|offer| (offer.cost, offer.finish_after_ns)),
            PlacementPreference::Fastest | PlacementPreference::Random => {
                offers.min_by_key(|offer| (offer.finish_after_ns, offer.cost))
            }
        }
    }

    /// A place on a device: with the models expected in its memory, or else as if all models had to
    /// be loaded.
    pub(super) fn on_device(
        &self,
        wish: &Wish<'_>,
        candidate: &RoughEstimate<'_>,
    ) -> Option<PlacementOffer<Seat>> {
        let RoughEstimate { key, device, run_ns, .. } = *candidate;
        let empty = Timetable::default();
        let now = Now::for_device(wish.now_ns, device);
        let table = self.tables.get(&key).unwrap_or(&empty);
        let missing = |model| !device.holds(model) && !table.brings(model, wish.due_at_ns);
        let mut bare = TimetableEntry::new(wish.request.clone(), wish.due_at_ns, run_ns);
        if let Some(inputs_at_ns) = wish.inputs_at_ns {
            bare.inputs_at_ns = Some(inputs_at_ns);
            let run_ns = crate::estimate::round_ns(2.0 * device.run_time_ns().mean).max(run_ns);
            bare.kept_from_ns = inputs_at_ns.saturating_sub(run_ns);
        }
        let loading = |is_loaded: &dyn Fn(crate::ModelKey) -> bool| {
            let mut entry = bare.clone();
            for demand in device.own(&wish.request.models).filter(|demand| is_loaded(demand.model)) {
                entry.loads.push(demand.model);
                entry.load_ns = entry.load_ns.saturating_add(wish.view.load_time_ns(device, demand));
            }
            entry
        };
        let entries = [loading(&missing), loading(&|_| true)];
        let all_are_missing = entries[0].loads.len() == device.own(&wish.request.models).count();
        let mut entries = entries.into_iter().take(if all_are_missing { 1 } else { 2 });
        entries.find_map(|entry| {
            if !self.is_worth_loading((wish.now_ns, wish.view), device, table, &entry) {
                return None;
            }
            let held = |model| device.place_of(model);
            let Insertion { at, end_at_ns, is_on_time, fits } = table.try_insert(&now, &entry, held);
            let cost = self.cost(wish.view, device, entry.work_ns());
            let finish_after_ns = end_at_ns - wish.now_ns;
            let place = Seat { device: key, at, entry };
            (is_on_time && fits && cost <= wish.cost_max).then_some(PlacementOffer {
                finish_after_ns,
                cost,
                place,
            })
        })
    }

    /// A free device for a request that would miss its SLO everywhere, so that its model gets
    /// loaded, or its run time measured again.
    fn on_trial(&mut self, wish: &Wish<'_>, front: &Front) -> Option<Seat> {
        let Wish { now_ns, view, request, .. } = *wish;
        let budget_ns = wish.due_at_ns - now_ns;
        let mut free: Vec<_> = self
            .candidates(wish, None)
            .filter(|candidate| !candidate.device.is_full() && !self.tables.contains_key(&candidate.key))
            .filter(|candidate| self.placer.fit(now_ns, view, candidate.key, request).is_some())
            .collect();
        free.sort_by_key(|candidate| {
            (candidate.load_ns.saturating_add(candidate.run_ns), candidate.cost, candidate.key)
        });
        let best = free.first()?;
        let is_nowhere = |model| view.model(model).holders().is_empty();
        let work_ns = best.load_ns.saturating_add(best.run_ns);
        if front.within(budget_ns, wish.cost_max).is_empty() {
            // By current estimates, no run is fast enough or cheap enough.
            let is_due = self
                .tried
                .get(&request.function)
                .is_none_or(|at_ns| at_ns.saturating_add(TRIED_NS) <= now_ns);
            if !is_due && view.runs_measured(best.device, request) >= RUNS_MIN {
                return None;
            }
        } else if !request.models.iter().any(|demand| is_nowhere(demand.model))
            || work_ns <= budget_ns && best.cost <= wish.cost_max
        {
            return None;
        }
        let device = best.key;
        let run_ns = best.run_ns;
        let load_ns = best.load_ns;
        let loads = best.device.own(&request.models).map(|demand| demand.model).collect();
        self.tried.insert(request.function, now_ns);
        let mut entry = TimetableEntry::new(request.clone(), now_ns.saturating_add(work_ns), run_ns);
        entry.load_ns = load_ns;
        entry.loads = loads;
        Some(Seat { device, at: 0, entry })
    }

    pub(super) fn candidates<'a>(
        &'a self,
        wish: &'a Wish<'a>,
        kind: Option<usize>,
    ) -> impl Iterator<Item = RoughEstimate<'a>> + 'a {
        let is_of_kind = move |device: &DeviceView| kind.is_none_or(|kind| device.kind().index() == kind);
        let devices = wish.devices().filter(move |(_, device)| is_of_kind(device));
        devices.map(|(key, device)| self.rough_estimate(wish, key, device))
    }

    pub(super) fn rough_estimate<'a>(
        &self,
        wish: &Wish<'_>,
        key: DeviceKey,
        device: &'a DeviceView,
    ) -> RoughEstimate<'a> {
        let table = self.tables.get(&key);
        let missing = device.own(&wish.request.models).filter(|demand| {
            !device.holds(demand.model)
                && !table.is_some_and(|table| table.brings(demand.model, wish.due_at_ns))
        });
        let load_ns =
            missing.map(|demand| wish.view.load_time_ns(device, demand)).fold(0, u64::saturating_add);
        let run_ns = wish.view.life_ns(device, wish.request);
        let work_ns = load_ns.saturating_add(run_ns);
        let ahead_ns = table.map_or(0, Timetable::work_ns) / u64::from(device.slots_for_slos());
        let wait_ns = device.wait_ns(wish.now_ns).saturating_add(ahead_ns);
        let cost = self.cost(wish.view, device, work_ns);
        RoughEstimate { key, device, run_ns, load_ns, cost, finish_after_ns: wait_ns.saturating_add(work_ns) }
    }

    pub(super) fn cost(&self, view: &View, device: &DeviceView, time_ns: u64) -> Cost {
        let price = view.kind_name(device.kind()).map(|kind| self.settings.price(kind));
        price.unwrap_or_default().of_time(time_ns)
    }
}

impl<'a> Wish<'a> {
    /// A wish without objectives.
    pub(super) fn unbound(now_ns: u64, view: &'a View, request: &'a PlacementRequest) -> Self {
        Self { now_ns, view, request, due_at_ns: u64::MAX, cost_max: Cost::MAX, inputs_at_ns: None }
    }

    /// The devices that can run the request and are large enough.
    fn devices(&self) -> impl Iterator<Item = (DeviceKey, &DeviceView)> {
        let models = &self.request.models;
        self.view.devices().filter(move |(_, device)| {
            device.spec().invocations_max > 0 && device.takes(models) && device.is_large_enough(models)
        })
    }
}

impl AdmissionQueue {
    /// A place at the end of the shortest timetable that does not yet contain an invocation without
    /// an SLO.
    pub(super) fn at_the_end(&self, now_ns: u64, view: &View, request: &PlacementRequest) -> Option<Seat> {
        let wish = Wish::unbound(now_ns, view, request);
        let mut lines: SmallVec<[_; 8]> = self
            .candidates(&wish, None)
            .filter(|candidate| self.tables.get(&candidate.key).is_some_and(|table| !table.has_other()))
            .collect();
        lines.sort_by_key(|candidate| (candidate.finish_after_ns, candidate.key));
        lines.iter().take(self.settings.sample_len.max(1)).find_map(|line| {
            let PlacementOffer { finish_after_ns, place: Seat { device, at, mut entry }, .. } =
                self.on_device(&wish, line)?;
            // Later arrivals may overtake this entry, as long as it still ends by the due time set
            // here.
            let last_due_ns = self.tables.get(&device).and_then(|table| table.entries().last());
            entry.due_at_ns = last_due_ns.map_or(0, |last| last.due_at_ns).max(now_ns + finish_after_ns);
            entry.is_other = true;
            Some(Seat { device, at, entry })
        })
    }
}
