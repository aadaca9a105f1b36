//! Clockwork for workflows, for comparison: whole workflows, the earliest due time first.

use super::device::DeviceState;
use super::graph::WorkflowGraph;
use super::progress::{Progress, StepState};
use super::{WorkflowAction, WorkflowDevice, WorkflowEvent, WorkflowPolicy};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_types::InvocationId;

/// The second baseline of the KaaS thesis, chapter 4: its "naive version of Clockwork" (Gujarati et
/// al., *Serving DNNs like Clockwork*, OSDI 2020), which runs whole workflows on one device.
///
/// An idle device runs the workflow with the earliest due time among those whose models it holds and
/// that would end in time there. If there is none, it takes a workflow whose models it has to load:
/// the one with the earliest due time that would end in time, or else the one with the most waiting
/// work. A workflow that would be late on every device, even if it started at once with its models
/// in memory, is given up. Clockwork has no notion of costs.
#[derive(Debug)]
pub struct ClockworkWorkflows {
    devices: Vec<DeviceState>,
    /// The workflow that each device runs, and its next step.
    assigned: Vec<Option<InvocationId>>,
    /// By due time, then in order of arrival.
    waiting: BTreeMap<(u64, u64), Progress>,
    running: BTreeMap<InvocationId, Progress>,
    arrivals: u64,
}

impl ClockworkWorkflows {
    /// Creates the policy for devices with these models in memory.
    #[must_use]
    pub fn new(devices: &[WorkflowDevice], residents: &[Vec<(u32, u64)>]) -> Self {
        Self {
            assigned: vec![None; devices.len()],
            devices: super::device::states(devices, residents),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Removes the workflows that would be late on every device.
    fn give_up(&mut self, now_ns: u64, actions: &mut Vec<WorkflowAction>) {
        let fastest_ns = |graph: &WorkflowGraph| {
            let fits = self.devices.iter().filter(|device| total_ns(device, graph).is_some());
            fits.filter_map(|device| graph.total_run_ns(device.spec.kind)).min()
        };
        let fastest = ByGraph::new(self.waiting.values(), fastest_ns);
        self.waiting.retain(|(due_at_ns, _), progress| {
            let end_ns = fastest.get(progress).map(|run_ns| now_ns.saturating_add(run_ns));
            let is_late = end_ns.is_none_or(|end_ns| end_ns > *due_at_ns);
            if is_late {
                actions.push(WorkflowAction::GiveUp(progress.invocation));
            }
            !is_late
        });
    }

    /// The next workflow to start on an idle device.
    fn next_on(&self, now_ns: u64, device: &DeviceState) -> Option<(u64, u64)> {
        let totals = ByGraph::new(self.waiting.values(), |graph| total_ns(device, graph));
        let first = |loads: bool| {
            let mut waiting = self.waiting.iter();
            let found = waiting.find(|((due_at_ns, _), progress)| {
                totals.get(progress).is_some_and(|(work_ns, has_loads)| {
                    has_loads == loads && now_ns.saturating_add(work_ns) <= *due_at_ns
                })
            });
            found.map(|(order, _)| *order)
        };
        first(false).or_else(|| first(true)).or_else(|| self.most_waiting(device, &totals))
    }

    /// The first workflow of the graph with the most waiting work, among the graphs whose models
    /// the device would have to load.
    fn most_waiting(&self, device: &DeviceState, totals: &ByGraph<(u64, bool)>) -> Option<(u64, u64)> {
        let mut work = BTreeMap::<*const WorkflowGraph, (u64, (u64, u64))>::new();
        for (order, progress) in &self.waiting {
            let Some((_, true)) = totals.get(progress) else { continue };
            let run_ns = progress.graph.total_run_ns(device.spec.kind).unwrap_or(0);
            // Where the graph is too slow, none of its workflows would ever end in time.
            if run_ns <= order.0.saturating_sub(progress.arrived_at_ns) {
                work.entry(Arc::as_ptr(&progress.graph)).or_insert((0, *order)).0 += run_ns;
            }
        }
        let best = work.into_values().max_by_key(|(work_ns, order)| (*work_ns, std::cmp::Reverse(*order)));
        best.map(|(_, order)| order)
    }

    /// Starts the next step of the workflow that the device runs.
    fn start_step(&mut self, now_ns: u64, device: usize, actions: &mut Vec<WorkflowAction>) {
        let Some(progress) = self.assigned[device].and_then(|invocation| self.running.get_mut(&invocation))
        else {
            return;
        };
        let Some(step) = progress.steps.iter().position(|state| *state == StepState::Waits) else { return };
        progress.steps[step] = StepState::Runs(device);
        let graph = &progress.graph;
        let stays = |model| graph.steps().iter().any(|step| step.model == model);
        let key = progress.key(step);
        actions.push(self.devices[device].start(now_ns, (device, key), &graph.steps()[step], stays));
    }

    fn end_step(
        &mut self,
        now_ns: u64,
        (invocation, step): (InvocationId, usize),
        actions: &mut Vec<WorkflowAction>,
    ) {
        let Some(progress) = self.running.get_mut(&invocation) else { return };
        let Some(device) = progress.device_of(step) else { return };
        progress.steps[step] = StepState::Ended;
        self.devices[device].end();
        if progress.is_over() {
            self.running.remove(&invocation);
            self.assigned[device] = None;
        } else {
            self.start_step(now_ns, device, actions);
        }
    }
}

impl WorkflowPolicy for ClockworkWorkflows {
    fn handle(&mut self, now_ns: u64, event: WorkflowEvent, actions: &mut Vec<WorkflowAction>) {
        match event {
            WorkflowEvent::Arrived { invocation, graph, slo } => {
                let progress = Progress::new(now_ns, invocation, graph, slo);
                self.waiting.insert((slo.due_at_ns, self.arrivals), progress);
                self.arrivals += 1;
            }
            WorkflowEvent::StepEnded { invocation, step } => {
                self.end_step(now_ns, (invocation, step), actions);
            }
            WorkflowEvent::Woken => {}
        }
        self.give_up(now_ns, actions);
        for device in 0..self.devices.len() {
            if self.assigned[device].is_some() {
                continue;
            }
            let Some(order) = self.next_on(now_ns, &self.devices[device]) else { continue };
            let Some(progress) = self.waiting.remove(&order) else { continue };
            self.assigned[device] = Some(progress.invocation);
            self.running.insert(progress.invocation, progress);
            self.start_step(now_ns, device, actions);
        }
    }

    fn unfinished(&self) -> usize {
        self.waiting.len() + self.running.len()
    }
}

/// A value for each graph of the waiting workflows, computed once.
struct ByGraph<T>(Vec<(*const WorkflowGraph, Option<T>)>);

impl<T: Copy> ByGraph<T> {
    fn new<'a>(
        waiting: impl Iterator<Item = &'a Progress>,
        value: impl Fn(&WorkflowGraph) -> Option<T>,
    ) -> Self {
        let mut all: Vec<(*const WorkflowGraph, Option<T>)> = Vec::new();
        for progress in waiting {
            let graph = Arc::as_ptr(&progress.graph);
            if all.iter().all(|(known, _)| *known != graph) {
                all.push((graph, value(&progress.graph)));
            }
        }
        Self(all)
    }

    fn get(&self, progress: &Progress) -> Option<T> {
        let graph = Arc::as_ptr(&progress.graph);
        self.0.iter().find(|(known, _)| *known == graph).and_then(|(_, value)| *value)
    }
}

/// Time of all steps in sequence on a device, with the loads of missing models, and whether there
/// are any. `None` if a step cannot run there, or the models do not fit together.
fn total_ns(device: &DeviceState, graph: &WorkflowGraph) -> Option<(u64, bool)> {
    let mut models = BTreeMap::new();
    let mut total_ns = 0_u64;
    let mut has_loads = false;
    for step in graph.steps() {
        let is_first = models.insert(step.model, step.bytes).is_none();
        let loads = is_first && !device.holds(step.model);
        has_loads |= loads;
        total_ns = total_ns.saturating_add(step.on(device.spec.kind)?.work_ns(loads));
    }
    let bytes = models.into_values().fold(0, u64::saturating_add);
    (bytes <= device.spec.capacity_bytes).then_some((total_ns, has_loads))
}
