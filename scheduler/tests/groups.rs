//! Clusters whose devices are divided into groups, each with its own scheduler.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::sim::{
    Arrivals, Losses, Preset, Recipe, SimulatedCluster, SimulatedSchedule, SimulationMetrics, Workload, run,
};
use weir_scheduler::{PolicyKind, PolicyOptions};

/// The load of the LALB paper on `devices` devices.
fn workload(devices: u32, functions: u32, minutes: u32, seed: u64) -> Workload {
    let per_minute = 325 * devices / 12;
    let recipe = Preset::Trace.recipe(functions);
    Recipe { devices, per_minute, minutes, arrivals: Arrivals::Poisson, ..recipe }.make(seed).unwrap()
}

fn cluster(devices: u32, groups: u32) -> SimulatedCluster {
    SimulatedCluster { nodes: devices, groups, ..SimulatedCluster::weir() }
}

fn schedule(workload: &Workload, cluster: &SimulatedCluster) -> SimulatedSchedule {
    run(workload, cluster, || PolicyKind::default().build(&PolicyOptions::default())).unwrap()
}

#[test]
fn groups_keep_the_mean_latency_of_one_scheduler() {
    let workload = workload(240, 700, 1, 1);
    let mean_s = |groups| {
        let schedule = schedule(&workload, &cluster(240, groups));
        SimulationMetrics::from_schedule(&workload, &schedule).avg
    };
    let [one, two] = [1, 2].map(mean_s);
    assert!(two <= 1.1 * one, "{two} s with 2 groups, {one} s with one");
}

#[test]
fn popular_model_uses_devices_of_several_groups() {
    let workload = workload(120, 100, 1, 1);
    let schedule = schedule(&workload, &cluster(120, 8));
    let mut counts = vec![0; workload.models().len()];
    workload.requests().iter().for_each(|request| counts[request.model as usize] += 1);
    let popular = (0..).zip(&counts).max_by_key(|(_, count)| **count).unwrap().0;
    let of_popular =
        workload.requests().iter().zip(&schedule.placed).filter(|(request, _)| request.model == popular);
    let groups: std::collections::BTreeSet<_> =
        of_popular.filter_map(|(_, placed)| Some(placed.as_ref()?.device / 15)).collect();
    assert!(groups.len() > 2, "{groups:?}");
    assert!(schedule.elsewhere > 0);
}

#[test]
fn losses_of_nodes_lose_no_request_of_any_group() {
    let workload = workload(60, 150, 1, 1);
    let losses = Some(Losses { every_ns: 500_000_000, away_ns: 3_000_000_000, seed: 1 });
    // `run` checks that each request ends or is rejected once.
    let schedule = schedule(&workload, &SimulatedCluster { losses, ..cluster(60, 6) });
    assert!(schedule.placed.iter().any(Option::is_none), "some requests ran on lost nodes");
}
