//! Admission of invocations with SLOs to devices, and the start of admitted invocations.
//! [`slo`](super) states the rules.

mod crowding;
mod late;
mod moving;
mod offers;
mod others;
mod reservations;

use super::SloSettings;
use super::timetable::{Timetable, TimetableEntry};
use crate::policy::{RoomFinder, VictimKind};
use crate::{
    Alternative, DeviceKey, DeviceView, Estimate, FunctionKey, ModelKey, PlacementDecision, PlacementRequest,
    TenantKey, View,
};
use crowding::TurnedAway;
use offers::Seat;
use others::Others;
pub(crate) use reservations::SeparateStep;
use reservations::{GapsAhead, Reservations};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use weir_types::InvocationId;

/// The admitted invocations that wait.
pub(crate) struct AdmissionQueue {
    settings: SloSettings,
    placer: RoomFinder,
    /// Timetables of the devices that admitted invocations wait for.
    tables: BTreeMap<DeviceKey, Timetable>,
    places: HashMap<InvocationId, DeviceKey>,
    /// The admitted work that waits, by tenant.
    promised: HashMap<TenantKey, Promised>,
    reservations: Reservations,
    /// Devices that served invocations with SLOs, with the time of the last use.
    served: BTreeMap<DeviceKey, u64>,
    /// When to check next for devices that have not served SLOs for a while.
    sweep_at_ns: u64,
    /// Devices whose timetable changed since the last [`settle`](Self::settle).
    touched: SmallVec<[DeviceKey; 4]>,
    /// Devices that got another entry since the last call of [`next`](Self::next) without a
    /// placement.
    fresh: SmallVec<[DeviceKey; 4]>,
    /// The next entry of a timetable could not start although a slot was free. The end of any
    /// invocation may change that.
    is_blocked: bool,
    others: Others,
    /// Invocations that have lost their places since the last [`take_late`](Self::take_late).
    late: Vec<PlacementRequest>,
    /// When a function was last admitted whose runs are expected to take too long.
    tried: HashMap<FunctionKey, u64>,
    /// Rejected work by model.
    turned_away: HashMap<ModelKey, TurnedAway>,
    /// Whether any invocation had an SLO so far.
    is_used: bool,
}

/// The admitted work of a tenant that waits.
#[derive(Debug, Default)]
struct Promised {
    /// The number of invocations.
    admitted: u32,
    /// The number of steps that have a reservation and have not arrived.
    reserved: u32,
    /// Device time of both.
    time_ns: u64,
}

/// A rejected request.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) request: PlacementRequest,
    /// The best estimate for the request.
    pub(crate) estimate: Estimate,
    /// The devices that came closest, with their estimates.
    pub(crate) alternatives: Vec<Alternative>,
    /// Whether the tenant's limits are the reason.
    pub(crate) is_over_limits: bool,
}

/// How long a device stays limited to its slots after it last served an invocation with an SLO.
const SERVED_NS: u64 = 10_000_000_000;

/// Maximum number of entries searched after an entry whose tenant is at its limits.
const PASSED_MAX: usize = 4;

impl AdmissionQueue {
    pub(crate) fn new(settings: &SloSettings) -> Self {
        let (tables, places, promised, served, others, tried, turned_away) = Default::default();
        Self {
            settings: settings.clone(),
            placer: VictimKind::LeastLoss.placer(),
            tables,
            places,
            promised,
            reservations: Reservations::default(),
            served,
            sweep_at_ns: 0,
            touched: SmallVec::new(),
            fresh: SmallVec::new(),
            is_blocked: false,
            others,
            late: Vec::new(),
            tried,
            turned_away,
            is_used: false,
        }
    }

    /// Whether SLO admission is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.settings.admission
    }

    /// Whether any invocation had an SLO so far.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Admits an arriving request to a device. `may_try` allows a trial.
    ///
    /// # Errors
    /// If no device has a place for it.
    pub(crate) fn admit(
        &mut self,
        now_ns: u64,
        view: &View,
        request: PlacementRequest,
        may_try: bool,
    ) -> Result<(), Box<Refused>> {
        self.is_used = true;
        let has_room = self.has_room(view, request.tenant);
        let offer = match has_room {
            true => self.offer(now_ns, view, &request, may_try),
            false => None,
        };
        match offer {
            Some(seat) => {
                self.seat(now_ns, seat);
                Ok(())
            }
            None => {
                let alternatives = self.closest(now_ns, view, &request);
                // Without a device there is no estimate.
                let never = Estimate { wait_ns: u64::MAX, ..Estimate::default() };
                let estimate = alternatives.first().map_or(never, |best| best.estimate);
                Err(Box::new(Refused { request, estimate, alternatives, is_over_limits: !has_room }))
            }
        }
    }

    /// Admits a request on trial, if one is due. Returns the request otherwise.
    #[expect(clippy::result_large_err, reason = "the error returns the request itself")]
    pub(crate) fn admit_on_trial(
        &mut self,
        now_ns: u64,
        view: &View,
        request: PlacementRequest,
    ) -> Result<(), PlacementRequest> {
        match self.trial(now_ns, view, &request) {
            Some(seat) => {
                self.seat(now_ns, seat);
                Ok(())
            }
            None => Err(request),
        }
    }

    /// Whether the tenant's limits allow it to have one more admitted invocation.
    fn has_room(&self, view: &View, tenant: TenantKey) -> bool {
        let promised = self.promised.get(&tenant);
        let (count, time_ns) =
            promised.map(|promised| (promised.admitted, promised.time_ns)).unwrap_or_default();
        view.tenants().has_room(tenant, count, time_ns)
    }

    /// The next admitted invocation that can start now.
    pub(crate) fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        let devices: SmallVec<[DeviceKey; 16]> = if self.is_blocked {
            self.tables.keys().copied().collect()
        } else {
            self.fresh
                .iter()
                .chain(view.eased())
                .copied()
                .filter(|key| self.tables.contains_key(key))
                .collect()
        };
        let mut is_blocked = false;
        let placement = devices.into_iter().find_map(|key| self.start_on(now_ns, view, key, &mut is_blocked));
        self.is_blocked = is_blocked || self.is_blocked && placement.is_some();
        if placement.is_none() {
            self.fresh.clear();
        }
        placement
    }

    fn start_on(
        &mut self,
        now_ns: u64,
        view: &View,
        key: DeviceKey,
        is_blocked: &mut bool,
    ) -> Option<PlacementDecision> {
        let device = view.device(key).filter(|device| !device.is_full())?;
        self.pass_late(now_ns, view, key);
        let table = self.tables.get(&key)?;
        let first = first_startable(now_ns, view, device, table);
        let victims = first.and_then(|Startable { at, entry, passes_reservations }| {
            let request = &entry.request;
            let stays = |model| table.counts_on(model, at);
            let beside = self.placer.fit_beside(now_ns, view, key, request, &stays);
            if passes_reservations {
                return Some((at, beside?));
            }
            // A model that another entry relies on is evicted only if models turned out larger than
            // announced.
            let fit = beside.or_else(|| self.placer.fit(now_ns, view, key, request));
            // The entry starts here or nowhere, even if its tenant's memory is full of copies of
            // its models elsewhere.
            Some((at, fit.or_else(|| self.placer.fit_moved(now_ns, view, key, request))?))
        });
        let Some((at, victims)) = victims else {
            *is_blocked = true;
            return None;
        };
        // The entry starts and loads its models itself, so no other entry takes over its loads.
        let entry = self.unseat(key, at, |_| true, |_, _| 0)?;
        self.served.insert(key, now_ns);
        let mut placement = RoomFinder::place_for(now_ns, view, (key, device), entry.request, victims);
        let Estimate { load_time_ns, run_time_ns, .. } = placement.why.estimate;
        placement.why.estimate.cost = self.cost(view, device, load_time_ns.saturating_add(run_time_ns));
        Some(placement)
    }

    /// Removes a waiting request; `None` if the request has no place in a timetable.
    pub(crate) fn remove(&mut self, invocation: InvocationId, view: &View) -> Option<PlacementRequest> {
        let key = *self.places.get(&invocation)?;
        let table = self.tables.get(&key)?;
        let at = table.position(invocation).filter(|at| !table.entries()[*at].is_reserved())?;
        Some(self.unseat_before_start(view, key, at)?.request)
    }

    /// Removes an entry that does not start. Another entry takes over its loads.
    fn unseat_before_start(&mut self, view: &View, key: DeviceKey, at: usize) -> Option<TimetableEntry> {
        let device = view.device(key);
        let holds = |model| device.is_some_and(|device| device.holds(model));
        let load_ns = |request: &PlacementRequest, model| {
            let demand = request.models.iter().find(|demand| demand.model == model);
            device.zip(demand).map_or(0, |(device, demand)| view.load_time_ns(device, demand))
        };
        self.unseat(key, at, holds, load_ns)
    }

    /// Removes the invocations that wait for a device whose memory has changed. Reservations stay.
    pub(crate) fn device_resized(&mut self, key: DeviceKey) -> Vec<PlacementRequest> {
        let mut homeless = Vec::new();
        let waiting = |table: &Timetable| table.entries().iter().position(|entry| !entry.is_reserved());
        while let Some(at) = self.tables.get(&key).and_then(waiting) {
            homeless.extend(self.unseat(key, at, |_| true, |_, _| 0).map(|entry| entry.request));
        }
        homeless
    }

    /// Removes lost devices. Returns the requests that waited for them.
    pub(crate) fn devices_gone(&mut self, devices: &[DeviceKey]) -> Vec<PlacementRequest> {
        let mut homeless = Vec::new();
        for key in devices {
            self.served.remove(key);
            while self.tables.contains_key(key) {
                match self.unseat(*key, 0, |_| true, |_, _| 0) {
                    Some(entry) if entry.is_reserved() => self.lapsed_with_device(entry.request),
                    entry => homeless.extend(entry.map(|entry| entry.request)),
                }
            }
            self.touched.retain(|touched| touched != key);
            self.fresh.retain(|fresh| fresh != key);
        }
        homeless
    }

    /// Reserves devices for the requests that wait for them, and releases devices that have not
    /// served SLOs for a while.
    pub(crate) fn settle(&mut self, now_ns: u64, view: &mut View) {
        self.lapse(now_ns, view);
        for key in std::mem::take(&mut self.touched) {
            let is_kept = self.tables.get(&key).is_some_and(|table| table.is_awaited(now_ns));
            view.reserve(key, is_kept, true);
        }
        if now_ns < self.sweep_at_ns {
            return;
        }
        self.sweep_at_ns = now_ns.saturating_add(SERVED_NS / 10);
        self.forget_turned_away(now_ns);
        let tables = &self.tables;
        self.served.retain(|key, at_ns| {
            let stays = tables.contains_key(key) || at_ns.saturating_add(SERVED_NS) > now_ns;
            if !stays {
                view.reserve(*key, false, false);
            }
            stays
        });
    }

    fn seat(&mut self, now_ns: u64, Seat { device, at, entry }: Seat) {
        let promised = self.promised.entry(entry.request.tenant).or_default();
        promised.time_ns = promised.time_ns.saturating_add(entry.work_ns());
        *promised.counter(&entry) += 1;
        self.note_reservation(now_ns, &entry);
        self.note_loads(&entry.loads);
        self.places.insert(entry.request.invocation, device);
        self.tables.entry(device).or_default().insert(at, entry);
        self.served.insert(device, now_ns);
        self.touched.push(device);
        self.fresh.push(device);
    }

    fn unseat(
        &mut self,
        key: DeviceKey,
        at: usize,
        holds: impl Fn(ModelKey) -> bool,
        load_ns: impl Fn(&PlacementRequest, ModelKey) -> u64,
    ) -> Option<TimetableEntry> {
        let table = self.tables.get_mut(&key)?;
        let entry = table.take(at, holds, load_ns);
        if table.is_empty() {
            self.tables.remove(&key);
        }
        if let Some(promised) = self.promised.get_mut(&entry.request.tenant) {
            promised.time_ns = promised.time_ns.saturating_sub(entry.work_ns());
            let counter = promised.counter(&entry);
            *counter = counter.saturating_sub(1);
            if promised.admitted == 0 && promised.reserved == 0 {
                self.promised.remove(&entry.request.tenant);
            }
        }
        self.places.remove(&entry.request.invocation);
        self.touched.push(key);
        Some(entry)
    }
}

impl Promised {
    /// The counter of entries like this one.
    fn counter(&mut self, entry: &TimetableEntry) -> &mut u32 {
        if entry.is_reserved() { &mut self.reserved } else { &mut self.admitted }
    }
}

/// An entry that may start now.
struct Startable<'a> {
    at: usize,
    entry: &'a TimetableEntry,
    /// Whether reservations are before it.
    passes_reservations: bool,
}

/// The first entry that may start now. It may pass entries whose tenant is at its limits, and
/// reservations that keep a slot or do not need the slot meanwhile ([`GapsAhead`]).
fn first_startable<'a>(
    now_ns: u64,
    view: &View,
    device: &DeviceView,
    table: &'a Timetable,
) -> Option<Startable<'a>> {
    let mut gaps = GapsAhead::new(now_ns, view, device);
    let mut passed = 0;
    for (at, entry) in table.entries().iter().enumerate() {
        if entry.is_reserved() {
            gaps.add(entry);
            continue;
        }
        if !view.tenants().is_capped(entry.request.tenant) {
            if gaps.has_room_for(entry) {
                return Some(Startable { at, entry, passes_reservations: gaps.has_reservations() });
            }
            gaps.passes_waiting = true;
        }
        passed += 1;
        if passed == PASSED_MAX {
            return None;
        }
    }
    None
}
