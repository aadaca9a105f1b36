//! The progress of a workflow: which of its steps wait, run or have ended.

use super::graph::WorkflowGraph;
use crate::Slo;
use std::sync::Arc;
use weir_types::{Cost, InvocationId};

/// A step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StepKey {
    pub(super) invocation: InvocationId,
    pub(super) step: usize,
}

/// A call of a workflow that has not ended.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) invocation: InvocationId,
    pub(super) graph: Arc<WorkflowGraph>,
    pub(super) slo: Slo,
    pub(super) arrived_at_ns: u64,
    pub(super) steps: Vec<StepState>,
    /// Cost of the steps that have started; for a running step, as expected.
    pub(super) spent: Cost,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepState {
    Waits,
    /// The step runs on the device with this index.
    Runs(usize),
    Ended,
}

impl Progress {
    pub(super) fn new(now_ns: u64, invocation: InvocationId, graph: Arc<WorkflowGraph>, slo: Slo) -> Self {
        let steps = vec![StepState::Waits; graph.steps().len()];
        Self { invocation, graph, slo, arrived_at_ns: now_ns, steps, spent: Cost::ZERO }
    }

    pub(super) fn key(&self, step: usize) -> StepKey {
        StepKey { invocation: self.invocation, step }
    }

    /// Whether the step waits, and all steps that it waits for have ended.
    pub(super) fn is_ready(&self, step: usize) -> bool {
        let has_ended = |after: &usize| self.steps[*after] == StepState::Ended;
        self.steps[step] == StepState::Waits && self.graph.steps()[step].after.iter().all(has_ended)
    }

    /// The steps that can start.
    pub(super) fn ready(&self) -> impl Iterator<Item = usize> {
        (0..self.steps.len()).filter(|step| self.is_ready(*step))
    }

    /// Whether all steps have ended.
    pub(super) fn is_over(&self) -> bool {
        self.steps.iter().all(|step| *step == StepState::Ended)
    }

    /// The device that runs a step.
    pub(super) fn device_of(&self, step: usize) -> Option<usize> {
        match self.steps.get(step)? {
            StepState::Runs(device) => Some(*device),
            StepState::Waits | StepState::Ended => None,
        }
    }
}
