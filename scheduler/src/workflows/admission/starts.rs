//! The start of steps on idle devices.

use super::{Active, WorkflowAdmission};
use crate::workflows::WorkflowAction;
use crate::workflows::plan::{Lane, price};
use crate::workflows::progress::{StepKey, StepState};

impl WorkflowAdmission {
    /// Starts a step on every idle device that has one.
    pub(super) fn start_steps(&mut self, now_ns: u64, actions: &mut Vec<WorkflowAction>) {
        for device in 0..self.lanes.len() {
            if !self.lanes[device].state.is_idle() {
                continue;
            }
            if let Some(key) = self.reserved(now_ns, device).or_else(|| self.unreserved(now_ns, device)) {
                self.start(now_ns, device, key, actions);
            }
        }
    }

    /// The first ready step in the device's calendar. It may overtake reservations whose steps are
    /// not ready only if it ends before the earliest of them starts, and needs no unplanned load.
    fn reserved(&self, now_ns: u64, device: usize) -> Option<StepKey> {
        let lane = &self.lanes[device];
        let mut passed_ns = u64::MAX;
        for entry in lane.calendar.entries() {
            let Active { progress, .. } = self.active.get(&entry.key.invocation)?;
            let step = &progress.graph.steps()[entry.key.step];
            let (work_ns, _) = lane.state.work_ns(step)?;
            // A step that would need an unplanned load passes no other.
            let may_pass = passed_ns == u64::MAX
                || work_ns <= entry.end_ns - entry.start_ns && now_ns.saturating_add(work_ns) <= passed_ns;
            if may_pass && progress.is_ready(entry.key.step) {
                return Some(entry.key);
            }
            passed_ns = passed_ns.min(entry.start_ns);
            if passed_ns <= now_ns {
                return None;
            }
        }
        None
    }

    /// The first ready step of a workflow without reservations that ends before the device's next
    /// reservation.
    fn unreserved(&self, now_ns: u64, device: usize) -> Option<StepKey> {
        let lane = &self.lanes[device];
        let until_ns = lane.calendar.entries().first().map_or(u64::MAX, |entry| entry.start_ns);
        let fits = |active: &Active, step: usize| {
            let graph_step = &active.progress.graph.steps()[step];
            let is_here = active.pins.as_ref().is_none_or(|pins| pins[step] == lane.state.spec.kind);
            let work_ns = lane.state.work_ns(graph_step).map(|(work_ns, _)| work_ns);
            is_here
                && work_ns.is_some_and(|work_ns| now_ns.saturating_add(work_ns) <= until_ns)
                && lane.calendar.bytes_with(graph_step, None) <= lane.state.spec.capacity_bytes
        };
        self.best_effort.iter().find_map(|(_, invocation)| {
            let active = self.active.get(invocation)?;
            let step = active.progress.ready().find(|step| fits(active, *step))?;
            Some(active.progress.key(step))
        })
    }

    fn start(&mut self, now_ns: u64, device: usize, key: StepKey, actions: &mut Vec<WorkflowAction>) {
        let Some(Active { progress, .. }) = self.active.get_mut(&key.invocation) else { return };
        let Lane { state, calendar } = &mut self.lanes[device];
        let step = &progress.graph.steps()[key.step];
        if let Some(reservation) = calendar.remove(key) {
            // A later start cannot happen without a late end before it.
            self.is_shifted |= reservation.start_ns != now_ns;
        }
        actions.push(state.start(now_ns, (device, key), step, |model| calendar.needs(model)));
        progress.steps[key.step] = StepState::Runs(device);
        let lane = &self.lanes[device];
        let work_ns = lane.state.running().map_or(0, |running| running.end_ns - now_ns);
        progress.spent = progress.spent.saturating_add(price(&self.prices, lane).of_time(work_ns));
    }
}
