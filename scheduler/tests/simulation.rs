//! Thousands of small simulations, each from a seed, with all guarantees checked on every step; and
//! invalid workloads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::HashMap;
use weir_scheduler::sim::{
    Arrivals, Losses, Popularity, Preset, Recipe, SimulatedBatching, SimulatedCluster, SimulatedKind,
    SimulationMetrics, SloLatency, SloRule, Workload, run,
};
use weir_scheduler::{
    BusyChoice, DeviceRule, ExclusiveOptions, PlacementPreference, PolicyKind, PolicyOptions, Settings,
    SloSettings, TenantLimits, VictimKind,
};
use weir_types::Cost;

/// Number of simulations per policy.
const SEEDS: u64 = 400;

/// The environment variable that selects a single seed.
const SEED: &str = "WEIR_SIM_SEED";

fn recipe(rng: &mut Pcg64) -> Recipe {
    let arrivals = [
        Arrivals::PerMinute,
        Arrivals::Poisson,
        Arrivals::Sporadic(5.0),
        Arrivals::Burst(2.0),
        Arrivals::Diurnal(30.0),
    ];
    let popularity = [Popularity::Uniform, Popularity::Zipf(0.4), Popularity::Zipf(1.2176)];
    Recipe {
        functions: rng.random_range(1..12),
        popularity: popularity[rng.random_range(0..popularity.len())],
        arrivals: arrivals[rng.random_range(0..arrivals.len())],
        minutes: 1,
        per_minute: rng.random_range(1..150),
        devices: rng.random_range(1..6),
        capacity_mb: rng.random_range(3_947..12_000),
        tenants: rng.random_range(1..4),
    }
}

fn losses(rng: &mut Pcg64) -> Losses {
    let second_ns = 1_000_000_000;
    Losses {
        every_ns: rng.random_range(2..30) * second_ns,
        away_ns: rng.random_range(1..10) * second_ns,
        seed: rng.random(),
    }
}

fn slo(rng: &mut Pcg64) -> SloRule {
    let latency = match rng.random_range(0..2) {
        0 => SloLatency::Times(rng.random_range(1..20).into()),
        _ => SloLatency::Ns(rng.random_range(1_000_000_000..30_000_000_000)),
    };
    // Slightly more than a run, or than a load and a run, or unlimited.
    let cost_max = [1_500_000_000, 6_000_000_000, u64::MAX][rng.random_range(0..3)];
    SloRule { latency, cost_max: Cost::from_nanos(cost_max), part: [1.0, 0.5][rng.random_range(0..2)] }
}

fn slo_settings(rng: &mut Pcg64) -> SloSettings {
    SloSettings {
        admission: rng.random_range(0..4) > 0,
        choice: [PlacementPreference::Cheapest, PlacementPreference::Fastest, PlacementPreference::Random]
            [rng.random_range(0..3)],
        sample_len: rng.random_range(1..20),
        margin: [0.0, 0.1][rng.random_range(0..2)],
        prices: [
            ("small".into(), Cost::from_nanos(2_000_000_000)),
            ("large".into(), Cost::from_nanos(300_000_000)),
        ]
        .into(),
    }
}

fn cluster(rng: &mut Pcg64) -> SimulatedCluster {
    let limits = TenantLimits {
        weight: rng.random_range(1..4),
        running_max: [u32::MAX, 1, 3][rng.random_range(0..3)],
        device_share_max: [1.0, 1.0, 0.5][rng.random_range(0..3)],
        resident_bytes_max: [u64::MAX, u64::MAX, 8_000_000_000][rng.random_range(0..3)],
        required_bytes_max: u64::MAX,
    };
    let queue_len_max = [usize::MAX, 5][rng.random_range(0..2)];
    SimulatedCluster {
        nodes: rng.random_range(1..4),
        kinds: if rng.random() { SimulatedKind::MIXED.to_vec() } else { Vec::new() },
        losses: if rng.random() { Some(losses(rng)) } else { None },
        slots: rng.random_range(1..4),
        batching: SimulatedBatching { batch_max: rng.random_range(1..4), marginal: 0.5 },
        tells_costs: rng.random(),
        deadline_ns: [None, Some(20_000_000_000)][rng.random_range(0..2)],
        slo: if rng.random() { Some(slo(rng)) } else { None },
        jitter: [0.0, 0.3][rng.random_range(0..2)],
        rule: DeviceRule::ALL[rng.random_range(0..DeviceRule::ALL.len())],
        faults: [0.0, 0.3][rng.random_range(0..2)],
        settings: Settings {
            queue_len_max,
            tenant_default: limits,
            slo: slo_settings(rng),
            ..Settings::default()
        },
        ..SimulatedCluster::default()
    }
}

fn options(rng: &mut Pcg64, seed: u64) -> PolicyOptions {
    PolicyOptions {
        o3_limit: rng.random_range(0..30),
        busy_choice: if rng.random() { BusyChoice::First } else { BusyChoice::Soonest },
        exclusive: ExclusiveOptions { stealing: rng.random(), models_expected: None },
        seed,
        victims: [None, Some(VictimKind::LeastRecentlyUsed), Some(VictimKind::LeastLoss)]
            [rng.random_range(0..3)],
    }
}

fn explore(policy: PolicyKind) {
    let only = std::env::var(SEED).ok().map(|seed| seed.parse().unwrap());
    for seed in only.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let mut rng = Pcg64::seed_from_u64(seed);
        let recipe = recipe(&mut rng);
        let cluster = cluster(&mut rng);
        let shares: Vec<f64> =
            (0..recipe.functions).map(|_| [1.0, 0.5, 0.05][rng.random_range(0..3)]).collect();
        let workload = recipe.make(seed).unwrap().with_device_shares(shares).unwrap();
        let options = options(&mut rng, seed);
        let schedule = run(&workload, &cluster, || policy.build(&options)).unwrap_or_else(|violation| {
            panic!(
                "{violation}\n{recipe:?}\n{cluster:?}\n{options:?}\nreplay it with: {SEED}={seed} cargo test -p weir-scheduler --test simulation {}",
                policy.as_str().replace('-', "_")
            )
        });
        assert_eq!(
            schedule,
            run(&workload, &cluster, || policy.build(&options)).unwrap(),
            "seed {seed} is not repeatable"
        );
    }
}

macro_rules! explore {
    ($($name:ident: $policy:ident;)*) => {
        $(
            #[test]
            fn $name() {
                explore(PolicyKind::$policy);
            }
        )*
    };
}

explore! {
    promises_hold_finish_first: FinishFirst;
    promises_hold_lb: Lb;
    promises_hold_lalb: Lalb;
    promises_hold_lalb_o3: LalbO3;
    promises_hold_round_robin: RoundRobin;
    promises_hold_balance: Balance;
    promises_hold_srtf: Srtf;
    promises_hold_mlfqs: Mlfqs;
    promises_hold_exclusive: Exclusive;
    promises_hold_clockwork: Clockwork;
}

/// In small exact simulations, everything takes as long as expected, and no admitted request is
/// late or too expensive, whatever else arrives. The simulation checks this; the test checks that
/// there were such requests.
#[test]
fn admitted_requests_meet_their_slo() {
    let only = std::env::var(SEED).ok().map(|seed| seed.parse().unwrap());
    let mut met = 0;
    let mut rejected = 0;
    for seed in only.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let mut rng = Pcg64::seed_from_u64(seed);
        let recipe = recipe(&mut rng);
        let slo = slo(&mut rng);
        let settings = SloSettings { admission: true, ..slo_settings(&mut rng) };
        let settings = Settings { slo: settings, ..Settings::default() };
        let nodes = rng.random_range(1..4);
        let cluster = SimulatedCluster { nodes, slo: Some(slo), settings, ..SimulatedCluster::default() };
        let policy = PolicyKind::ALL[rng.random_range(0..PolicyKind::ALL.len())];
        let schedule = run(&recipe.make(seed).unwrap(), &cluster, || policy.build(&options(&mut rng, seed)));
        let schedule = schedule.unwrap_or_else(|violation| {
            panic!("{violation}\n{recipe:?}\n{cluster:?}\n{policy}\nreplay it with: {SEED}={seed} cargo test -p weir-scheduler --test simulation what_is_admitted")
        });
        met += schedule.slos.met;
        rejected += schedule.slos.rejected;
    }
    assert!(only.is_some() || met > 2_000 && rejected > 2_000, "{met} met, {rejected} rejected");
}

/// A request that has to load its model where others wait may cost them more than it gains. With a
/// decision on arrival, hardly fewer requests meet their SLO than under a controller that lets all
/// requests wait until a miss is certain. With enough capacity, no request is rejected, and no
/// model is excluded.
#[test]
fn admission_allows_loads_that_are_worth_it() {
    let slo = SloRule { latency: SloLatency::Times(20.0), cost_max: Cost::MAX, part: 1.0 };
    let kept = |per_minute, policy: PolicyKind, admission| {
        let workload = Recipe { per_minute, minutes: 4, ..Preset::Overload.recipe(35) }.make(1).unwrap();
        let settings = SloSettings { admission, margin: 0.0, ..SloSettings::default() };
        let settings = Settings { slo: settings, ..Settings::default() };
        let cluster = SimulatedCluster { slo: Some(slo), settings, ..SimulatedCluster::default() };
        let schedule = run(&workload, &cluster, || policy.build(&PolicyOptions::default())).unwrap();
        let served: HashMap<u32, u32> = workload.requests().iter().zip(&schedule.placed).fold(
            HashMap::new(),
            |mut served, (request, placed)| {
                *served.entry(request.model).or_default() += u32::from(placed.is_some());
                served
            },
        );
        (f64::from(schedule.slos.met) / workload.requests().len() as f64, served)
    };
    let (all, _) = kept(440, PolicyKind::FinishFirst, true);
    assert_eq!(all, 1.0, "there is room for all");
    for per_minute in [600, 1_100] {
        let (on_arrival, served) = kept(per_minute, PolicyKind::FinishFirst, true);
        let (in_the_end, _) = kept(per_minute, PolicyKind::Clockwork, false);
        assert!(on_arrival >= 0.98 * in_the_end, "{on_arrival} of {in_the_end} at {per_minute} a minute");
        assert!(served.values().all(|count| *count > 0), "{served:?}");
    }
}

/// Runs that take up to 30 % longer or shorter than expected make some admitted invocations late.
/// Late ones let the others pass, so that at twice the capacity few are late, and as many are on
/// time as when the device time were not spent on late ones.
#[test]
fn late_invocations_do_not_make_others_late() {
    let slo = SloRule { latency: SloLatency::Times(20.0), cost_max: Cost::MAX, part: 1.0 };
    let settings = SloSettings { margin: 0.0, ..SloSettings::default() };
    let settings = Settings { slo: settings, ..Settings::default() };
    let cluster = SimulatedCluster { slo: Some(slo), jitter: 0.3, settings, ..SimulatedCluster::default() };
    let workload = Recipe { per_minute: 1_100, minutes: 3, ..Preset::Overload.recipe(35) }.make(1).unwrap();
    let policy = || PolicyKind::FinishFirst.build(&PolicyOptions::default());
    let slos = run(&workload, &cluster, policy).unwrap().slos;
    let part = |count: u32| f64::from(count) / workload.requests().len() as f64;
    assert!(part(slos.missed) < 0.05, "{:.3} were late", part(slos.missed));
    assert!(part(slos.met) > 0.45, "{:.3} were on time", part(slos.met));
}

/// Nodes go down and come back: the requests that ran there are rejected, and all others are
/// served.
#[test]
fn lost_node_rejects_exactly_its_running_requests() {
    let recipe = Recipe { minutes: 2, ..Preset::Trace.recipe(20) };
    let losses = Losses { every_ns: 20_000_000_000, away_ns: 5_000_000_000, seed: 3 };
    for policy in PolicyKind::ALL {
        let options = PolicyOptions::default();
        let workload = recipe.make(5).unwrap();
        let whole = SimulatedCluster { nodes: 4, ..SimulatedCluster::default() };
        let played = |cluster: &SimulatedCluster| {
            SimulationMetrics::from_schedule(
                &workload,
                &run(&workload, cluster, || policy.build(&options)).unwrap(),
            )
        };
        assert_eq!(played(&whole).rejected, 0.0);
        let faulty = played(&SimulatedCluster { losses: Some(losses), ..whole.clone() });
        // About five outages of three devices that run one request each.
        let lost = (faulty.rejected * workload.requests().len() as f64).round();
        assert!((1.0..=18.0).contains(&lost), "{policy} lost {lost}");
    }
}

/// A workload written to JSON with its schedule reads back unchanged.
#[test]
fn dumped_workload_reads_back_with_its_schedule() {
    let workload = Recipe {
        functions: 5,
        popularity: Popularity::Zipf(1.0),
        arrivals: Arrivals::Poisson,
        minutes: 1,
        per_minute: 60,
        devices: 3,
        capacity_mb: 8_192,
        tenants: 1,
    };
    let workload = workload.make(7).unwrap().with_device_shares([0.5, 0.05]).unwrap();
    let schedule = run(&workload, &SimulatedCluster::default(), || {
        PolicyKind::default().build(&PolicyOptions::default())
    })
    .unwrap();
    let mut json = Vec::new();
    workload
        .to_json(
            "finish-first",
            &schedule,
            &SimulationMetrics::from_schedule(&workload, &schedule),
            &mut json,
        )
        .unwrap();
    let (again, placed) = Workload::from_json(&json).unwrap();
    assert_eq!((again.devices(), again.capacity_bytes()), (workload.devices(), workload.capacity_bytes()));
    for (was_ns, is_ns) in workload.off_device_ns().iter().zip(again.off_device_ns()) {
        assert!(was_ns.abs_diff(*is_ns) < 1_000);
    }
    let placed = placed.unwrap();
    assert_eq!(placed.len(), schedule.placed.len());
    for (was, is) in schedule.placed.iter().flatten().zip(&placed) {
        assert_eq!((was.device, was.hit), (is.device, is.hit));
        assert!(
            was.started_at_ns.abs_diff(is.started_at_ns) < 1_000
                && was.ended_at_ns.abs_diff(is.ended_at_ns) < 1_000
        );
    }
}

#[test]
fn invalid_workload_is_an_error_with_its_reason() {
    let bad = [
        ("", "no workload"),
        ("{}", "missing field"),
        (r#"{"models":[[100,1,1]],"requests":[[0,0]],"capacity":50}"#, "do not fit"),
        (r#"{"models":[[100,1,0]],"requests":[[0,0]],"capacity":500}"#, "more than no time"),
        (r#"{"models":[[100,-1,1]],"requests":[[0,0]],"capacity":500}"#, "not a time"),
        (r#"{"models":[[100,1,1e300]],"requests":[[0,0]],"capacity":500}"#, "not a time"),
        (r#"{"models":[[-5,1,1]],"requests":[[0,0]],"capacity":500}"#, "model 0"),
        (r#"{"models":[[100,1,1]],"requests":[[5,0],[3,0]],"capacity":500}"#, "before"),
        (r#"{"models":[[100,1,1]],"requests":[[-1,0]],"capacity":500}"#, "not a time"),
        (r#"{"models":[[100,1,1]],"requests":[[0,1]],"capacity":500}"#, "no model 1"),
        (r#"{"models":[[100,1,1]],"requests":[[0,0]],"capacity":500,"gpus":0}"#, "device"),
        (r#"{"models":[[100,1,1,0]],"requests":[[0,0]],"capacity":500}"#, "no fraction"),
        (r#"{"models":[[100,1,1,1.5]],"requests":[[0,0]],"capacity":500}"#, "no fraction"),
        (r#"{"models":[[100,1,NaN]],"requests":[[0,0]],"capacity":500}"#, "no workload"),
        (r#"{"models":[[100,1,null]],"requests":[[0,0]],"capacity":500}"#, "no workload"),
        (r#"{"models":[[100,1,1]],"requests":[[0,0]],"capacity":500,"gpus":4000000000}"#, "at most"),
    ];
    for (json, why) in bad {
        let error = Workload::from_json(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{json}: {error}");
    }
    let error = "fastest".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(error.contains("fastest") && error.contains("finish-first"), "{error}");
}

/// Without arrivals, there is nothing to measure and no error.
#[test]
fn empty_workload_runs() {
    let json = br#"{"models":[[100,1,1]],"requests":[],"capacity":500}"#;
    let (workload, _) = Workload::from_json(json).unwrap();
    for policy in PolicyKind::ALL {
        let schedule =
            run(&workload, &SimulatedCluster::default(), || policy.build(&PolicyOptions::default())).unwrap();
        assert_eq!(SimulationMetrics::from_schedule(&workload, &schedule), SimulationMetrics::default());
    }
}
