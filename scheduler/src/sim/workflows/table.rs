//! Table 4.1 of the KaaS thesis: goodput by latency and by cost.

use super::{WorkflowMetrics, WorkflowOptions, WorkflowPreset, run_workflows};
use crate::WorkflowPolicyKind;
use crate::sim::SimulationError;
use serde::Serialize;

/// The thesis's numbers: the maximum latency in ms, and goodput by latency and by cost of FIFO,
/// Clockwork and the thesis's own algorithm. The maximum cost is 60 in every row.
pub const TABLE_4_1: [(u64, [(f64, f64); 3]); 4] = [
    (20, [(0.49, 199.9), (0.069, 83.3), (0.59, 177.35)]),
    (40, [(1.17, 199.9), (0.208, 83.3), (1.37, 205.8)]),
    (60, [(1.99, 199.9), (0.34, 83.3), (1.77, 177.3)]),
    (80, [(2.66, 199.9), (0.42, 83.3), (2.82, 178.7)]),
];

/// Results of one policy in a row of Table 4.1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Table41Row {
    /// Maximum latency of every request.
    pub slo_ms: u64,
    /// The policy's name.
    pub policy: &'static str,
    /// The thesis's goodput by latency: workflows per second that met the maximum latency. `None` for
    /// a policy that the thesis does not have.
    pub paper_latency_goodput: Option<f64>,
    /// The thesis's goodput by cost: workflows per second that met the maximum cost.
    pub paper_cost_goodput: Option<f64>,
    /// Simulated metrics: means over all seeds.
    #[serde(flatten)]
    pub metrics: WorkflowMetrics,
}

/// Simulates [`WorkflowPreset::Pipelines`] under all policies, for each maximum latency of the
/// table. `options` has the remaining parameters.
///
/// # Errors
/// If a guarantee is violated.
pub fn table_4_1(seeds: &[u64], options: &WorkflowOptions) -> Result<Vec<Table41Row>, SimulationError> {
    let mut rows = Vec::new();
    for (slo_ms, paper) in TABLE_4_1 {
        let options = WorkflowOptions { latency_ns: Some(slo_ms * 1_000_000), ..options.clone() };
        let paper = paper.into_iter().map(Some).chain(std::iter::repeat(None));
        for (policy, paper) in WorkflowPolicyKind::ALL.into_iter().zip(paper) {
            let one = |seed: &u64| {
                let workload = WorkflowPreset::Pipelines.make(*seed)?;
                let schedule = run_workflows(&workload, policy, &options).map_err(|violation| {
                    SimulationError::Violation { seed: *seed, policy: policy.to_string(), violation }
                })?;
                Ok::<_, SimulationError>(WorkflowMetrics::from_schedule(&workload, &options, &schedule))
            };
            let all = seeds.iter().map(one).collect::<Result<Vec<_>, _>>()?;
            let metrics = WorkflowMetrics::mean(&all);
            let policy = policy.as_str();
            let (paper_latency_goodput, paper_cost_goodput) = paper.unzip();
            rows.push(Table41Row { slo_ms, policy, paper_latency_goodput, paper_cost_goodput, metrics });
        }
    }
    Ok(rows)
}
