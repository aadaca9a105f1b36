//! What one device has promised: the admitted invocations that wait for it, in the order in which they start.
//!
//! Times are worked out anew from what the device is doing, whenever they are asked for: every slot takes the next entry as it comes free,
//! which waits for models that one before it loads. With a fixed order this has no anomalies: if anything takes less time, the times at which
//! slots are free and models are there are, sorted, none of them later, and so is every start.

use super::Slo;
use crate::view::{Size, Together};
use crate::{DeviceView, ModelKey, Request};
use smallvec::SmallVec;
use weir_types::InvocationId;

/// An admitted invocation that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) request: Request,
    /// When it must be over.
    pub(super) due_at_ns: u64,
    /// What it takes to load what is not there when its turn comes.
    pub(super) load_ns: u64,
    pub(super) run_ns: u64,
    /// The models that it loads. It counts on finding the others.
    pub(super) loads: SmallVec<[ModelKey; 1]>,
    /// It has no SLO, and has waited for too long.
    pub(super) is_other: bool,
}

/// The entries of one device.
#[derive(Debug, Default)]
pub(super) struct Timetable {
    /// In order: those due first first, equals as they came.
    entries: Vec<Entry>,
    /// What all take together.
    work_ns: u64,
    models: SmallVec<[Needed; 4]>,
    others: u32,
}

/// A model that entries need.
#[derive(Debug)]
struct Needed {
    model: ModelKey,
    size: Size,
    /// How many of them.
    entries: u32,
}

/// What a device is doing, as far as it matters here.
#[derive(Debug, Clone)]
pub(super) struct Now {
    /// When each of its slots is free; not before now.
    pub(super) free_at_ns: SmallVec<[u64; 8]>,
    pub(super) capacity_bytes: u64,
    /// The models that are granted to what runs, until the last of it ends.
    pub(super) granted: SmallVec<[(ModelKey, Size); 4]>,
    pub(super) granted_until_ns: u64,
}

/// What would come of one more entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Insertion {
    /// Where it would stand.
    pub(super) at: usize,
    /// When it would be over there.
    pub(super) end_at_ns: u64,
    /// Whether it and those behind it would be over when they are due.
    pub(super) is_on_time: bool,
    /// Whether memory would hold all that anybody counts on.
    pub(super) fits: bool,
}

/// Entries of one device; more are not admitted.
const LEN_MAX: usize = 4_096;

impl Now {
    pub(super) fn of(now_ns: u64, device: &DeviceView) -> Self {
        let slots = device.slots_for_slos() as usize;
        // Whoever comes next waits until fewer run than there are slots.
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

impl Entry {
    /// One that has to be over by then, with all models there.
    pub(super) fn new(request: Request, due_at_ns: u64, run_ns: u64) -> Self {
        Self { request, due_at_ns, load_ns: 0, run_ns, loads: SmallVec::new(), is_other: false }
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

    /// Whether one without an SLO is among them.
    pub(super) fn has_other(&self) -> bool {
        self.others > 0
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether one that stands before this place needs the model.
    pub(super) fn brings(&self, model: ModelKey, due_at_ns: u64) -> bool {
        self.needs(model) && self.entries[..self.place(due_at_ns)].iter().any(|entry| entry.needs(model))
    }

    /// Whether any but the one at `place` counts on a model's being there.
    pub(super) fn counts_on(&self, model: ModelKey, except: usize) -> bool {
        self.needs(model)
            && self.entries.iter().enumerate().any(|(at, entry)| at != except && entry.counts_on(model))
    }

    fn needs(&self, model: ModelKey) -> bool {
        self.models.iter().any(|needed| needed.model == model)
    }

    /// Where one that is due then would stand.
    fn place(&self, due_at_ns: u64) -> usize {
        self.entries.partition_point(|entry| entry.due_at_ns <= due_at_ns)
    }

    /// What would come of one more. `held` says what a model takes that the device holds or loads now, and when it is there.
    pub(super) fn try_insert(
        &self,
        now: &Now,
        entry: &Entry,
        held: impl Fn(ModelKey) -> Option<(Size, u64)>,
    ) -> Insertion {
        let at = self.place(entry.due_at_ns);
        let (ahead, behind) = self.entries.split_at(at);
        let in_order = || ahead.iter().chain([entry]).chain(behind);
        let mut models = Models::new(&self.models, entry, &held);
        let mut free = now.free_at_ns.clone();
        let mut times: SmallVec<[(u64, u64); 32]> = SmallVec::with_capacity(self.entries.len() + 1);
        let (mut end_at_ns, mut is_on_time) = (0, self.entries.len() < LEN_MAX);
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

    /// When one more would be over behind all others.
    pub(super) fn end_behind_all_ns(
        &self,
        now: &Now,
        last: &Entry,
        held: impl Fn(ModelKey) -> Option<(Size, u64)>,
    ) -> u64 {
        let mut models = Models::new(&self.models, last, &held);
        let mut free = now.free_at_ns.clone();
        let ends = self.entries.iter().chain([last]).map(|entry| next(&mut free, &mut models, entry).1);
        ends.last().unwrap_or(0)
    }

    pub(super) fn insert(&mut self, at: usize, entry: Entry) {
        self.work_ns = self.work_ns.saturating_add(entry.work_ns());
        self.others += u32::from(entry.is_other);
        for demand in &entry.request.models {
            match self.models.iter_mut().find(|needed| needed.model == demand.model) {
                Some(needed) => {
                    needed.size.bytes = demand.bytes.max(needed.size.bytes);
                    needed.entries += 1;
                }
                None => self.models.push(Needed { model: demand.model, size: Size::of(demand), entries: 1 }),
            }
        }
        self.entries.insert(at, entry);
    }

    /// Take out the one at a place. Who counted on its loading a model, which the device does not hold now, has to load it instead: nobody
    /// is later for it, since the same time is saved before.
    pub(super) fn take(
        &mut self,
        at: usize,
        holds: impl Fn(ModelKey) -> bool,
        load_ns: impl Fn(&Request, ModelKey) -> u64,
    ) -> Entry {
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

    pub(super) fn position(&self, invocation: InvocationId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.request.invocation == invocation)
    }
}

/// Take the slot that is free first, and wait for the models that others bring: from when to when.
fn next(free_at_ns: &mut [u64], models: &mut Models, entry: &Entry) -> (u64, u64) {
    let Some(first) = free_at_ns.iter_mut().min() else { return (u64::MAX, u64::MAX) };
    let begin_ns = *first;
    let there_ns = models.there_at_ns(begin_ns, entry);
    *first = there_ns.saturating_add(entry.work_ns());
    (begin_ns, *first)
}

/// The models of a timetable while its order is gone through.
struct Models(SmallVec<[Place; 8]>);

struct Place {
    model: ModelKey,
    size: Size,
    /// The device holds it, or loads it.
    is_held: bool,
    /// When it is there, as far as the order has been gone through.
    there_at_ns: u64,
}

impl Models {
    fn new(needed: &[Needed], entry: &Entry, held: &impl Fn(ModelKey) -> Option<(Size, u64)>) -> Self {
        let place = |model, size: &dyn Fn() -> Size| {
            let (is_held, (size, there_at_ns)) =
                held(model).map_or_else(|| (false, (size(), 0)), |held| (true, held));
            Place { model, size, is_held, there_at_ns }
        };
        let mut all =
            Self(needed.iter().map(|needed| place(needed.model, &|| needed.size.clone())).collect());
        for demand in &entry.request.models {
            if all.0.iter().all(|place| place.model != demand.model) {
                all.0.push(place(demand.model, &|| Size::of(demand)));
            }
        }
        all
    }

    /// When an entry that begins then can go on, apart from what it loads itself: that is there after it has. What another loads already it
    /// waits for, whether it counts on it or not.
    fn there_at_ns(&mut self, begin_ns: u64, entry: &Entry) -> u64 {
        let needed = || self.0.iter().filter(|place| entry.needs(place.model)).map(|place| place.there_at_ns);
        let there_ns = if self.0.iter().all(|place| place.there_at_ns <= begin_ns) {
            begin_ns
        } else {
            needed().fold(begin_ns, u64::max)
        };
        if !entry.loads.is_empty() {
            let loaded_ns = there_ns.saturating_add(entry.load_ns);
            for place in self.0.iter_mut().filter(|place| entry.loads.contains(&place.model)) {
                // Where it was counted on before, it is still there.
                place.there_at_ns = if place.is_held { place.there_at_ns } else { loaded_ns };
            }
        }
        there_ns
    }

    /// The common case: everything that anybody needs has room side by side.
    fn all_fit_together(&self, now: &Now) -> bool {
        let mut all = Together::default();
        self.0.iter().for_each(|place| all.add(&place.size));
        let others = now.granted.iter().filter(|(model, _)| self.0.iter().all(|place| place.model != *model));
        others.for_each(|(_, size)| all.add(size));
        all.bytes() <= now.capacity_bytes
    }

    /// Whether, at every start, there is room for what runs then and for what those behind count on.
    fn fit<'a, I: Iterator<Item = &'a Entry>>(
        &self,
        now: &Now,
        in_order: impl Fn() -> I,
        times: &[(u64, u64)],
    ) -> bool {
        // By model: whether it is there, the last position that counts on it, and until when something that has started uses it.
        let mut states: SmallVec<[(bool, Option<usize>, u64); 8]> =
            self.0.iter().map(|place| (place.is_held, None, 0)).collect();
        let mut others = Together::default();
        for (model, size) in &now.granted {
            match self.0.iter().position(|place| place.model == *model) {
                Some(index) => states[index].2 = now.granted_until_ns,
                None => others.add(size),
            }
        }
        for (position, entry) in in_order().enumerate() {
            for (_, state) in self.0.iter().zip(&mut states).filter(|(place, _)| entry.counts_on(place.model))
            {
                state.1 = Some(position);
            }
        }
        for ((position, entry), (begin_ns, end_ns)) in in_order().enumerate().zip(times) {
            let mut needed =
                if now.granted_until_ns > *begin_ns { others.clone() } else { Together::default() };
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
    /// The earlier of when it is due and when it is of no use any more.
    pub(super) fn due_before_ns(&self, deadline_at_ns: u64) -> u64 {
        self.due_at_ns.min(deadline_at_ns)
    }
}

#[cfg(test)]
mod tests;
