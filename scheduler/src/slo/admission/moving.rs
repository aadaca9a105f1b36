//! Moves of admitted invocations that make a place for an arrival.
//!
//! An arrival may find no place on the devices that hold its models, although an invocation that
//! waits there could run on another device that holds other models. The move of that invocation
//! costs nothing: it still ends by its due time, and the arrival needs no load and no rejection. A
//! move of one invocation is tried, not a chain of them.

use super::AdmissionQueue;
use super::offers::{RoughEstimate, Seat, Wish};
use crate::slo::timetable::{Now, Timetable, TimetableEntry};
use crate::{DeviceKey, DeviceView, PlacementRequest};
use smallvec::SmallVec;

/// Maximum number of timetables computed to find a move for one arrival.
const TIMETABLES_MAX: usize = 64;

/// An admitted invocation to move.
struct Move {
    from: DeviceKey,
    at: usize,
    to: Seat,
}

impl AdmissionQueue {
    /// A place on a device that holds the request's models, which the move of another invocation
    /// makes free. Makes the move.
    pub(super) fn by_move(&mut self, wish: &Wish<'_>) -> Option<Seat> {
        let Wish { view, request, .. } = *wish;
        let holders = view.model(request.models.first()?.model).holders_by_free();
        let mut candidates: SmallVec<[_; 16]> = holders
            .filter_map(|key| Some((key, view.device(key)?)))
            .filter(|(_, device)| device.takes(&request.models) && holds_all(device, request))
            .map(|(key, device)| self.rough_estimate(wish, key, device))
            .filter(|candidate| candidate.cost <= wish.cost_max)
            .take(self.settings.sample_len.max(1))
            .collect();
        candidates.sort_unstable_by_key(|candidate| (candidate.finish_after_ns, candidate.key));
        let mut tries_left = TIMETABLES_MAX;
        let found = candidates.iter().find_map(|candidate| self.find_move(wish, candidate, &mut tries_left));
        let (Move { from, at, to }, arrival) = found?;
        self.unseat(from, at, |_| true, |_, _| 0)?;
        self.seat(wish.now_ns, to);
        Some(arrival)
    }

    /// An invocation that waits for the candidate and can run elsewhere, and the place of the
    /// request after its move.
    fn find_move(
        &self,
        wish: &Wish<'_>,
        candidate: &RoughEstimate<'_>,
        tries_left: &mut usize,
    ) -> Option<(Move, Seat)> {
        let table = self.tables.get(&candidate.key)?;
        let now = Now::for_device(wish.now_ns, candidate.device);
        let arrival = TimetableEntry::new(wish.request.clone(), wish.due_at_ns, candidate.run_ns);
        let held = |model| candidate.device.place_of(model);
        for (at, entry) in table.entries().iter().enumerate() {
            // The entries behind one that loads models rely on it.
            if entry.is_other
                || entry.is_reserved()
                || !entry.loads.is_empty()
                || !self.has_other_holders(wish, entry)
            {
                continue;
            }
            *tries_left = tries_left.checked_sub(1)?;
            let insertion = table.try_insert_without(&now, Some(at), &arrival, held);
            if !insertion.is_on_time || !insertion.fits {
                continue;
            }
            if let Some(to) = self.elsewhere(wish, entry, candidate.key, tries_left) {
                let seat = Seat { device: candidate.key, at: insertion.at, entry: arrival };
                return Some((Move { from: candidate.key, at, to }, seat));
            }
        }
        None
    }

    /// Whether several devices hold the first model of an entry.
    fn has_other_holders(&self, wish: &Wish<'_>, entry: &TimetableEntry) -> bool {
        entry.request.models.first().is_some_and(|first| wish.view.model(first.model).holders().len() > 1)
    }

    /// A place for an admitted invocation on another device that holds its models.
    fn elsewhere(
        &self,
        wish: &Wish<'_>,
        entry: &TimetableEntry,
        from: DeviceKey,
        tries_left: &mut usize,
    ) -> Option<Seat> {
        let request = &entry.request;
        let empty = Timetable::default();
        for key in wish.view.model(request.models.first()?.model).holders_by_free() {
            let Some(device) =
                wish.view.device(key).filter(|device| key != from && device.takes(&request.models))
            else {
                continue;
            };
            let run_ns = wish.view.life_ns(device, request);
            let is_cheap = self.cost(wish.view, device, run_ns) <= request.slo.cost_max;
            if !is_cheap || !holds_all(device, request) {
                continue;
            }
            *tries_left = tries_left.checked_sub(1)?;
            let moved = TimetableEntry::new(request.clone(), entry.due_at_ns, run_ns);
            let table = self.tables.get(&key).unwrap_or(&empty);
            let now = Now::for_device(wish.now_ns, device);
            let insertion = table.try_insert(&now, &moved, |model| device.place_of(model));
            if insertion.is_on_time && insertion.fits {
                return Some(Seat { device: key, at: insertion.at, entry: moved });
            }
        }
        None
    }
}

/// Whether the device holds all models of the request that run on it.
fn holds_all(device: &DeviceView, request: &PlacementRequest) -> bool {
    device.own(&request.models).all(|demand| device.holds(demand.model))
}
