//! The papers' figures again: what they print, what an independent reference simulator got, and what comes out here.

mod kaas;
mod lalb;

use super::{Batching, Cluster, Metrics, Preset, Violation, Workload, WorkloadError, run};
use crate::{PolicyKind, PolicyOptions};
use serde::Serialize;

/// A figure side by side. Numbers are as printed; none where there are none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What is measured.
    pub what: String,
    /// As the paper prints it.
    pub paper: Option<f64>,
    /// As the reference got it; see the golden schedules.
    pub reference: Option<f64>,
    /// As it comes out here.
    pub weir: f64,
}

/// Data of a plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// The name of a file for it, without its ending.
    pub name: String,
    /// What it shows, and which figure of which paper it mirrors.
    pub title: String,
    /// What is on the axis across.
    pub x: String,
    /// What is on the axis upwards.
    pub y: String,
    /// The points across, by name.
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

/// A policy beside others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The workload.
    pub preset: &'static str,
    /// The policy, and what is special about its devices.
    pub policy: String,
    /// Means over all seeds.
    pub metrics: Metrics,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Reproduction {
    /// Seeds 000 and 001, figure by figure.
    pub figures: Vec<Figure>,
    /// Policies side by side at a working set of 35, under seed 000's rules, and then with batches and slots.
    pub compared: Vec<Compared>,
    /// Figures 4 to 7 of seed 000, and 6.4 to 6.7 of seed 001.
    pub charts: Vec<Chart>,
}

/// Why a simulation did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// There was nothing to simulate.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The scheduler broke a promise.
    #[error("seed {seed}, policy {policy}: {violation}")]
    Violation {
        /// What replays it.
        seed: u64,
        /// With whom.
        policy: String,
        /// The promise.
        violation: Violation,
    },
}

/// Run everything that the papers print. `seeds` are those of the workloads.
///
/// # Errors
/// If a promise is broken.
pub fn reproduce(seeds: &[u64]) -> Result<Reproduction, SimulationError> {
    let mut all = Reproduction::default();
    lalb::add(seeds, &mut all)?;
    compare(seeds, &mut all)?;
    kaas::add(seeds, &mut all)?;
    Ok(all)
}

/// The mean of a policy's measures over seeds of a preset.
///
/// # Errors
/// If a promise is broken.
pub fn measure(
    preset: Preset,
    functions: u32,
    cluster: &Cluster,
    policy: PolicyKind,
    options: &PolicyOptions,
    seeds: &[u64],
) -> Result<Metrics, SimulationError> {
    let one = |seed: &u64| {
        let workload = preset.recipe(functions).make(*seed)?;
        simulate(&workload, cluster, policy, options, *seed)
    };
    Ok(Metrics::mean(&seeds.iter().map(one).collect::<Result<Vec<_>, _>>()?))
}

fn simulate(
    workload: &Workload,
    cluster: &Cluster,
    policy: PolicyKind,
    options: &PolicyOptions,
    seed: u64,
) -> Result<Metrics, SimulationError> {
    let schedule = run(workload, cluster, policy.build(options))
        .map_err(|violation| SimulationError::Violation { seed, policy: policy.to_string(), violation })?;
    Ok(Metrics::of(workload, &schedule))
}

/// The papers' rules, and what goes further.
fn compare(seeds: &[u64], all: &mut Reproduction) -> Result<(), SimulationError> {
    let batching = Batching { batch_max: 8, marginal: 0.5 };
    let clusters = [
        ("", Cluster::default()),
        (", 2 slots", Cluster { slots: 2, ..Cluster::default() }),
        (", 4 slots, batches of up to 8", Cluster { slots: 4, batching, ..Cluster::default() }),
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
