//! A plan for the steps of a workflow that have not started: a reservation for each.

use super::calendar::{Calendar, Reservation};
use super::device::DeviceState;
use super::progress::{Progress, StepState};
use weir_types::Cost;

/// A device and its reservations.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) state: DeviceState,
    pub(super) calendar: Calendar,
}

/// Reservations for all steps of a workflow that have not started, not yet in the calendars.
#[derive(Debug)]
pub(super) struct Plan {
    /// With the index of the device.
    pub(super) reservations: Vec<(usize, Reservation)>,
    /// When the workflow ends.
    pub(super) end_ns: u64,
    /// Cost of the reserved time.
    pub(super) cost: Cost,
}

impl Lane {
    pub(super) fn new(state: DeviceState) -> Self {
        Self { state, calendar: Calendar::default() }
    }

    /// The earliest reservation for a step whose inputs exist at `ready_ns`. `None` if the step
    /// cannot run here, or its model does not fit beside those of the other reservations.
    fn reservation(
        &self,
        now_ns: u64,
        (progress, step): (&Progress, usize),
        ready_ns: u64,
    ) -> Option<Reservation> {
        let graph_step = &progress.graph.steps()[step];
        let times = graph_step.on(self.state.spec.kind)?;
        let bytes = self.calendar.bytes_with(graph_step, self.state.running_model());
        if bytes > self.state.spec.capacity_bytes {
            return None;
        }
        let is_held = self.state.holds(graph_step.model);
        let free_at_ns = self.state.free_at_ns(now_ns);
        let work_ns = |is_brought: bool| times.work_ns(!is_held && !is_brought);
        let (start_ns, end_ns) = self.calendar.gap((free_at_ns, ready_ns), graph_step.model, work_ns)?;
        Some(Reservation {
            key: progress.key(step),
            model: graph_step.model,
            bytes: graph_step.bytes,
            start_ns,
            end_ns,
        })
    }
}

/// Plans a workflow: steps with the longest remaining path first, each where it ends first among the
/// devices of its kind. `kind` returns the kind for a step, or `None` for any kind. The calendars
/// are unchanged afterwards.
pub(super) fn plan(
    now_ns: u64,
    lanes: &mut [Lane],
    prices: &[Cost],
    progress: &Progress,
    kind: impl Fn(usize) -> Option<usize>,
) -> Option<Plan> {
    let mut ends_ns: Vec<u64> = progress.steps.iter().map(|state| end_ns(now_ns, lanes, *state)).collect();
    let mut reservations = Vec::new();
    for step in order(progress, &kind) {
        let after = &progress.graph.steps()[step].after;
        let ready_ns = after.iter().map(|after| ends_ns[*after]).fold(now_ns, u64::max);
        let candidates = lanes
            .iter()
            .enumerate()
            .filter(|(_, lane)| kind(step).is_none_or(|kind| lane.state.spec.kind == kind));
        let offers = candidates.filter_map(|(device, lane)| {
            let reservation = lane.reservation(now_ns, (progress, step), ready_ns)?;
            let cost = price(prices, lane).of_time(reservation.end_ns - reservation.start_ns);
            Some((reservation.end_ns, cost, device, reservation))
        });
        let best = offers.min_by_key(|(end_ns, cost, device, _)| (*end_ns, *cost, *device));
        let Some((end_ns, _, device, reservation)) = best else { break };
        ends_ns[step] = end_ns;
        lanes[device].calendar.insert(reservation);
        reservations.push((device, reservation));
    }
    for (device, reservation) in &reservations {
        lanes[*device].calendar.remove(reservation.key);
    }
    let is_complete =
        reservations.len() == progress.steps.iter().filter(|state| **state == StepState::Waits).count();
    let time_cost = |(device, reservation): &(usize, Reservation)| {
        price(prices, &lanes[*device]).of_time(reservation.end_ns - reservation.start_ns)
    };
    let cost = reservations.iter().map(time_cost).fold(Cost::ZERO, Cost::saturating_add);
    let end_ns = ends_ns.into_iter().max().unwrap_or(now_ns);
    is_complete.then_some(Plan { reservations, end_ns, cost })
}

/// The price of a second of a device.
pub(super) fn price(prices: &[Cost], lane: &Lane) -> Cost {
    prices.get(lane.state.spec.kind).copied().unwrap_or_default()
}

/// When a step that has started ends; now for steps that have ended or wait.
pub(super) fn end_ns(now_ns: u64, lanes: &[Lane], state: StepState) -> u64 {
    match state {
        StepState::Runs(device) => lanes[device].state.free_at_ns(now_ns),
        StepState::Waits | StepState::Ended => now_ns,
    }
}

/// The steps that have not started, by the longest path from the start of the step to the end of the
/// workflow, longest first.
fn order(progress: &Progress, kind: &impl Fn(usize) -> Option<usize>) -> Vec<usize> {
    let steps = progress.graph.steps();
    let mut paths_ns = vec![0_u64; steps.len()];
    for step in (0..steps.len()).rev() {
        let run_ns = match kind(step) {
            Some(kind) => steps[step].on(kind).map(|times| times.run_ns),
            None => steps[step].times.iter().flatten().map(|times| times.run_ns).min(),
        };
        let rest_ns = progress.graph.followers(step).iter().map(|follower| paths_ns[*follower]).max();
        paths_ns[step] = run_ns.unwrap_or(0).saturating_add(rest_ns.unwrap_or(0));
    }
    let mut waiting: Vec<usize> =
        (0..steps.len()).filter(|step| progress.steps[*step] == StepState::Waits).collect();
    waiting.sort_by_key(|step| (std::cmp::Reverse(paths_ns[*step]), *step));
    waiting
}
