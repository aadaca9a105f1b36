//! Reproduces the papers' figures: printed numbers, results of an independent reference simulator,
//! and Weir's results.

mod kaas;
mod lalb;
mod workflows;

use super::{
    Preset, SimulatedBatching, SimulatedCluster, SimulationMetrics, Table41Row, Violation, Workload,
    WorkloadError, run,
};
use crate::{PolicyKind, PolicyOptions};
use serde::Serialize;

/// Results of a figure side by side. Numbers have the printed precision; `None` where there is no
/// number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The measured quantity.
    pub what: String,
    /// The number printed in the paper.
    pub paper: Option<f64>,
    /// The reference simulator's result; see the golden schedules.
    pub reference: Option<f64>,
    /// Weir's result.
    pub weir: f64,
}

/// Data of a plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// The file name of the plot, without an extension.
    pub name: String,
    /// The title: the content, and the figure of the paper that it reproduces.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// Names of the points on the horizontal axis.
    pub labels: Vec<String>,
    /// Lines or groups of bars: a name, and a value for each point.
    pub series: Vec<(String, Vec<f64>)>,
    /// How to draw it.
    pub kind: ChartKind,
}

/// How a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChartKind {
    /// A group of bars for each point.
    Bars,
    /// A line for each series.
    Lines,
}

/// Metrics of a policy, for comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The workload.
    pub preset: &'static str,
    /// The policy, with any special properties of its devices.
    pub policy: String,
    /// Means over all seeds.
    pub metrics: SimulationMetrics,
}

/// All reproduced results.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Reproduction {
    /// The LALB paper and the KaaS thesis, figure by figure.
    pub figures: Vec<Figure>,
    /// Policies side by side at a working set of 35, under the LALB paper's rules, and then with
    /// batches and slots.
    pub compared: Vec<Compared>,
    /// Table 4.1 of the KaaS thesis.
    pub workflows: Vec<Table41Row>,
    /// Figures 4 to 7 of the LALB paper, and 6.4 to 6.7 and Table 4.1 of the KaaS thesis.
    pub charts: Vec<Chart>,
}

/// Why a simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The scheduler violated a guarantee.
    #[error("seed {seed}, policy {policy}: {violation}")]
    Violation {
        /// The seed that replays the violation.
        seed: u64,
        /// The policy.
        policy: String,
        /// The violated guarantee.
        violation: Violation,
    },
}

/// Runs all experiments that the papers print, on workloads generated from `seeds`.
///
/// # Errors
/// If a guarantee is violated.
pub fn reproduce(seeds: &[u64]) -> Result<Reproduction, SimulationError> {
    let mut all = Reproduction::default();
    lalb::add(seeds, &mut all)?;
    compare(seeds, &mut all)?;
    kaas::add(seeds, &mut all)?;
    workflows::add(seeds, &mut all)?;
    Ok(all)
}

/// The mean of a policy's metrics over seeds of a preset.
///
/// # Errors
/// If a guarantee is violated.
pub fn measure(
    preset: Preset,
    functions: u32,
    cluster: &SimulatedCluster,
    policy: PolicyKind,
    options: &PolicyOptions,
    seeds: &[u64],
) -> Result<SimulationMetrics, SimulationError> {
    let one = |seed: &u64| {
        let workload = preset.recipe(functions).make(*seed)?;
        simulate(&workload, cluster, policy, options, *seed)
    };
    Ok(SimulationMetrics::mean(&seeds.iter().map(one).collect::<Result<Vec<_>, _>>()?))
}

fn simulate(
    workload: &Workload,
    cluster: &SimulatedCluster,
    policy: PolicyKind,
    options: &PolicyOptions,
    seed: u64,
) -> Result<SimulationMetrics, SimulationError> {
    let schedule = run(workload, cluster, || policy.build(options))
        .map_err(|violation| SimulationError::Violation { seed, policy: policy.to_string(), violation })?;
    Ok(SimulationMetrics::from_schedule(workload, &schedule))
}

/// Compares the policies under the papers' rules, and with slots and batches.
fn compare(seeds: &[u64], all: &mut Reproduction) -> Result<(), SimulationError> {
    let batching = SimulatedBatching { batch_max: 8, marginal: 0.5 };
    let clusters = [
        ("", SimulatedCluster::default()),
        (", 2 slots", SimulatedCluster { slots: 2, ..SimulatedCluster::default() }),
        (
            ", 4 slots, batches of up to 8",
            SimulatedCluster { slots: 4, batching, ..SimulatedCluster::default() },
        ),
    ];
    for preset in Preset::ALL {
        for policy in PolicyKind::ALL {
            let metrics = measure(preset, 35, &clusters[0].1, policy, &PolicyOptions::default(), seeds)?;
            all.compared.push(Compared { preset: preset.as_str(), policy: policy.to_string(), metrics });
        }
        for (name, cluster) in &clusters[1..] {
            for policy in [PolicyKind::FinishFirst, PolicyKind::LalbO3] {
                let metrics = measure(preset, 35, cluster, policy, &PolicyOptions::default(), seeds)?;
                all.compared.push(Compared {
                    preset: preset.as_str(),
                    policy: format!("{policy}{name}"),
                    metrics,
                });
            }
        }
    }
    Ok(())
}
