//! The lower bound on the mean latency, and the best schedule that a search finds.

use crate::error::Problem;
use anyhow::Result;
use serde::Serialize;
use weir_scheduler::sim::{
    ASCENT_STEPS, SimulatedCluster, SimulationMetrics, Workload, improve_schedule, latency_bound, run,
    search_moves,
};
use weir_scheduler::{DeviceRule, PolicyKind, PolicyOptions};

/// Lower and upper bound on the mean latency of the best schedule, as means over the seeds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct LatencyBracket {
    /// No policy has a lower mean latency.
    pub(super) bound_s: f64,
    /// Mean latency of the best schedule that a search with knowledge of all arrivals found.
    pub(super) known_s: f64,
}

impl LatencyBracket {
    /// Computes both for workloads with their seeds.
    ///
    /// # Errors
    /// If the bound does not hold on `cluster`, or a simulation fails.
    pub(super) fn measure(workloads: &[(u64, Workload)], cluster: &SimulatedCluster) -> Result<Self> {
        if !has_papers_devices(cluster) {
            return Err(Problem::usage("the bound does not hold for these devices")
                .hint("use --bound without options that change devices, batches, run times or SLOs")
                .into());
        }
        let mut bracket = Self { bound_s: 0.0, known_s: 0.0 };
        for (seed, workload) in workloads {
            let options = PolicyOptions { seed: *seed, ..PolicyOptions::default() };
            let schedule =
                run(workload, cluster, || PolicyKind::default().build(&options)).map_err(|violation| {
                    Problem::new(format!("the default policy violated an invariant with seed {seed}"))
                        .because(violation)
                })?;
            let known = improve_schedule(workload, &schedule, search_moves(workload), 1);
            bracket.bound_s += latency_bound(workload, ASCENT_STEPS);
            bracket.known_s += SimulationMetrics::from_schedule(workload, &known).avg;
        }
        let count = workloads.len().max(1) as f64;
        Ok(Self { bound_s: bracket.bound_s / count, known_s: bracket.known_s / count })
    }
}

/// Whether devices are alike, serve one request at a time, and serve all requests in the expected
/// time.
fn has_papers_devices(cluster: &SimulatedCluster) -> bool {
    cluster.rule == DeviceRule::CountedInvocations
        && cluster.slots == 1
        && cluster.kinds.is_empty()
        && cluster.losses.is_none()
        && cluster.batching.batch_max <= 1
        && cluster.slo.is_none()
        && cluster.jitter == 0.0
        && cluster.faults == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::sim::{Preset, Recipe, SimulatedKind};

    #[test]
    fn bound_is_below_the_known_schedule() {
        let recipe = Recipe { minutes: 1, per_minute: 20, devices: 2, ..Preset::Trace.recipe(4) };
        let workloads = [(1, recipe.make(1).unwrap()), (2, recipe.make(2).unwrap())];
        let bracket = LatencyBracket::measure(&workloads, &SimulatedCluster::default()).unwrap();
        assert!(bracket.bound_s > 1.2 && bracket.bound_s <= bracket.known_s, "{bracket:?}");
    }

    #[test]
    fn other_devices_have_no_bound() {
        let others = [
            SimulatedCluster::weir(),
            SimulatedCluster { slots: 2, ..SimulatedCluster::default() },
            SimulatedCluster { kinds: SimulatedKind::MIXED.to_vec(), ..SimulatedCluster::default() },
            SimulatedCluster { jitter: 0.1, ..SimulatedCluster::default() },
        ];
        for cluster in others {
            let error = LatencyBracket::measure(&[], &cluster).unwrap_err();
            assert!(error.to_string().contains("does not hold"), "{error}");
        }
    }
}
