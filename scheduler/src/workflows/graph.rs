//! The steps of a workflow, with their times and costs on each kind of device.

use crate::slo::{Front, FrontError, FrontStep, Quote};
use weir_types::Cost;

/// A step of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphStep {
    /// The indexes of the steps that must end before this step starts. All are smaller than this
    /// step's index.
    pub after: Vec<usize>,
    /// The model that the step runs.
    pub model: u32,
    /// Bytes of device memory that the model takes.
    pub bytes: u64,
    /// Times by kind of device; `None` where the step cannot run.
    pub times: Vec<Option<StepTimes>>,
}

/// Times of a step on a kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepTimes {
    /// Time to load the model.
    pub load_ns: u64,
    /// Time from start to end with the model in memory.
    pub run_ns: u64,
}

/// The steps of a workflow, and their best placements on an idle cluster that holds all models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowGraph {
    steps: Vec<GraphStep>,
    /// By step: the steps that wait for it.
    followers: Vec<Vec<usize>>,
    front: Front,
}

impl WorkflowGraph {
    /// Creates a graph, and computes its front. `prices` are the prices of a second by kind.
    ///
    /// # Errors
    /// If a step waits for itself or a later step, or can run on no kind of device.
    pub fn new(steps: Vec<GraphStep>, prices: &[Cost]) -> Result<Self, FrontError> {
        let quoted = |step: &GraphStep| FrontStep { after: step.after.clone(), quotes: quotes(step, prices) };
        let front = Front::from_steps(&steps.iter().map(quoted).collect::<Vec<_>>())?;
        let mut followers = vec![Vec::new(); steps.len()];
        for (index, step) in steps.iter().enumerate() {
            for after in &step.after {
                followers[*after].push(index);
            }
        }
        Ok(Self { steps, followers, front })
    }

    /// The steps. Each step comes after the steps that it waits for.
    #[must_use]
    pub fn steps(&self) -> &[GraphStep] {
        &self.steps
    }

    /// Times and costs of the best placements on an idle cluster that holds all models.
    #[must_use]
    pub fn front(&self) -> &Front {
        &self.front
    }

    pub(super) fn followers(&self, step: usize) -> &[usize] {
        &self.followers[step]
    }

    /// The front of the remaining steps. `elapsed` returns the time until a step that has started
    /// ends, and 0 for a step that has ended; `None` for a step that has not started.
    pub(super) fn remaining_front(
        &self,
        prices: &[Cost],
        elapsed: impl Fn(usize) -> Option<u64>,
    ) -> Result<Front, FrontError> {
        let quoted = |(index, step): (usize, &GraphStep)| FrontStep {
            after: step.after.clone(),
            quotes: match elapsed(index) {
                Some(time_ns) => vec![Some(Quote { time_ns, cost: Cost::ZERO })],
                None => quotes(step, prices),
            },
        };
        Front::from_steps(&self.steps.iter().enumerate().map(quoted).collect::<Vec<_>>())
    }

    /// The time of all steps in sequence on one kind of device; `None` if a step cannot run there.
    pub(super) fn total_run_ns(&self, kind: usize) -> Option<u64> {
        self.steps.iter().try_fold(0_u64, |sum, step| Some(sum.saturating_add(step.on(kind)?.run_ns)))
    }
}

impl GraphStep {
    /// Times on a kind of device; `None` if the step cannot run there.
    pub(super) fn on(&self, kind: usize) -> Option<StepTimes> {
        self.times.get(kind).copied().flatten()
    }
}

impl StepTimes {
    /// Time from start to end.
    pub(super) fn work_ns(&self, loads: bool) -> u64 {
        if loads { self.load_ns.saturating_add(self.run_ns) } else { self.run_ns }
    }
}

fn quotes(step: &GraphStep, prices: &[Cost]) -> Vec<Option<Quote>> {
    let quote = |(times, price): (&Option<StepTimes>, &Cost)| {
        times.map(|times| Quote { time_ns: times.run_ns, cost: price.of_time(times.run_ns) })
    };
    step.times.iter().zip(prices).map(quote).collect()
}
