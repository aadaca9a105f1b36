//! Metrics of simulated workflows.

use super::{WorkflowOptions, WorkflowOutcome, WorkflowSchedule, WorkflowWorkload};
use serde::Serialize;

/// Summary of a [`WorkflowSchedule`]. Goodput counts the workflows that ended within the measured
/// time, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WorkflowMetrics {
    /// Workflows that met their maximum latency, per second.
    pub latency_goodput: f64,
    /// Workflows that met their maximum cost, per second.
    pub cost_goodput: f64,
    /// Workflows that met both, per second.
    pub goodput: f64,
    /// Fraction of the requests that were rejected on arrival.
    pub rejected: f64,
    /// Fraction of the requests that were given up while they waited.
    pub given_up: f64,
    /// Fraction of the requests that were admitted and missed an objective.
    pub missed: f64,
    /// Mean cost of the workflows that ended.
    pub cost: f64,
    /// Mean latency of the workflows that ended, in seconds.
    pub latency_s: f64,
    /// Part of the devices' time spent loading and running.
    pub busy: f64,
}

impl WorkflowMetrics {
    /// Summarizes a schedule of `workload` under `options`.
    #[must_use]
    pub fn from_schedule(
        workload: &WorkflowWorkload,
        options: &WorkflowOptions,
        schedule: &WorkflowSchedule,
    ) -> Self {
        let mut all = Self::default();
        let mut ended = 0.0;
        for ((arrived_at_ns, workflow), outcome) in workload.requests.iter().zip(&schedule.outcomes) {
            let WorkflowOutcome::Ended { at_ns, cost, is_admitted } = *outcome else {
                let is_rejected = *outcome == WorkflowOutcome::Rejected;
                *(if is_rejected { &mut all.rejected } else { &mut all.given_up }) += 1.0;
                continue;
            };
            let workflow = &workload.workflows[*workflow];
            let latency_ns = at_ns - arrived_at_ns;
            let is_timely = latency_ns <= options.latency_ns.unwrap_or(workflow.latency_ns);
            let is_cheap = cost <= options.cost_max.unwrap_or(workflow.cost_max);
            let counts = |holds: bool| f64::from(u8::from(holds && at_ns <= workload.window_ns));
            all.latency_goodput += counts(is_timely);
            all.cost_goodput += counts(is_cheap);
            all.goodput += counts(is_timely && is_cheap);
            all.missed += f64::from(u8::from(is_admitted && !(is_timely && is_cheap)));
            all.cost += cost.units();
            all.latency_s += latency_ns as f64 / 1e9;
            ended += 1.0;
        }
        let window_s = workload.window_ns as f64 / 1e9;
        let per = |sum: f64, all: f64| if all > 0.0 { sum / all } else { 0.0 };
        let requests = workload.requests.len() as f64;
        let busy_s = schedule.busy_ns.iter().sum::<u64>() as f64 / 1e9;
        Self {
            latency_goodput: per(all.latency_goodput, window_s),
            cost_goodput: per(all.cost_goodput, window_s),
            goodput: per(all.goodput, window_s),
            rejected: per(all.rejected, requests),
            given_up: per(all.given_up, requests),
            missed: per(all.missed, requests),
            cost: per(all.cost, ended),
            latency_s: per(all.latency_s, ended),
            busy: per(busy_s, window_s * schedule.busy_ns.len() as f64),
        }
    }

    /// The mean of each metric.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let mean = |get: fn(&Self) -> f64| all.iter().map(get).sum::<f64>() / all.len().max(1) as f64;
        Self {
            latency_goodput: mean(|m| m.latency_goodput),
            cost_goodput: mean(|m| m.cost_goodput),
            goodput: mean(|m| m.goodput),
            rejected: mean(|m| m.rejected),
            given_up: mean(|m| m.given_up),
            missed: mean(|m| m.missed),
            cost: mean(|m| m.cost),
            latency_s: mean(|m| m.latency_s),
            busy: mean(|m| m.busy),
        }
    }
}
