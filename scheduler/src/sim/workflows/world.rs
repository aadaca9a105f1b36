//! The simulation loop of workflows: arrivals and devices on one side, the policy on the other.

use super::{WorkflowOutcome, WorkflowSchedule, WorkflowWorkload};
use crate::estimate::round_ns;
use crate::sim::Violation;
use crate::sim::check::{ensure, violated};
use crate::sim::slos::lot;
use crate::{Slo, SloSettings, WorkflowAction, WorkflowEvent, WorkflowPolicy, WorkflowPolicyKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use weir_types::{Cost, InvocationId};

/// Parameters of a simulation of workflows.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowOptions {
    /// Maximum latency of every request, instead of those of the workflows.
    pub latency_ns: Option<u64>,
    /// Maximum cost of every request, instead of those of the workflows.
    pub cost_max: Option<Cost>,
    /// Maximum relative deviation of run times from their expected values, at random in both
    /// directions.
    pub jitter: f64,
    /// Settings of admission. The prices are those of the workload.
    pub settings: SloSettings,
}

impl Default for WorkflowOptions {
    fn default() -> Self {
        let settings = SloSettings { margin: 0.0, ..SloSettings::default() };
        Self { latency_ns: None, cost_max: None, jitter: 0.0, settings }
    }
}

/// Runs a workload under a policy.
///
/// # Errors
/// If the policy starts a step without its inputs, on a busy device or beyond its memory, or loses
/// a workflow; or if an admitted workflow misses its objectives although all steps took the expected
/// time.
pub fn run_workflows(
    workload: &WorkflowWorkload,
    policy: WorkflowPolicyKind,
    options: &WorkflowOptions,
) -> Result<WorkflowSchedule, Violation> {
    WorkflowWorld::new(workload, policy, options).run()
}

struct WorkflowWorld<'a> {
    workload: &'a WorkflowWorkload,
    options: &'a WorkflowOptions,
    policy: Box<dyn WorkflowPolicy>,
    /// By device: its models with their sizes, and the step that it runs.
    memory: Vec<BTreeMap<u32, u64>>,
    running: Vec<Option<(usize, usize, u64)>>,
    /// By request: which steps have ended, and its fate.
    requests: Vec<RequestState>,
    /// Ends of steps: time and device.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    busy_ns: Vec<u64>,
    now_ns: u64,
    /// Whether all steps take the times that the policy expects. A node learns them.
    is_exact: bool,
}

#[derive(Debug, Clone, Default)]
struct RequestState {
    steps: Vec<StepFate>,
    slo: Slo,
    cost: Cost,
    is_admitted: bool,
    outcome: Option<WorkflowOutcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepFate {
    Waits,
    Runs,
    Ended,
}

impl<'a> WorkflowWorld<'a> {
    fn new(workload: &'a WorkflowWorkload, policy: WorkflowPolicyKind, options: &'a WorkflowOptions) -> Self {
        let WorkflowWorkload { devices, prices, residents, .. } = workload;
        Self {
            workload,
            options,
            policy: policy.build(&options.settings, devices, prices, residents),
            memory: residents.iter().map(|models| models.iter().copied().collect()).collect(),
            running: vec![None; devices.len()],
            requests: vec![RequestState::default(); workload.requests.len()],
            ends: BinaryHeap::new(),
            busy_ns: vec![0; devices.len()],
            now_ns: 0,
            is_exact: options.jitter == 0.0 && policy != WorkflowPolicyKind::Node,
        }
    }

    fn run(mut self) -> Result<WorkflowSchedule, Violation> {
        let mut arrivals = self.workload.requests.iter().enumerate().peekable();
        loop {
            let arrival_ns = arrivals.peek().map(|(_, (at_ns, _))| *at_ns);
            let end = self.ends.peek().map(|Reverse(end)| *end);
            let next_ns = [arrival_ns, end.map(|(at_ns, _)| at_ns)].into_iter().flatten().min();
            if let Some(at_ns) = self.policy.wake_at_ns()
                && next_ns.is_none_or(|next_ns| at_ns < next_ns)
                && (next_ns.is_some() || self.policy.unfinished() > 0)
            {
                self.now_ns = at_ns.max(self.now_ns);
                self.tell(WorkflowEvent::Woken)?;
                continue;
            }
            if let Some((at_ns, device)) =
                end.filter(|(at_ns, _)| arrival_ns.is_none_or(|arrival_ns| *at_ns <= arrival_ns))
            {
                self.ends.pop();
                self.now_ns = at_ns;
                self.end(device)?;
            } else if let Some((request, (at_ns, workflow))) = arrivals.next() {
                self.now_ns = *at_ns;
                self.arrive(request, *workflow)?;
            } else {
                break;
            }
        }
        let lost = self.requests.iter().position(|request| request.outcome.is_none());
        ensure(lost.is_none(), "no workflow is lost", || format!("request {lost:?}"))?;
        let unfinished = self.policy.unfinished();
        ensure(unfinished == 0, "the policy keeps no finished workflow", || format!("{unfinished}"))?;
        let outcomes = self.requests.into_iter().filter_map(|request| request.outcome).collect();
        Ok(WorkflowSchedule { outcomes, busy_ns: self.busy_ns })
    }

    fn arrive(&mut self, request: usize, workflow: usize) -> Result<(), Violation> {
        let workflow = &self.workload.workflows[workflow];
        let latency_ns = self.options.latency_ns.unwrap_or(workflow.latency_ns);
        let cost_max = self.options.cost_max.unwrap_or(workflow.cost_max);
        let slo = Slo { due_at_ns: self.now_ns.saturating_add(latency_ns), cost_max };
        let steps = vec![StepFate::Waits; workflow.graph.steps().len()];
        self.requests[request] = RequestState { steps, slo, ..RequestState::default() };
        let invocation = InvocationId(request as u64);
        self.tell(WorkflowEvent::Arrived { invocation, graph: workflow.graph.clone(), slo })
    }

    fn end(&mut self, device: usize) -> Result<(), Violation> {
        let Some((request, step, started_at_ns)) = self.running[device].take() else { return Ok(()) };
        let price = self.workload.prices[self.workload.devices[device].kind];
        let state = &mut self.requests[request];
        state.steps[step] = StepFate::Ended;
        state.cost = state.cost.saturating_add(price.of_time(self.now_ns - started_at_ns));
        let until_ns = self.now_ns.min(self.workload.window_ns);
        self.busy_ns[device] += until_ns.saturating_sub(started_at_ns);
        if state.steps.iter().all(|fate| *fate == StepFate::Ended) {
            let RequestState { cost, is_admitted, slo, .. } = *state;
            state.outcome = Some(WorkflowOutcome::Ended { at_ns: self.now_ns, cost, is_admitted });
            let is_exact = self.is_exact;
            let is_kept = self.now_ns <= slo.due_at_ns && cost <= slo.cost_max;
            ensure(is_kept || !is_admitted || !is_exact, "admitted workflows meet their objectives", || {
                format!("request {request} ends at {} for {cost}, with {slo:?}", self.now_ns)
            })?;
        }
        self.tell(WorkflowEvent::StepEnded { invocation: InvocationId(request as u64), step })
    }

    fn tell(&mut self, event: WorkflowEvent) -> Result<(), Violation> {
        let mut actions = Vec::new();
        self.policy.handle(self.now_ns, event, &mut actions);
        actions.into_iter().try_for_each(|action| self.carry_out(action))
    }

    fn carry_out(&mut self, action: WorkflowAction) -> Result<(), Violation> {
        match action {
            WorkflowAction::Start { invocation, step, device, loads, evict } => {
                let request = self.unfinished(invocation)?;
                for victim in evict {
                    let there = self.memory[device].remove(&victim).is_some();
                    ensure(there, "victims are in memory", || format!("model {victim} on {device}"))?;
                }
                self.start((request, step), device, loads)
            }
            WorkflowAction::Admit(invocation) => {
                let request = self.unfinished(invocation)?;
                self.requests[request].is_admitted = true;
                Ok(())
            }
            WorkflowAction::Reject(invocation) => self.drop_request(invocation, WorkflowOutcome::Rejected),
            WorkflowAction::GiveUp(invocation) => self.drop_request(invocation, WorkflowOutcome::GivenUp),
        }
    }

    fn start(
        &mut self,
        (request, step): (usize, usize),
        device: usize,
        loads: bool,
    ) -> Result<(), Violation> {
        let graph = &self.workload.workflows[self.workload.requests[request].1].graph;
        let graph_step = &graph.steps()[step];
        let state = &mut self.requests[request];
        let has_inputs = graph_step.after.iter().all(|after| state.steps[*after] == StepFate::Ended);
        ensure(has_inputs, "a step starts after the steps that it waits for", || {
            format!("{request}, {step}")
        })?;
        ensure(state.steps[step] == StepFate::Waits, "a step starts once", || format!("{request}, {step}"))?;
        ensure(self.running[device].is_none(), "a device runs one step", || {
            format!("{request} on {device}")
        })?;
        let spec = &self.workload.devices[device];
        let Some(times) = graph_step.times[spec.kind] else {
            return violated("a step runs where it can", format!("{request}, {step} on {device}"));
        };
        let memory = &mut self.memory[device];
        let is_missing = memory.insert(graph_step.model, graph_step.bytes).is_none();
        ensure(is_missing == loads, "missing models are loaded", || format!("{request}, {step}: {loads}"))?;
        let used = memory.values().sum::<u64>();
        ensure(used <= spec.capacity_bytes, "memory is never over", || format!("{used} bytes on {device}"))?;
        state.steps[step] = StepFate::Runs;
        self.running[device] = Some((request, step, self.now_ns));
        let salt = step as u64 + 16;
        let deviation = self.options.jitter * (2.0 * lot(u32::try_from(request).unwrap_or(0), salt) - 1.0);
        let run_ns = round_ns(times.run_ns as f64 * (1.0 + deviation)).max(1);
        let load_ns = if loads { times.load_ns } else { 0 };
        self.ends.push(Reverse((self.now_ns + load_ns + run_ns, device)));
        Ok(())
    }

    fn drop_request(&mut self, invocation: InvocationId, outcome: WorkflowOutcome) -> Result<(), Violation> {
        let request = self.unfinished(invocation)?;
        let state = &mut self.requests[request];
        let waits = state.steps.iter().all(|fate| *fate == StepFate::Waits);
        ensure(waits && !state.is_admitted, "only waiting workflows are dropped", || format!("{request}"))?;
        state.outcome = Some(outcome);
        Ok(())
    }

    /// The request of an action, which must have arrived and must not be finished.
    fn unfinished(&self, invocation: InvocationId) -> Result<usize, Violation> {
        let request = usize::try_from(invocation.0).unwrap_or(usize::MAX);
        let state = self.requests.get(request).filter(|state| !state.steps.is_empty());
        let is_unfinished = state.is_some_and(|state| state.outcome.is_none());
        ensure(is_unfinished, "actions are about unfinished requests", || format!("{invocation}"))?;
        Ok(request)
    }
}
