//! Locality-aware load balancing, with and without out-of-order dispatch: the LALB paper,
//! Algorithms 1 and 2.
//!
//! After every event, each idle device with a local queue is served from that queue. Then Algorithm
//! 1 runs over the idle devices, most dispatches first. A scan looks for the first waiting
//! invocation whose models the device holds, and counts a visit for each invocation that it passes
//! over. An invocation whose visits reach the limit is *forced*: placed at once, hit or miss. If
//! the scan finds nothing, invocations are placed in order until one lands on the device.
//!
//! The implementation does not scan item by item. Every scan starts at the head of the queue, so an
//! older invocation has at least as many visits as a younger one. The forced invocations are
//! therefore the front of the queue, and an index from models to invocations finds the first hit
//! after them (the LALB paper, section VI). Visits are counted by recording where scans end.

mod queue;

use super::{PlacementDecision, PlacementRequest, Policy, RoomFinder};
use crate::{DeviceKey, DeviceView, View};
use queue::ArrivalQueue;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use weir_types::InvocationId;

/// `lalb` (limit 0) and `lalb-o3` of the LALB paper.
///
/// Choices that the paper leaves open: a device holds a model from the start of its load; an
/// invocation of several models is a hit where all are held; an invocation that fits nowhere now
/// stays in the queue.
pub struct Locality {
    name: &'static str,
    /// Visits after which an invocation is forced.
    limit: u32,
    busy_choice: BusyChoice,
    placer: RoomFinder,
    queue: ArrivalQueue,
    /// Invocations that wait for one busy device. Empty queues are removed.
    local: BTreeMap<DeviceKey, VecDeque<(u64, PlacementRequest)>>,
    local_places: HashMap<InvocationId, DeviceKey>,
    run: AlgorithmProgress,
}

/// Which busy device with the models gets an invocation, if several are faster than a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyChoice {
    /// The first in the order of dispatches, as Algorithm 2 is written.
    #[default]
    First,
    /// The device that is free soonest, which gives better results.
    Soonest,
}

/// The progress of Algorithm 1 since the last event.
#[derive(Debug, Default)]
enum AlgorithmProgress {
    #[default]
    LocalQueues,
    Devices {
        /// Idle devices still to be served, in reverse order.
        devices: Vec<DeviceKey>,
        scan: Scan,
    },
}

/// The step for the current device. Both steps start after the invocation with this place in the
/// queue.
#[derive(Debug, Clone, Copy)]
enum Scan {
    /// Lines 6 to 16.
    Hits(Option<u64>),
    /// Lines 17 to 22.
    Misses(Option<u64>),
}

/// The result of Algorithm 2.
enum AlgorithmChoice {
    Start(DeviceKey),
    Wait(DeviceKey),
    NoRoom,
}

impl Locality {
    /// The paper's default for the limit.
    pub const LIMIT: u32 = 25;

    /// Creates the policy with out-of-order dispatch.
    #[must_use]
    pub fn out_of_order(limit: u32, busy_choice: BusyChoice, placer: RoomFinder) -> Self {
        let (queue, local, local_places, run) = Default::default();
        Self { name: "lalb-o3", limit, busy_choice, placer, queue, local, local_places, run }
    }

    /// Creates the policy without out-of-order dispatch: a limit of 0.
    #[must_use]
    pub fn in_order(busy_choice: BusyChoice, placer: RoomFinder) -> Self {
        Self { name: "lalb", ..Self::out_of_order(0, busy_choice, placer) }
    }

    fn next_local(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        let may_go = |(device, queue): (&DeviceKey, &VecDeque<(u64, PlacementRequest)>)| {
            let (_, request) = queue.front()?;
            let fits = view.tenants().may_start(request.tenant)
                && self.placer.can_start(now_ns, view, *device, request);
            fits.then_some(*device)
        };
        let device = self.local.iter().find_map(may_go)?;
        let queue = self.local.get_mut(&device)?;
        let (_, request) = queue.pop_front()?;
        if queue.is_empty() {
            self.local.remove(&device);
        }
        self.local_places.remove(&request.invocation);
        self.placer.place(now_ns, view, device, request).ok()
    }

    /// Runs lines 6 to 22 for `device`, continuing after the last placement. Returns the placement,
    /// if any, and where to continue for this device.
    fn serve(
        &mut self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        mut scan: Scan,
    ) -> (Option<PlacementDecision>, Option<Scan>) {
        while let Some(state) = view.device(device).filter(|state| state.is_open()) {
            let (Scan::Hits(after) | Scan::Misses(after)) = scan;
            let Some((place, request)) = self.queue.after(after, view) else {
                match scan {
                    Scan::Hits(_) => scan = Scan::Misses(None),
                    Scan::Misses(_) => break,
                }
                continue;
            };
            if let Scan::Hits(_) = scan {
                if !holds_all(state, request) && !self.queue.is_forced(place, self.limit) {
                    let hit = self.queue.first_hit(place, view, state);
                    self.queue.note_scan(hit);
                    let Some(hit) = hit else {
                        scan = Scan::Misses(None);
                        continue;
                    };
                    return (self.start(now_ns, view, hit, device), None);
                }
                if holds_all(state, request) {
                    if self.placer.can_start(now_ns, view, device, request) {
                        return (self.start(now_ns, view, place, device), None);
                    }
                    scan = Scan::Hits(Some(place));
                    continue;
                }
            }
            let next =
                if let Scan::Hits(_) = scan { Scan::Hits(Some(place)) } else { Scan::Misses(Some(place)) };
            match self.balance(now_ns, view, device, request) {
                AlgorithmChoice::Start(other) => {
                    return (self.start(now_ns, view, place, other), (other != device).then_some(next));
                }
                AlgorithmChoice::Wait(busy) => self.wait(place, busy),
                AlgorithmChoice::NoRoom => {}
            }
            scan = next;
        }
        (None, None)
    }

    /// Algorithm 2.
    fn balance(
        &self,
        now_ns: u64,
        view: &View,
        device: DeviceKey,
        request: &PlacementRequest,
    ) -> AlgorithmChoice {
        let can_start = |device: DeviceKey| self.placer.can_start(now_ns, view, device, request);
        let mut holders = holders(view, request);
        holders.sort_unstable_by_key(|(key, state)| (Reverse(state.dispatches()), *key));
        if let Some((idle, _)) = holders.iter().find(|(key, _)| can_start(*key)) {
            return AlgorithmChoice::Start(*idle);
        }
        let here = view.device(device).map_or(0, |state| view.estimate(now_ns, state, request).load_time_ns);
        let busy = holders.iter().filter(|(_, state)| !state.is_open_to(request));
        let waits = busy.map(|(key, state)| {
            let local = self.local.get(key).into_iter().flatten();
            let local_ns =
                local.map(|(_, ahead)| view.run_time_ns(state, ahead)).fold(0, u64::saturating_add);
            (state.wait_for_ns(now_ns, &request.models, 0).saturating_add(local_ns), *key)
        });
        let mut sooner = waits.filter(|(wait_ns, _)| *wait_ns < here);
        let busy = match self.busy_choice {
            BusyChoice::First => sooner.next(),
            BusyChoice::Soonest => sooner.min(),
        };
        match busy {
            Some((_, busy)) => AlgorithmChoice::Wait(busy),
            None if can_start(device) => AlgorithmChoice::Start(device),
            None => AlgorithmChoice::NoRoom,
        }
    }

    fn start(
        &mut self,
        now_ns: u64,
        view: &View,
        place: u64,
        device: DeviceKey,
    ) -> Option<PlacementDecision> {
        let request = self.queue.take(place)?;
        match self.placer.place(now_ns, view, device, request) {
            Ok(placement) => Some(placement),
            Err(request) => {
                self.queue.put_back(place, request);
                None
            }
        }
    }

    fn wait(&mut self, place: u64, busy: DeviceKey) {
        if let Some(request) = self.queue.take(place) {
            self.local_places.insert(request.invocation, busy);
            self.local.entry(busy).or_default().push_back((place, request));
        }
    }
}

impl Policy for Locality {
    fn name(&self) -> &'static str {
        self.name
    }

    fn arrived(&mut self, request: PlacementRequest, _view: &View) {
        self.queue.push(request);
    }

    fn begin(&mut self, _now_ns: u64, _view: &View) {
        self.run = AlgorithmProgress::LocalQueues;
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        if let AlgorithmProgress::LocalQueues = self.run {
            if let Some(placement) = self.next_local(now_ns, view) {
                return Some(placement);
            }
            let mut devices: Vec<_> = view.open().collect();
            devices.reverse();
            self.run = AlgorithmProgress::Devices { devices, scan: Scan::Hits(None) };
        }
        loop {
            let AlgorithmProgress::Devices { devices, scan } = &mut self.run else { return None };
            let device = *devices.last()?;
            let from = *scan;
            let (placement, go_on) = self.serve(now_ns, view, device, from);
            let AlgorithmProgress::Devices { devices, scan } = &mut self.run else { return None };
            match go_on {
                Some(go_on) => *scan = go_on,
                // A device is filled up to the work that may be committed ahead.
                None if placement.is_some() && view.device(device).is_some_and(DeviceView::counts_work) => {
                    *scan = Scan::Hits(None);
                }
                None => {
                    // A device with counted invocations gets its next turn after the next event.
                    devices.pop();
                    *scan = Scan::Hits(None);
                }
            }
            if placement.is_some() {
                return placement;
            }
        }
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        if let Some(device) = self.local_places.remove(&invocation) {
            let queue = self.local.get_mut(&device)?;
            let at = queue.iter().position(|(_, request)| request.invocation == invocation)?;
            let (_, request) = queue.remove(at)?;
            if queue.is_empty() {
                self.local.remove(&device);
            }
            return Some(request);
        }
        self.queue.remove(invocation)
    }

    fn devices_gone(&mut self, devices: &[DeviceKey], _view: &View) {
        for device in devices {
            for (place, request) in self.local.remove(device).into_iter().flatten() {
                self.local_places.remove(&request.invocation);
                self.queue.put_back(place, request);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.queue.len() + self.local_places.len()
    }
}

fn holds_all(device: &DeviceView, request: &PlacementRequest) -> bool {
    request.models.iter().all(|demand| device.holds(demand.model))
}

/// The devices that hold all models of a request.
fn holders<'a>(view: &'a View, request: &PlacementRequest) -> SmallVec<[(DeviceKey, &'a DeviceView); 8]> {
    let Some((first, others)) = request.models.split_first() else { return SmallVec::new() };
    let devices = view.model(first.model).holders().iter();
    devices
        .filter_map(|key| Some((*key, view.device(*key)?)))
        .filter(|(_, device)| others.iter().all(|demand| device.holds(demand.model)))
        .collect()
}
