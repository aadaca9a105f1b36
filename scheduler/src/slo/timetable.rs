//! The admitted invocations that wait for one device, in the order in which they start.
//!
//! Times are computed from the device's state on every query. Each slot takes the next entry when
//! it becomes free, and the entry waits for models that an earlier entry loads. With a fixed order,
//! this schedule has no anomalies: if any operation takes less time, then no sorted time at which a
//! slot is free or a model is loaded gets later, and so no start gets later.

use super::Slo;
use crate::view::{CombinedModelSize, ModelSize};
use crate::{DeviceView, ModelKey, PlacementRequest};
use smallvec::SmallVec;
use weir_types::InvocationId;

/// An admitted invocation that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TimetableEntry {
    pub(super) request: PlacementRequest,
    /// Time by which the entry must end.
    pub(super) due_at_ns: u64,
    /// Load time of the models that are missing when its turn comes.
    pub(super) load_ns: u64,
    pub(super) run_ns: u64,
    /// The models that the entry loads. The entry relies on all its other models being in memory.
    pub(super) loads: SmallVec<[ModelKey; 1]>,
    /// Whether the entry has no SLO, and was added because it waited for too long.
    pub(super) is_other: bool,
    /// When the inputs of a workflow's step are expected; `None` once the step has arrived, and for
    /// all other entries.
    pub(super) inputs_at_ns: Option<u64>,
    /// From when on other invocations stay off the device, for a step that has not arrived.
    pub(super) kept_from_ns: u64,
}

/// The entries of one device.
#[derive(Debug, Default)]
pub(super) struct Timetable {
    /// By due time, ties by arrival.
    entries: Vec<TimetableEntry>,
    /// Work of all entries together.
    work_ns: u64,
    models: SmallVec<[Needed; 4]>,
    others: u32,
}

/// A model that entries need.
#[derive(Debug)]
struct Needed {
    model: ModelKey,
    size: ModelSize,
    /// Number of these entries.
    entries: u32,
}

/// The state of a device, as the timetable needs it.
#[derive(Debug, Clone)]
pub(super) struct Now {
    /// When each slot is free; not before now.
    pub(super) free_at_ns: SmallVec<[u64; 8]>,
    pub(super) capacity_bytes: u64,
    /// The models granted to running invocations or required, with their sizes, and whether each is
    /// required. All grants count until the last of them ends, and required models always.
    pub(super) granted: SmallVec<[(ModelKey, ModelSize, bool); 4]>,
    pub(super) granted_until_ns: u64,
}

/// The effect of inserting an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Insertion {
    /// The entry's place.
    pub(super) at: usize,
    /// When the entry would end.
    pub(super) end_at_ns: u64,
    /// Whether the entry and all later entries would end by their due times.
    pub(super) is_on_time: bool,
    /// Whether memory would hold all models that entries rely on.
    pub(super) fits: bool,
}

/// Maximum number of entries of one device; further requests are not admitted.
const LEN_MAX: usize = 4_096;

impl Now {
    pub(super) fn for_device(now_ns: u64, device: &DeviceView) -> Self {
        let slots = device.slots_for_slos() as usize;
        // An entry waits until fewer invocations run than there are slots.
        let mut free_at_ns: SmallVec<[u64; 8]> =
            device.last_ends_ns().take(slots).map(|end_ns| end_ns.max(now_ns)).collect();
        free_at_ns.resize(slots, now_ns);
        Self {
            free_at_ns,
            capacity_bytes: device.spec().capacity_bytes,
            granted: device.granted().collect(),
            granted_until_ns: device.last_ends_ns().next().unwrap_or(0),
        }
    }
}

impl TimetableEntry {
    /// An entry without loads that must end by `due_at_ns`.
    pub(super) fn new(request: PlacementRequest, due_at_ns: u64, run_ns: u64) -> Self {
        let loads = SmallVec::new();
        Self {
            request,
            due_at_ns,
            load_ns: 0,
            run_ns,
            loads,
            is_other: false,
            inputs_at_ns: None,
            kept_from_ns: 0,
        }
    }

    /// Whether the entry is a reservation for a step that has not arrived.
    pub(super) fn is_reserved(&self) -> bool {
        self.inputs_at_ns.is_some()
    }

    pub(super) fn work_ns(&self) -> u64 {
        self.load_ns.saturating_add(self.run_ns)
    }

    fn needs(&self, model: ModelKey) -> bool {
        self.request.models.iter().any(|demand| demand.model == model)
    }

    fn counts_on(&self, model: ModelKey) -> bool {
        self.needs(model) && !self.loads.contains(&model)
    }
}

impl Timetable {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn work_ns(&self) -> u64 {
        self.work_ns
    }

    /// Whether the device is kept free for an entry.
    pub(super) fn is_awaited(&self, now_ns: u64) -> bool {
        self.entries.iter().any(|entry| !entry.is_reserved() || entry.kept_from_ns <= now_ns)
    }

    /// Whether an entry has no SLO.
    pub(super) fn has_other(&self) -> bool {
        self.others > 0
    }

    pub(super) fn entries(&self) -> &[TimetableEntry] {
        &self.entries
    }

    /// Whether an entry before the place for this due time needs the model.
    pub(super) fn brings(&self, model: ModelKey, due_at_ns: u64) -> bool {
        self.needs(model) && self.entries[..self.place(due_at_ns)].iter().any(|entry| entry.needs(model))
    }

    /// Whether any entry other than the one at `except` relies on the model.
    pub(super) fn counts_on(&self, model: ModelKey, except: usize) -> bool {
        self.needs(model)
            && self.entries.iter().enumerate().any(|(at, entry)| at != except && entry.counts_on(model))
    }

    fn needs(&self, model: ModelKey) -> bool {
        self.models.iter().any(|needed| needed.model == model)
    }

    /// The place of an entry with this due time.
    fn place(&self, due_at_ns: u64) -> usize {
        self.entries.partition_point(|entry| entry.due_at_ns <= due_at_ns)
    }

    /// Computes the effect of inserting an entry. `held` returns the size of a model that the
    /// device holds or loads, and when it is loaded.
    pub(super) fn try_insert(
        &self,
        now: &Now,
        entry: &TimetableEntry,
        held: impl Fn(ModelKey) -> Option<(ModelSize, u64)>,
    ) -> Insertion {
        self.try_insert_without(now, None, entry, held)
    }

    /// Computes the effect of inserting an entry after the removal of another one, which must load
    /// no model. The returned place counts the remaining entries.
    pub(super) fn try_insert_without(
        &self,
        now: &Now,
        without: Option<usize>,
        entry: &TimetableEntry,
        held: impl Fn(ModelKey) -> Option<(ModelSize, u64)>,
    ) -> Insertion {
        let place = self.place(entry.due_at_ns);
        let at = place - usize::from(without.is_some_and(|without| without < place));
        let stays = move |(index, entry)| (Some(index) != without).then_some(entry);
        let others = || self.entries.iter().enumerate().filter_map(stays);
        let in_order = || others().take(at).chain([entry]).chain(others().skip(at));
        let mut models = TimetableModels::new(&self.models, entry, &held);
        let mut free = now.free_at_ns.clone();
        let mut times: SmallVec<[(u64, u64); 32]> = SmallVec::with_capacity(self.entries.len() + 1);
        let mut end_at_ns = 0;
        let mut is_on_time = self.entries.len() < LEN_MAX;
        for (position, each) in in_order().enumerate() {
            let time = next(&mut free, &mut models, each);
            times.push(time);
            if position == at {
                end_at_ns = time.1;
            }
            is_on_time &= position < at || time.1 <= each.due_at_ns;
        }
        let fits = models.all_fit_together(now) || models.fit(now, in_order, &times);
        Insertion { at, end_at_ns, is_on_time, fits }
    }

    /// When an entry after all others would end.
    pub(super) fn end_behind_all_ns(
        &self,
        now: &Now,
        last: &TimetableEntry,
        held: impl Fn(ModelKey) -> Option<(ModelSize, u64)>,
    ) -> u64 {
        let mut models = TimetableModels::new(&self.models, last, &held);
        let mut free = now.free_at_ns.clone();
        let ends = self.entries.iter().chain([last]).map(|entry| next(&mut free, &mut models, entry).1);
        ends.last().unwrap_or(0)
    }

    pub(super) fn insert(&mut self, at: usize, entry: TimetableEntry) {
        self.work_ns = self.work_ns.saturating_add(entry.work_ns());
        self.others += u32::from(entry.is_other);
        for demand in &entry.request.models {
            match self.models.iter_mut().find(|needed| needed.model == demand.model) {
                Some(needed) => {
                    needed.size.bytes = demand.bytes.max(needed.size.bytes);
                    needed.entries += 1;
                }
                None => self.models.push(Needed {
                    model: demand.model,
                    size: ModelSize::for_demand(demand),
                    entries: 1,
                }),
            }
        }
        self.entries.insert(at, entry);
    }

    /// Removes an entry. If a later entry relied on a model that the removed entry would have
    /// loaded, and the device does not hold the model, the first such entry loads the model
    /// instead. That delays no entry, because the removed entry no longer takes this time.
    pub(super) fn take(
        &mut self,
        at: usize,
        holds: impl Fn(ModelKey) -> bool,
        load_ns: impl Fn(&PlacementRequest, ModelKey) -> u64,
    ) -> TimetableEntry {
        let entry = self.entries.remove(at);
        self.work_ns = self.work_ns.saturating_sub(entry.work_ns());
        self.others -= u32::from(entry.is_other);
        for demand in &entry.request.models {
            let model = demand.model;
            if let Some(index) = self.models.iter().position(|needed| needed.model == model) {
                self.models[index].entries -= 1;
                if self.models[index].entries == 0 {
                    self.models.swap_remove(index);
                }
            }
            if holds(model) || self.entries[..at].iter().any(|before| before.needs(model)) {
                continue;
            }
            let heir = self.entries[at..].iter_mut().find(|behind| behind.needs(model));
            if let Some(heir) = heir.filter(|heir| heir.counts_on(model)) {
                let load_ns = load_ns(&heir.request, model);
                heir.loads.push(model);
                heir.load_ns = heir.load_ns.saturating_add(load_ns);
                self.work_ns = self.work_ns.saturating_add(load_ns);
            }
        }
        entry
    }

    /// The entry at a place.
    pub(super) fn entry_mut(&mut self, at: usize) -> Option<&mut TimetableEntry> {
        self.entries.get_mut(at)
    }

    pub(super) fn position(&self, invocation: InvocationId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.request.invocation == invocation)
    }
}

/// Assigns an entry to the slot that is free first, waiting for its inputs and for models that other
/// entries load.
/// Returns its start and end.
fn next(free_at_ns: &mut [u64], models: &mut TimetableModels, entry: &TimetableEntry) -> (u64, u64) {
    let Some(first) = free_at_ns.iter_mut().min() else { return (u64::MAX, u64::MAX) };
    let begin_ns = entry.inputs_at_ns.map_or(*first, |inputs_at_ns| inputs_at_ns.max(*first));
    let there_ns = models.there_at_ns(begin_ns, entry);
    *first = there_ns.saturating_add(entry.work_ns());
    (begin_ns, *first)
}

/// The models of a timetable during a pass over its entries.
struct TimetableModels(SmallVec<[PlannedModel; 8]>);

struct PlannedModel {
    model: ModelKey,
    size: ModelSize,
    /// Whether the device holds or loads the model.
    is_held: bool,
    /// When the model is loaded, up to the current entry of the pass.
    there_at_ns: u64,
}

impl TimetableModels {
    fn new(
        needed: &[Needed],
        entry: &TimetableEntry,
        held: &impl Fn(ModelKey) -> Option<(ModelSize, u64)>,
    ) -> Self {
        let place = |model, size: &dyn Fn() -> ModelSize| {
            let (is_held, (size, there_at_ns)) =
                held(model).map_or_else(|| (false, (size(), 0)), |held| (true, held));
            PlannedModel { model, size, is_held, there_at_ns }
        };
        let mut all =
            Self(needed.iter().map(|needed| place(needed.model, &|| needed.size.clone())).collect());
        for demand in &entry.request.models {
            if all.0.iter().all(|place| place.model != demand.model) {
                all.0.push(place(demand.model, &|| ModelSize::for_demand(demand)));
            }
        }
        all
    }

    /// When an entry that starts at `begin_ns` can proceed, before its own loads. An entry waits
    /// for models that another entry loads, whether it relies on them or not.
    fn there_at_ns(&mut self, begin_ns: u64, entry: &TimetableEntry) -> u64 {
        let needed = || self.0.iter().filter(|place| entry.needs(place.model)).map(|place| place.there_at_ns);
        let there_ns = if self.0.iter().all(|place| place.there_at_ns <= begin_ns) {
            begin_ns
        } else {
            needed().fold(begin_ns, u64::max)
        };
        if !entry.loads.is_empty() {
            let loaded_ns = there_ns.saturating_add(entry.load_ns);
            for place in self.0.iter_mut().filter(|place| entry.loads.contains(&place.model)) {
                // A held model that other entries rely on stays loaded.
                place.there_at_ns = if place.is_held { place.there_at_ns } else { loaded_ns };
            }
        }
        there_ns
    }

    /// The common case: all needed models fit in memory together.
    fn all_fit_together(&self, now: &Now) -> bool {
        let mut all = CombinedModelSize::default();
        self.0.iter().for_each(|place| all.add(&place.size));
        let others =
            now.granted.iter().filter(|(model, ..)| self.0.iter().all(|place| place.model != *model));
        others.for_each(|(_, size, _)| all.add(size));
        all.bytes() <= now.capacity_bytes
    }

    /// Whether, at every start, the models in use and the models that later entries rely on fit in
    /// memory.
    fn fit<'a, I: Iterator<Item = &'a TimetableEntry>>(
        &self,
        now: &Now,
        in_order: impl Fn() -> I,
        times: &[(u64, u64)],
    ) -> bool {
        // By model: whether it is loaded, the last position that relies on it, and until when
        // started entries use it.
        let mut states: SmallVec<[(bool, Option<usize>, u64); 8]> =
            self.0.iter().map(|place| (place.is_held, None, 0)).collect();
        let mut others = CombinedModelSize::default();
        let mut always = CombinedModelSize::default();
        for (model, size, is_required) in &now.granted {
            match self.0.iter().position(|place| place.model == *model) {
                Some(index) => states[index].2 = if *is_required { u64::MAX } else { now.granted_until_ns },
                None => {
                    others.add(size);
                    if *is_required {
                        always.add(size);
                    }
                }
            }
        }
        for (position, entry) in in_order().enumerate() {
            for (_, state) in self.0.iter().zip(&mut states).filter(|(place, _)| entry.counts_on(place.model))
            {
                state.1 = Some(position);
            }
        }
        for ((position, entry), (begin_ns, end_ns)) in in_order().enumerate().zip(times) {
            let mut needed = if now.granted_until_ns > *begin_ns { others.clone() } else { always.clone() };
            for (place, (is_there, counted_on_by, used_until_ns)) in self.0.iter().zip(&mut states) {
                if entry.needs(place.model) {
                    *is_there = true;
                    *used_until_ns = (*used_until_ns).max(*end_ns);
                }
                if *is_there && counted_on_by.is_some_and(|last| last > position)
                    || *used_until_ns > *begin_ns
                {
                    needed.add(&place.size);
                }
            }
            if needed.bytes() > now.capacity_bytes {
                return false;
            }
        }
        true
    }
}

impl Slo {
    /// The earlier of the due time and the deadline.
    pub(super) fn due_before_ns(&self, deadline_at_ns: u64) -> u64 {
        self.due_at_ns.min(deadline_at_ns)
    }
}

#[cfg(test)]
mod tests;
