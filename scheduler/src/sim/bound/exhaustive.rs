//! Compares the bound with the best of all schedules of small workloads.

use super::least::LeastCosts;
use super::prices::{PriceUse, Prices};
use super::{Problem, latency_bound};
use crate::sim::{
    ModelCosts, SimRequest, SimulatedCluster, SimulatedSchedule, SimulationMetrics, Workload,
    improve_schedule, run,
};
use crate::{PolicyKind, PolicyOptions};
use proptest::prelude::*;

/// A schedule in construction.
#[derive(Clone)]
struct Partial {
    /// By device: when it is free, and the models in its memory.
    devices: Vec<(u64, Vec<u32>)>,
    /// By request.
    served: Vec<bool>,
    latency_ns: u64,
}

/// The least sum of latencies of all schedules.
///
/// Every schedule without needless idle time consists of a sequence of requests for each device and
/// the victims of each load; all of them are tried.
fn least_ns(workload: &Workload) -> u64 {
    let devices = vec![(0, Vec::new()); workload.devices() as usize];
    let mut best_ns = u64::MAX;
    extend(
        workload,
        &Partial { devices, served: vec![false; workload.requests().len()], latency_ns: 0 },
        &mut best_ns,
    );
    best_ns
}

fn extend(workload: &Workload, partial: &Partial, best_ns: &mut u64) {
    if partial.latency_ns >= *best_ns {
        return;
    }
    if partial.served.iter().all(|served| *served) {
        *best_ns = partial.latency_ns;
        return;
    }
    for (number, request) in workload.requests().iter().enumerate().filter(|(at, _)| !partial.served[*at]) {
        let costs = workload.models()[request.model as usize];
        for device in 0..partial.devices.len() {
            let (free_ns, held) = &partial.devices[device];
            let start_ns = request.arrived_at_ns.max(*free_ns);
            let hit = held.contains(&request.model);
            let taken_ns = costs.run_time_ns + if hit { 0 } else { costs.load_time_ns };
            for victims in 0..1_u32 << if hit { 0 } else { held.len() } {
                let mut stay: Vec<u32> = (0..)
                    .zip(held)
                    .filter(|(at, _)| victims >> at & 1 == 0)
                    .map(|(_, model)| *model)
                    .collect();
                if !hit {
                    stay.push(request.model);
                }
                let bytes: u64 = stay.iter().map(|model| workload.models()[*model as usize].bytes).sum();
                if bytes > workload.capacity_bytes() {
                    continue;
                }
                let mut next = partial.clone();
                next.devices[device] = (start_ns + taken_ns, stay);
                next.served[number] = true;
                next.latency_ns += start_ns + taken_ns - request.arrived_at_ns;
                extend(workload, &next, best_ns);
            }
        }
    }
}

fn workload(models: usize, requests: usize) -> impl Strategy<Value = Workload> {
    let costs = (1_u64..5, 0_u64..5_000, 1_u64..3_000).prop_map(|(bytes, load_ms, run_ms)| ModelCosts {
        bytes,
        load_time_ns: load_ms * 1_000_000,
        run_time_ns: run_ms * 1_000_000,
    });
    let arrival = (0_u64..12_000, 0..u32::try_from(models).unwrap());
    let parts = (
        prop::collection::vec(costs, models),
        prop::collection::vec(arrival, 1..=requests),
        1_u32..3,
        4_u64..9,
    );
    parts.prop_map(|(models, mut arrivals, devices, capacity)| {
        arrivals.sort_unstable();
        let request = |(ms, model)| SimRequest { arrived_at_ns: ms * 1_000_000, model, tenant: 0 };
        Workload::new(models, arrivals.into_iter().map(request).collect(), devices, capacity).unwrap()
    })
}

/// Prices that change at random times: the same for all models, or different.
fn with_prices(problem: &Problem, steps: &[(usize, f64)]) -> Prices {
    let mut prices = Prices::zero(problem);
    let mut steps = steps.iter().cycle();
    let mut left = (0, 0.0);
    for row in prices.rows_mut() {
        for price in row {
            if left.0 == 0 {
                left = *steps.next().unwrap();
            }
            left.0 -= 1;
            *price = left.1;
        }
    }
    prices
}

fn mean_s(workload: &Workload, placed: &SimulatedSchedule) -> f64 {
    SimulationMetrics::from_schedule(workload, placed).avg
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// No schedule is below the bound, and the bound is not far below the best one.
    #[test]
    fn best_schedule_is_not_below_the_bound(workload in workload(3, 5)) {
        let best_s = least_ns(&workload) as f64 / 1e9 / workload.requests().len() as f64;
        let bound_s = latency_bound(&workload, 150);
        prop_assert!(bound_s <= best_s, "{bound_s} above {best_s}");
        prop_assert!(bound_s >= 0.5 * best_s, "{bound_s} is far below {best_s}");
    }

    /// Prices that no ascent would choose give a bound, too.
    #[test]
    fn every_price_gives_a_bound(
        workload in workload(3, 4),
        steps in prop::collection::vec((1_usize..9, prop_oneof![Just(0.0), 0.0_f64..2.0]), 1..40),
    ) {
        let problem = Problem::new(&workload);
        let prices = with_prices(&problem, &steps);
        let mut used = PriceUse::new(&problem);
        let bound_s = problem.bound_s(&prices, &mut used, &mut LeastCosts::default());
        let best_s = least_ns(&workload) as f64 / 1e9;
        prop_assert!(bound_s <= best_s, "{bound_s} above {best_s}");
    }

    /// No policy is below the bound, nor is a schedule improved by search, and that one is not below
    /// the best schedule.
    #[test]
    fn improved_schedule_is_between_bound_and_policy(workload in workload(3, 5)) {
        let policy = || PolicyKind::FinishFirst.build(&PolicyOptions::default());
        let schedule = run(&workload, &SimulatedCluster::default(), policy).unwrap();
        let better = improve_schedule(&workload, &schedule, 300, 1);
        let best_s = least_ns(&workload) as f64 / 1e9 / workload.requests().len() as f64;
        prop_assert!(mean_s(&workload, &better) <= mean_s(&workload, &schedule) + 1e-9);
        prop_assert!(mean_s(&workload, &better) >= best_s - 1e-9);
    }
}
