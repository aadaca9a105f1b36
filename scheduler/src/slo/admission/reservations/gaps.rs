//! Gaps: when a reservation needs its slot, and which entries behind it may start before.

use crate::slo::admission::others::PATIENCE_NS;
use crate::slo::timetable::TimetableEntry;
use crate::{DeviceView, View};
use smallvec::SmallVec;

/// A step is long overdue after this part of its run time (one part in `OVERDUE_PART`). Until then,
/// its slot stays free for it: a delay would also delay the steps that follow it on other devices.
const OVERDUE_PART: u64 = 4;

/// The room that the reservations at the head of a timetable leave for the entries behind them.
pub(in crate::slo::admission) struct GapsAhead<'a> {
    now_ns: u64,
    view: &'a View,
    device: &'a DeviceView,
    reserved: SmallVec<[&'a TimetableEntry; 4]>,
    /// Whether an entry that waits for a slot would be passed, too.
    pub(in crate::slo::admission) passes_waiting: bool,
}

impl<'a> GapsAhead<'a> {
    pub(in crate::slo::admission) fn new(now_ns: u64, view: &'a View, device: &'a DeviceView) -> Self {
        Self { now_ns, view, device, reserved: SmallVec::new(), passes_waiting: false }
    }

    /// Adds the next reservation.
    pub(in crate::slo::admission) fn add(&mut self, entry: &'a TimetableEntry) {
        self.reserved.push(entry);
    }

    pub(in crate::slo::admission) fn has_reservations(&self) -> bool {
        !self.reserved.is_empty()
    }

    /// Whether an entry can start before the reservations: a slot remains for each of them, or the
    /// entry ends before the first of their steps arrives. If a step is long overdue, and no other
    /// entry waits, the entry may also end later, as long as the step still ends in time.
    pub(in crate::slo::admission) fn has_room_for(&self, entry: &TimetableEntry) -> bool {
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
    pub(super) fn changes_ns(&self) -> impl Iterator<Item = u64> {
        let kept_from_ns = self.inputs_at_ns.map(|_| self.kept_from_ns);
        kept_from_ns.into_iter().chain(self.long_overdue_ns()).chain(self.lapses_at_ns())
    }

    /// The next of these times. `None` if the reservation lapses now, and for other entries.
    pub(super) fn next_change_ns(&self, now_ns: u64) -> Option<u64> {
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
