//! Re-evaluation of all plans after a step started or ended at another time than planned.

use super::WorkflowAdmission;
use crate::workflows::plan::{Lane, end_ns, price};
use crate::workflows::progress::{Progress, StepKey, StepState};
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{Cost, InvocationId};

/// A reservation and its device, in the order of the old times.
type Planned = (u64, u64, usize, StepKey);

impl WorkflowAdmission {
    /// Computes the times of all reservations again, in the same order on each device. A workflow
    /// that would now end late or cost too much is planned again, or loses its reservations.
    pub(super) fn reevaluate(&mut self, now_ns: u64) {
        self.compact(now_ns);
        while let Some(invocation) = self.first_hopeless(now_ns) {
            self.remove_reservations(invocation);
            self.compact(now_ns);
            let Some(active) = self.active.remove(&invocation) else { return };
            match self.replan(now_ns, &active.progress) {
                Some(plan) => self.reserve(plan),
                None => _ = self.best_effort.insert((active.progress.arrived_at_ns, invocation)),
            }
            self.active.insert(invocation, active);
        }
    }

    /// Moves every reservation to the earliest time that keeps the order on its device and comes
    /// after the steps that it waits for.
    pub(super) fn compact(&mut self, now_ns: u64) {
        let entries = |(device, lane): (usize, &Lane)| -> Vec<Planned> {
            let entries = lane.calendar.entries().iter();
            entries.map(|entry| (entry.start_ns, entry.end_ns, device, entry.key)).collect()
        };
        let mut all: Vec<Planned> = self.lanes.iter().enumerate().flat_map(entries).collect();
        // Steps come after the steps that they wait for in the old times, and so in this order.
        all.sort_unstable();
        let mut free_at_ns: Vec<u64> = self.lanes.iter().map(|lane| lane.state.free_at_ns(now_ns)).collect();
        let mut brought = BTreeSet::<(usize, u32)>::new();
        let mut times = BTreeMap::<StepKey, (u64, u64)>::new();
        for (_, _, device, key) in all {
            let Some(active) = self.active.get(&key.invocation) else { continue };
            let step = &active.progress.graph.steps()[key.step];
            let after = step.after.iter().map(|after| {
                let planned = times.get(&active.progress.key(*after)).map(|(_, end_ns)| *end_ns);
                planned.unwrap_or_else(|| end_ns(now_ns, &self.lanes, active.progress.steps[*after]))
            });
            let start_ns = after.fold(free_at_ns[device], u64::max);
            let state = &self.lanes[device].state;
            let loads = !state.holds(step.model) && brought.insert((device, step.model));
            let work_ns = step.on(state.spec.kind).map_or(0, |step_times| step_times.work_ns(loads));
            free_at_ns[device] = start_ns.saturating_add(work_ns);
            times.insert(key, (start_ns, free_at_ns[device]));
        }
        for entry in self.lanes.iter_mut().flat_map(|lane| lane.calendar.entries_mut()) {
            if let Some((start_ns, end_ns)) = times.get(&entry.key) {
                (entry.start_ns, entry.end_ns) = (*start_ns, *end_ns);
            }
        }
    }

    /// The workflow with the earliest due time that has reservations, and would end late or cost
    /// too much.
    fn first_hopeless(&self, now_ns: u64) -> Option<InvocationId> {
        let mut planned = BTreeMap::<InvocationId, (u64, Cost)>::new();
        for lane in &self.lanes {
            for entry in lane.calendar.entries() {
                let (end_ns, cost) = planned.entry(entry.key.invocation).or_default();
                *end_ns = entry.end_ns.max(*end_ns);
                *cost = cost.saturating_add(price(&self.prices, lane).of_time(entry.end_ns - entry.start_ns));
            }
        }
        let is_hopeless = |(invocation, (end_ns, cost)): &(InvocationId, (u64, Cost))| {
            self.active.get(invocation).is_some_and(|active| {
                let Progress { slo, spent, .. } = &active.progress;
                self.expected_end_ns(now_ns, &active.progress).max(*end_ns) > slo.due_at_ns
                    || spent.saturating_add(*cost) > slo.cost_max
            })
        };
        let hopeless = planned.into_iter().filter(is_hopeless).map(|(invocation, _)| invocation);
        hopeless.min_by_key(|invocation| {
            self.active.get(invocation).map(|active| (active.progress.slo.due_at_ns, *invocation))
        })
    }

    /// When the running steps of a workflow are expected to have ended.
    fn expected_end_ns(&self, now_ns: u64, progress: &Progress) -> u64 {
        progress.steps.iter().map(|state| end_ns(now_ns, &self.lanes, *state)).fold(now_ns, u64::max)
    }

    fn remove_reservations(&mut self, invocation: InvocationId) {
        let Some(active) = self.active.get(&invocation) else { return };
        for step in 0..active.progress.steps.len() {
            let key = active.progress.key(step);
            self.lanes.iter_mut().for_each(|lane| _ = lane.calendar.remove(key));
        }
    }

    fn replan(&mut self, now_ns: u64, progress: &Progress) -> Option<super::Plan> {
        let lanes = &self.lanes;
        let elapsed = |step: usize| match progress.steps[step] {
            StepState::Waits => None,
            state => Some(end_ns(now_ns, lanes, state) - now_ns),
        };
        let front = progress.graph.remaining_front(&self.prices, elapsed).ok()?;
        let budget_ns = progress.slo.due_at_ns.saturating_sub(now_ns);
        self.find(now_ns, budget_ns, progress, &front)
    }
}
