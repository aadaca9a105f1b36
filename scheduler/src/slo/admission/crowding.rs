//! Whether to load a model on a device for which other invocations already wait.
//!
//! While demand exceeds capacity, a load takes time from an invocation that would have met its SLO
//! without the load, and gains nothing: the invocations admitted instead use another model. On a
//! device with waiting invocations, a load therefore has to be worth it: the rejected work of its
//! model must equal the time of several loads, times the number of devices with the model plus one.
//! Clockwork (Gujarati et al., OSDI 2020) loads by the same measure: the most waiting work per
//! copy. Here no invocation waits to provide that measure, and no model is excluded forever.

use super::AdmissionQueue;
use crate::slo::timetable::{Timetable, TimetableEntry};
use crate::{DeviceView, ModelKey, PlacementRequest, View};

/// A device is crowded if its waiting invocations take more than this fraction (one part in
/// `CROWDED_PART`) of the time until the arrival is due.
const CROWDED_PART: u64 = 3;

/// The same fraction while invocations are rejected, that is, while demand exceeds capacity.
const CROWDED_PART_WHEN_SHORT: u64 = 8;

/// Rejected work required for a load, in load times per device with the model and one more.
const WORTH_LOADS: u64 = 32;

/// Time without a further rejection after which rejected work is forgotten.
const FORGOTTEN_NS: u64 = 60_000_000_000;

/// Rejected work of one model since its last load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TurnedAway {
    work_ns: u64,
    last_at_ns: u64,
}

impl AdmissionQueue {
    /// Whether an entry may load its missing models on a device for which others wait.
    pub(super) fn is_worth_loading(
        &self,
        (now_ns, view): (u64, &View),
        device: &DeviceView,
        table: &Timetable,
        entry: &TimetableEntry,
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

    /// Records the rejection of a request.
    pub(crate) fn note_turned_away(&mut self, now_ns: u64, view: &View, request: &PlacementRequest) {
        // Any device serves for the estimate: a model's work is only compared with its own load
        // time.
        let run_ns = view.devices().next().map_or(0, |(_, device)| view.run_time_ns(device, request));
        for demand in &request.models {
            let TurnedAway { work_ns, last_at_ns } = self.turned_away.entry(demand.model).or_default();
            (*work_ns, *last_at_ns) = (work_ns.saturating_add(run_ns), now_ns);
        }
    }

    /// Resets the rejected work of models that an admitted entry loads.
    pub(super) fn note_loads(&mut self, loads: &[ModelKey]) {
        loads.iter().for_each(|model| _ = self.turned_away.remove(model));
    }

    /// Forgets work that was rejected long ago.
    pub(super) fn forget_turned_away(&mut self, now_ns: u64) {
        self.turned_away.retain(|_, away| now_ns < away.last_at_ns.saturating_add(FORGOTTEN_NS));
    }
}
