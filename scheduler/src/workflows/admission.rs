//! Admission of workflows, and the start of their steps. [`workflows`](super) states the rules.

mod reevaluation;
mod starts;

use super::device::states;
use super::plan::{Lane, Plan, plan};
use super::progress::{Progress, StepState};
use super::{WorkflowAction, WorkflowDevice, WorkflowEvent, WorkflowGraph, WorkflowPolicy};
use crate::slo::{Front, PlacementOffer};
use crate::{Slo, SloSettings};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_types::{Cost, InvocationId};

/// Weir's policy for workflows: admission with a reservation for each step.
#[derive(Debug)]
pub struct WorkflowAdmission {
    settings: SloSettings,
    /// Price of a second by kind of device.
    prices: Vec<Cost>,
    lanes: Vec<Lane>,
    active: BTreeMap<InvocationId, Active>,
    /// Workflows without reservations, by arrival.
    best_effort: BTreeSet<(u64, InvocationId)>,
    /// Whether a step started or ended at another time than planned since the last re-evaluation.
    is_shifted: bool,
}

/// A workflow that has not ended.
#[derive(Debug)]
struct Active {
    progress: Progress,
    /// The kinds of devices on which a trial runs its steps.
    pins: Option<SmallVec<[usize; 4]>>,
}

impl WorkflowAdmission {
    /// Creates the policy. `prices` are the prices of a second by kind of device, and `residents`
    /// the models that each device holds, with their sizes.
    #[must_use]
    pub fn new(
        settings: &SloSettings,
        devices: &[WorkflowDevice],
        prices: &[Cost],
        residents: &[Vec<(u32, u64)>],
    ) -> Self {
        Self {
            settings: settings.clone(),
            prices: prices.to_vec(),
            lanes: states(devices, residents).into_iter().map(Lane::new).collect(),
            active: BTreeMap::new(),
            best_effort: BTreeSet::new(),
            is_shifted: false,
        }
    }

    fn arrived(
        &mut self,
        now_ns: u64,
        (invocation, graph, slo): (InvocationId, Arc<WorkflowGraph>, Slo),
        actions: &mut Vec<WorkflowAction>,
    ) {
        let progress = Progress::new(now_ns, invocation, graph.clone(), slo);
        if slo == Slo::NONE {
            self.active.insert(invocation, Active { progress, pins: None });
            self.best_effort.insert((now_ns, invocation));
            return;
        }
        let budget_ns = match slo.due_at_ns {
            u64::MAX => u64::MAX - now_ns,
            due_at_ns => self.settings.without_margin_ns(due_at_ns.saturating_sub(now_ns)),
        };
        let found = self.find(now_ns, budget_ns, &progress, graph.front());
        if let Some(found) = found {
            self.active.insert(invocation, Active { progress, pins: None });
            self.reserve(found);
            actions.push(WorkflowAction::Admit(invocation));
        } else if let Some(kinds) = self.trial(budget_ns, slo.cost_max, &graph) {
            self.active.insert(invocation, Active { progress, pins: Some(kinds) });
            self.best_effort.insert((now_ns, invocation));
        } else {
            actions.push(WorkflowAction::Reject(invocation));
        }
    }

    /// A plan that ends within the time and cost that are left, if there is one: for a placement of
    /// the front, or else with each step wherever it ends first.
    fn find(&mut self, now_ns: u64, budget_ns: u64, progress: &Progress, front: &Front) -> Option<Plan> {
        let Self { settings, prices, lanes, .. } = self;
        let cost_left =
            Cost::from_nanos(progress.slo.cost_max.nanos().saturating_sub(progress.spent.nanos()));
        let limits = (budget_ns, cost_left);
        let how = (settings.sample_len, settings.choice, progress.invocation.0);
        let mut offer = |kind: &dyn Fn(usize) -> Option<usize>| {
            let place = plan(now_ns, lanes, prices, progress, kind)?;
            let finish_after_ns = place.end_ns.saturating_sub(now_ns);
            Some(PlacementOffer { finish_after_ns, cost: place.cost, place })
        };
        let chosen = front.choose(limits, how, |placement| offer(&|step| Some(placement.kinds[step])));
        let anywhere = || {
            let offer = offer(&|_| None)?;
            (offer.finish_after_ns <= budget_ns && offer.cost <= cost_left).then_some(offer)
        };
        chosen.or_else(anywhere).map(|offer| offer.place)
    }

    fn reserve(&mut self, plan: Plan) {
        for (device, reservation) in plan.reservations {
            self.lanes[device].calendar.insert(reservation);
        }
    }

    /// The kinds of devices for a trial of a workflow that found no place: if it met its objectives
    /// with all models in memory, and an idle device lacks a model that it would run there.
    fn trial(&self, budget_ns: u64, cost_max: Cost, graph: &WorkflowGraph) -> Option<SmallVec<[usize; 4]>> {
        let idle: Vec<&Lane> = self.lanes.iter().filter(|lane| lane.is_unused()).collect();
        if idle.is_empty() || self.best_effort.len() >= self.lanes.len() {
            return None;
        }
        let brings = |(step, kind): (usize, &usize)| {
            let step = &graph.steps()[step];
            idle.iter().any(|lane| {
                lane.state.spec.kind == *kind
                    && !lane.state.holds(step.model)
                    && step.bytes <= lane.state.spec.capacity_bytes
            })
        };
        let has_device = |(step, kind): (usize, &usize)| {
            let bytes = graph.steps()[step].bytes;
            let same = self.lanes.iter().filter(|lane| lane.state.spec.kind == *kind);
            same.map(|lane| lane.state.spec.capacity_bytes).any(|capacity_bytes| bytes <= capacity_bytes)
        };
        let mut within = graph.front().within(budget_ns, cost_max).iter().rev();
        let placement = within.find(|placement| {
            let kinds = || placement.kinds.iter().enumerate();
            kinds().all(has_device) && kinds().any(brings)
        })?;
        Some(placement.kinds.clone())
    }

    fn end_step(&mut self, now_ns: u64, invocation: InvocationId, step: usize) {
        let Some(active) = self.active.get_mut(&invocation) else { return };
        let Some(device) = active.progress.device_of(step) else { return };
        let Some(run) = self.lanes[device].state.end() else { return };
        let price = super::plan::price(&self.prices, &self.lanes[device]);
        let expected = price.of_time(run.end_ns - run.started_at_ns).nanos();
        let actual = price.of_time(now_ns - run.started_at_ns);
        let before = active.progress.spent.nanos().saturating_sub(expected);
        active.progress.spent = Cost::from_nanos(before).saturating_add(actual);
        active.progress.steps[step] = StepState::Ended;
        self.is_shifted |= now_ns != run.end_ns;
        if active.progress.is_over() {
            self.best_effort.remove(&(active.progress.arrived_at_ns, invocation));
            self.active.remove(&invocation);
        }
    }
}

impl WorkflowPolicy for WorkflowAdmission {
    fn handle(&mut self, now_ns: u64, event: WorkflowEvent, actions: &mut Vec<WorkflowAction>) {
        match event {
            WorkflowEvent::Arrived { invocation, graph, slo } => {
                self.arrived(now_ns, (invocation, graph, slo), actions);
            }
            WorkflowEvent::StepEnded { invocation, step } => self.end_step(now_ns, invocation, step),
            WorkflowEvent::Woken => {}
        }
        if std::mem::take(&mut self.is_shifted) {
            self.reevaluate(now_ns);
        }
        self.start_steps(now_ns, actions);
        if std::mem::take(&mut self.is_shifted) {
            // Starts before their planned time move the reservations behind them ahead.
            self.compact(now_ns);
        }
    }

    fn unfinished(&self) -> usize {
        self.active.len()
    }
}

impl Lane {
    /// Whether the device is idle and has no reservations.
    fn is_unused(&self) -> bool {
        self.state.is_idle() && self.calendar.is_empty()
    }
}
