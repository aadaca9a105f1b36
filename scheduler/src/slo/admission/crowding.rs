//! When a model is loaded where others wait already.
//!
//! While there is more work than devices can do, a load takes time from somebody who would have been in time without it, and brings nothing: those who are
//! admitted instead use another model. So on a device with a line, a load has to be worth it: work of that model has been turned away, as much as some loads of
//! it take, and more of it the more devices have the model. That is when Clockwork (Gujarati et al., OSDI 2020) loads: where most work waits for each copy. Here
//! nobody waits to find that out, and no model is left out for good.

use super::Admission;
use crate::slo::timetable::{Entry, Timetable};
use crate::{DeviceView, ModelKey, Request, View};

/// A device is crowded if its line takes more than one part in so many of the time that an arrival has.
const CROWDED_PART: u64 = 3;

/// The same while some are turned away: there is more work than devices can do.
const CROWDED_PART_WHEN_SHORT: u64 = 8;

/// So many loads' time of a model's work is turned away for each device that has it, and one more, before another is crowded further.
const WORTH_LOADS: u64 = 8;

/// What was turned away is forgotten once nothing more was for so long.
const FORGOTTEN_NS: u64 = 60_000_000_000;

/// Work of one model that was turned away since it was loaded last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TurnedAway {
    work_ns: u64,
    last_at_ns: u64,
}

impl Admission {
    /// Whether an entry may load what it would have to, where others wait for the same device.
    pub(super) fn is_worth_loading(
        &self,
        (now_ns, view): (u64, &View),
        device: &DeviceView,
        table: &Timetable,
        entry: &Entry,
    ) -> bool {
        let line_ns = table.work_ns() / u64::from(device.slots_for_slos());
        let part = if self.turned_away.is_empty() { CROWDED_PART } else { CROWDED_PART_WHEN_SHORT };
        let is_crowded = line_ns > entry.due_at_ns.saturating_sub(now_ns) / part;
        let is_worth = |model: &ModelKey| {
            let copies = view.model(*model).holders().len() as u64;
            let turned_away_ns = self.turned_away.get(model).map_or(0, |away| away.work_ns);
            turned_away_ns >= entry.load_ns.saturating_mul(WORTH_LOADS).saturating_mul(copies + 1)
        };
        !is_crowded || entry.loads.iter().all(is_worth)
    }

    /// There was no place for one that arrived.
    pub(super) fn note_turned_away(&mut self, now_ns: u64, view: &View, request: &Request) {
        // On whichever device: models are compared with themselves only.
        let run_ns = view.devices().next().map_or(0, |(_, device)| view.run_time_ns(device, request));
        for demand in &request.models {
            let TurnedAway { work_ns, last_at_ns } = self.turned_away.entry(demand.model).or_default();
            (*work_ns, *last_at_ns) = (work_ns.saturating_add(run_ns), now_ns);
        }
    }

    /// One is let in that loads these.
    pub(super) fn note_loads(&mut self, loads: &[ModelKey]) {
        loads.iter().for_each(|model| _ = self.turned_away.remove(model));
    }

    /// Forget what was turned away long ago.
    pub(super) fn forget_turned_away(&mut self, now_ns: u64) {
        self.turned_away.retain(|_, away| now_ns < away.last_at_ns.saturating_add(FORGOTTEN_NS));
    }
}
