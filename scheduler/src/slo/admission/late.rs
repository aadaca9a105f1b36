//! Admitted invocations that can no longer meet their SLOs.
//!
//! Runs that take longer than expected delay the entries behind them. If late entries kept their
//! places, each would also make the next one late, and under high load a device would serve only
//! late invocations. An entry that is late when its turn comes therefore loses its place, if others
//! wait behind it, and continues as an invocation without an SLO. Clockwork (Gujarati et al., OSDI
//! 2020) gives it up instead.

use super::AdmissionQueue;
use crate::slo::Slo;
use crate::slo::timetable::{Timetable, TimetableEntry};
use crate::{DeviceKey, PlacementRequest, View};

impl AdmissionQueue {
    /// Removes the entries at the head of a timetable that would end after their due times, except
    /// the last entry. Reservations are not counted as the head.
    pub(super) fn pass_late(&mut self, now_ns: u64, view: &View, key: DeviceKey) {
        let is_late = |entry: &TimetableEntry| {
            // The entry's own time is earlier by the margin, and later for a trial.
            let promised_ns = entry.request.slo.due_before_ns(entry.request.deadline_at_ns);
            let due_at_ns = promised_ns.max(entry.due_at_ns);
            !entry.is_other && now_ns.saturating_add(entry.work_ns()) > due_at_ns
        };
        let late_head = |table: &Timetable| {
            let mut waiting = table.entries().iter().enumerate().filter(|(_, entry)| !entry.is_reserved());
            let (head, entry) = waiting.next()?;
            (waiting.next().is_some() && is_late(entry)).then_some(head)
        };
        while let Some(at) = self.tables.get(&key).and_then(late_head) {
            if let Some(entry) = self.unseat_before_start(view, key, at) {
                self.late.push(PlacementRequest { slo: Slo::NONE, ..entry.request });
            }
        }
    }

    /// Takes the invocations that have lost their places.
    pub(crate) fn take_late(&mut self) -> Vec<PlacementRequest> {
        std::mem::take(&mut self.late)
    }
}
