//! The lower bound on the mean latency, compared with all policies on larger workloads.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use weir_scheduler::sim::{
    Arrivals, Popularity, Preset, Recipe, SimulatedCluster, SimulatedPlacement, SimulatedSchedule,
    SimulationMetrics, Workload, improve_schedule, latency_bound, run,
};
use weir_scheduler::{PolicyKind, PolicyOptions};

fn played(workload: &Workload, policy: PolicyKind) -> SimulatedSchedule {
    run(workload, &SimulatedCluster::default(), || policy.build(&PolicyOptions::default())).unwrap()
}

fn mean_s(workload: &Workload, schedule: &SimulatedSchedule) -> f64 {
    SimulationMetrics::from_schedule(workload, schedule).avg
}

fn recipe(rng: &mut Pcg64) -> Recipe {
    let arrivals = [Arrivals::PerMinute, Arrivals::Poisson, Arrivals::Sporadic(5.0), Arrivals::Burst(2.0)];
    Recipe {
        functions: rng.random_range(1..16),
        popularity: Popularity::Zipf(rng.random_range(0.0..1.5)),
        arrivals: arrivals[rng.random_range(0..arrivals.len())],
        minutes: 1,
        per_minute: rng.random_range(1..150),
        devices: rng.random_range(1..6),
        capacity_mb: rng.random_range(3_947..12_000),
        tenants: 1,
    }
}

#[test]
fn no_policy_is_below_the_bound() {
    let mut rng = Pcg64::seed_from_u64(7);
    for seed in 0..60 {
        let recipe = recipe(&mut rng);
        let workload = recipe.make(seed).unwrap();
        let bound_s = latency_bound(&workload, 30);
        for policy in PolicyKind::ALL {
            let policy_s = mean_s(&workload, &played(&workload, policy));
            assert!(bound_s <= policy_s, "{policy}: {policy_s} below {bound_s}\n{recipe:?} with seed {seed}");
        }
    }
}

/// On the presets, the bound is well above the time of a run and of the first loads, which need no
/// argument.
#[test]
fn bound_of_the_presets_includes_waits() {
    for preset in Preset::ALL {
        let workload = preset.recipe(35).make(1).unwrap();
        let mut loaded = vec![false; workload.models().len()];
        let at_least = workload.requests().iter().map(|request| {
            let costs = workload.models()[request.model as usize];
            let first = !std::mem::replace(&mut loaded[request.model as usize], true);
            costs.run_time_ns + if first { costs.load_time_ns } else { 0 }
        });
        let at_least_s = at_least.sum::<u64>() as f64 / 1e9 / workload.requests().len() as f64;
        let bound_s = latency_bound(&workload, 60);
        let preset = preset.as_str();
        assert!(bound_s > at_least_s + WAITS_S, "{preset}: {bound_s}, with runs and loads of {at_least_s}");
    }
}

/// Waiting time that the bound must include, with few steps of the ascent.
const WAITS_S: f64 = 0.1;

/// A schedule improved by search keeps the devices' rules: a device serves one request at a time, a
/// hit has its model in memory, and memory suffices.
#[test]
fn improved_schedule_is_legal_and_faster() {
    let workload = Preset::Overload.recipe(35).make(2).unwrap();
    let schedule = played(&workload, PolicyKind::FinishFirst);
    let better = improve_schedule(&workload, &schedule, 100_000, 1);
    assert!(mean_s(&workload, &better) < mean_s(&workload, &schedule));
    for device in 0..workload.devices() {
        check_device(&workload, &better, device);
    }
}

fn check_device(workload: &Workload, schedule: &SimulatedSchedule, device: u32) {
    let mut own: Vec<(SimulatedPlacement, usize)> = (0..)
        .zip(&schedule.placed)
        .map(|(number, placed)| (placed.unwrap(), number))
        .filter(|(placed, _)| placed.device == device)
        .collect();
    own.sort_unstable_by_key(|(placed, _)| placed.started_at_ns);
    let model_of = |number: usize| workload.requests()[number].model;
    let mut free_at_ns = 0;
    let mut seen: Vec<u32> = Vec::new();
    for (at, (placed, number)) in own.iter().enumerate() {
        let request = workload.requests()[*number];
        let costs = workload.models()[request.model as usize];
        let load_ns = if placed.hit { 0 } else { costs.load_time_ns };
        assert!(placed.started_at_ns >= free_at_ns.max(request.arrived_at_ns), "request {number}");
        assert_eq!(placed.ended_at_ns, placed.started_at_ns + load_ns + costs.run_time_ns);
        free_at_ns = placed.ended_at_ns;
        assert!(!placed.hit || seen.contains(&request.model), "request {number} never loaded its model");
        if !seen.contains(&request.model) {
            seen.push(request.model);
        }
        // Models that a later hit needs were in memory during this service.
        let needed = seen.iter().filter(|model| {
            let next = own[at + 1..].iter().find(|(_, other)| model_of(*other) == **model);
            **model == request.model || next.is_some_and(|(next, _)| next.hit)
        });
        let bytes: u64 = needed.map(|model| workload.models()[*model as usize].bytes).sum();
        assert!(bytes <= workload.capacity_bytes(), "device {device} needs {bytes} at request {number}");
    }
}

#[test]
fn bound_of_nothing_is_zero() {
    let (workload, _) =
        Workload::from_json(br#"{"models":[[100,1,1]],"requests":[],"capacity":500}"#).unwrap();
    assert_eq!(latency_bound(&workload, 10), 0.0);
}
