//! The default policy's advantage over `lalb-o3`, and figures of the papers, over seeds that were
//! not used for tuning.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::sim::{Preset, SimulatedCluster, SimulationMetrics, WorkflowOptions, measure, table_4_1};
use weir_scheduler::{PolicyKind, PolicyOptions};

/// Tuning used other seeds.
const SEEDS: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/// Upper bound on the wait of any request, for every seed.
const WAIT_MAX_S: f64 = 15.0;

fn check(preset: Preset, lower: f64) {
    let measure = |policy, seeds: &[u64]| {
        measure(preset, 35, &SimulatedCluster::default(), policy, &PolicyOptions::default(), seeds).unwrap()
    };
    let by_seed = SEEDS.map(|seed| measure(PolicyKind::FinishFirst, &[seed]));
    let own = SimulationMetrics::mean(&by_seed);
    let o3 = measure(PolicyKind::LalbO3, &SEEDS);
    let means = (own.avg, o3.avg);
    assert!(own.avg <= (1.0 - lower) * o3.avg, "mean latency {means:?}");
    assert!(own.p99 <= o3.p99, "p99 {} and {}", own.p99, o3.p99);
    assert!(own.miss <= o3.miss / 3.0, "misses {} and {}", own.miss, o3.miss);
    for (seed, metrics) in SEEDS.iter().zip(&by_seed) {
        assert!(metrics.wait_max <= WAIT_MAX_S, "longest wait {} with seed {seed}", metrics.wait_max);
    }
}

#[test]
fn finish_first_latency_is_30_percent_below_lalb_o3_on_the_trace() {
    check(Preset::Trace, 0.3);
}

#[test]
fn finish_first_latency_is_40_percent_below_lalb_o3_under_overload() {
    check(Preset::Overload, 0.4);
}

/// Table 4.1 of the KaaS thesis: with reservations for each step, and under a node's scheduler, at
/// least as many workflows meet their maximum latency and cost as under Clockwork, although both
/// objectives have to be met, and Clockwork ignores the cost.
#[test]
fn workflow_admission_reaches_the_goodput_of_clockwork_in_table_4_1() {
    for seed in SEEDS {
        let rows = table_4_1(&[seed], &WorkflowOptions::default()).unwrap();
        for row in rows.chunks(4) {
            let [fifo, clockwork, own, node] = [0, 1, 2, 3].map(|policy| row[policy].metrics);
            let context = format!("seed {seed}: {row:#?}");
            for (goal, metrics) in [("admission", own), ("node", node)] {
                assert!(metrics.latency_goodput >= clockwork.latency_goodput, "{goal}, {context}");
                assert!(metrics.cost_goodput >= clockwork.cost_goodput, "{goal}, {context}");
                assert!(metrics.missed == 0.0, "{goal}, {context}");
            }
            assert!(own.latency_goodput >= fifo.latency_goodput, "{context}");
        }
    }
}
