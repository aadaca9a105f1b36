//! What the default policy promises beside `lalb-o3`, and figures of the papers, over seeds that nothing was tuned to.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::sim::{Cluster, Metrics, Preset, measure};
use weir_scheduler::{PolicyKind, PolicyOptions};

/// Tuning was done on others.
const SEEDS: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

fn both(preset: Preset) -> (Metrics, Metrics) {
    let measure =
        |policy| measure(preset, 35, &Cluster::default(), policy, &PolicyOptions::default(), &SEEDS).unwrap();
    (measure(PolicyKind::FinishFirst), measure(PolicyKind::LalbO3))
}

fn check(preset: Preset, lower: f64) {
    let (own, o3) = both(preset);
    let means = (own.avg, o3.avg);
    assert!(own.avg <= (1.0 - lower) * o3.avg, "mean latency {means:?}");
    assert!(own.p99 <= o3.p99, "p99 {} and {}", own.p99, o3.p99);
    assert!(own.miss <= o3.miss / 3.0, "misses {} and {}", own.miss, o3.miss);
    assert!(own.wait_max <= 15.0, "longest wait {}", own.wait_max);
}

#[test]
fn finish_first_is_a_quarter_below_lalb_o3_on_the_trace() {
    check(Preset::Trace, 0.25);
}

#[test]
fn finish_first_is_two_fifths_below_lalb_o3_under_overload() {
    check(Preset::Overload, 0.4);
}
