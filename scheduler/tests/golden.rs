//! Compares schedules with those of an independent reference simulator, request by request.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::sim::{SimulatedCluster, SimulationMetrics, Workload, run};
use weir_scheduler::{PolicyKind, PolicyOptions};

/// Half of the reference's rounding unit.
const TOLERANCE_NS: u64 = 1_000;

fn check(file: &str, policy: PolicyKind) {
    let path = format!("{}/tests/workloads/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read(path).unwrap();
    let (workload, expected) = Workload::from_json(&json).unwrap();
    let expected = expected.unwrap();
    let schedule =
        run(&workload, &SimulatedCluster::default(), || policy.build(&PolicyOptions::default())).unwrap();
    for (number, (placed, expected)) in schedule.placed.iter().zip(&expected).enumerate() {
        let placed = placed.unwrap();
        assert!(
            placed.device == expected.device
                && placed.hit == expected.hit
                && placed.started_at_ns.abs_diff(expected.started_at_ns) < TOLERANCE_NS
                && placed.ended_at_ns.abs_diff(expected.ended_at_ns) < TOLERANCE_NS,
            "request {number} of {file}: {placed:?} instead of {expected:?}"
        );
    }
    let metrics = serde_json::from_slice::<serde_json::Value>(&json).unwrap()["metrics"].clone();
    let reference: SimulationMetrics = serde_json::from_value(metrics).unwrap();
    let metrics = SimulationMetrics::from_schedule(&workload, &schedule);
    let pairs = [
        (metrics.avg, reference.avg),
        (metrics.var, reference.var),
        (metrics.p50, reference.p50),
        (metrics.p99, reference.p99),
        (metrics.max, reference.max),
        (metrics.miss, reference.miss),
        (metrics.false_miss, reference.false_miss),
        (metrics.sm_util, reference.sm_util),
        (metrics.dup_top, reference.dup_top),
        (metrics.makespan, reference.makespan),
    ];
    for (measure, (own, reference)) in pairs.into_iter().enumerate() {
        assert!(
            (own - reference).abs() < 1e-5 * reference,
            "measure {measure} of {file}: {own}, not {reference}"
        );
    }
}

#[test]
fn golden_lb_trace() {
    check("trace-ws15-lb", PolicyKind::Lb);
}

#[test]
fn golden_lb_overload() {
    check("overload-ws35-lb", PolicyKind::Lb);
}

#[test]
fn golden_lalb_trace() {
    check("trace-ws15-lalb", PolicyKind::Lalb);
}

#[test]
fn golden_lalb_overload() {
    check("overload-ws35-lalb", PolicyKind::Lalb);
}

#[test]
fn golden_lalb_o3_trace() {
    check("trace-ws15-lalbo3", PolicyKind::LalbO3);
}

#[test]
fn golden_lalb_o3_overload() {
    check("overload-ws35-lalbo3", PolicyKind::LalbO3);
}
