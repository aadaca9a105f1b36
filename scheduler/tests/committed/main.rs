//! Devices under the committed-work rule: when they accept invocations, and the times learned for
//! invocations.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod fixture;

use fixture::{Fixture, MIB, MS, SECOND, alone, arrival, device, model, simulate, workload};
use weir_scheduler::sim::{Preset, SimulatedBatching, SimulatedCluster, measure};
use weir_scheduler::{
    Action, DeviceRule, DeviceSpec, DeviceUse, Event, MeasuredTransfer, PolicyKind, PolicyOptions, Settings,
    StorageTier, TenantLimits,
};
use weir_types::{InvocationId, Name, NodeId, TenantId};

#[test]
fn hot_model_spreads_over_all_devices_under_every_policy() {
    // Requests for one model keep three of four devices busy.
    let workload = workload(4, 100 * MS, &[300 * MS], SECOND);
    for policy in PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::RoundRobin) {
        let (schedule, metrics) = simulate(&workload, &SimulatedCluster::weir(), policy);
        let mut runs = [0; 4];
        schedule.placed.iter().flatten().for_each(|placed| runs[placed.device as usize] += 1);
        assert!(runs.iter().filter(|runs| **runs > 50).count() >= 3, "{policy}: {runs:?}");
        assert!(metrics.p50 < 1.0, "{policy}: {}", metrics.p50);
    }
}

/// A run takes 1 s, and a load 3 s. The second and third invocation wait for the holder; the fourth
/// would wait for 3 s, so it loads the model elsewhere.
#[test]
fn lalb_waits_for_a_busy_holder_until_a_load_is_faster() {
    for policy in [PolicyKind::Lalb, PolicyKind::LalbO3] {
        let mut cluster = Fixture::new(policy, 2, 1);
        let costs = (SECOND, Some(3 * SECOND));
        assert_eq!(cluster.arrive(0, costs), [(0, 0, 3 * SECOND)]);
        cluster.now_ns = 3 * SECOND;
        assert_eq!(cluster.loaded(0, 3 * SECOND), []);
        assert_eq!(cluster.started(0), []);
        assert_eq!(cluster.arrive(1, costs), [], "{policy}");
        assert_eq!(cluster.arrive(2, costs), [], "{policy}");
        assert_eq!(cluster.arrive(3, costs), [(3, 1, 3 * SECOND)], "{policy}");
        cluster.now_ns = 4 * SECOND;
        let used = DeviceUse { wait_ns: 3 * SECOND, ..alone(SECOND) };
        assert_eq!(cluster.finish(0, used), [(1, 0, 0)], "{policy}");
    }
}

#[test]
fn lb_takes_the_next_device_when_one_is_busy() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 2, 1);
    let costs = (SECOND, Some(0));
    assert_eq!(cluster.arrive(0, costs), [(0, 0, 0)]);
    cluster.loaded(0, 0);
    assert_eq!(cluster.arrive(1, costs), [(1, 1, 0)]);
    cluster.loaded(1, 0);
    assert_eq!(cluster.arrive(2, costs), [], "both are busy");
    assert_eq!(cluster.finish(1, alone(SECOND)), [(2, 1, 0)], "the scheduler binds late");
}

/// Short runs are committed ahead up to 10 ms, so that the device does not idle between them.
#[test]
fn short_runs_are_committed_ahead() {
    let mut cluster = Fixture::new(PolicyKind::FinishFirst, 1, 1);
    let costs = (4 * MS, Some(0));
    cluster.arrive(0, costs);
    cluster.loaded(0, 0);
    let starts: Vec<_> = (1..10).flat_map(|id| cluster.arrive(id, costs)).collect();
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert_eq!(cluster.scheduler.waiting(), 7);
    assert_eq!(cluster.finish(0, alone(4 * MS)).len(), 1);
}

/// Invocations that wait for a load do not use the device: a loaded model runs meanwhile. Only as
/// many wait for the load as the device can run soon after it.
#[test]
fn loaded_models_run_while_another_model_loads() {
    let mut cluster = Fixture::new(PolicyKind::FinishFirst, 1, 2);
    let costs = (4 * MS, Some(0));
    assert_eq!(cluster.arrive(0, costs).len(), 1);
    cluster.loaded(0, 0);
    cluster.finish(0, alone(4 * MS));

    let cold = |id| {
        let mut arrival = arrival(id, 10 * MS, Some(20 * MS));
        arrival.function.name = Name::new("cold").unwrap();
        arrival.models[0].model.name = Name::new("cold").unwrap();
        Event::Arrived(arrival)
    };
    let starts: Vec<_> = (100..120).flat_map(|id| cluster.tell(cold(id))).collect();
    assert!((2..8).contains(&starts.len()), "{starts:?}");
    // The load takes far longer than estimated.
    for id in 1..100 {
        cluster.now_ns += 5 * MS;
        assert!(cluster.arrive(id, costs).contains(&(id, 0, 0)), "invocation {id} waits for another's load");
        cluster.started(id);
        cluster.finish(id, alone(4 * MS));
    }
}

/// Each start reaches its device after a millisecond. If that is a notable part of a run, another
/// invocation is committed meanwhile; a long run has no successor at the device.
#[test]
fn hand_over_between_runs_is_hidden_unless_runs_are_long() {
    for run_ns in [MS, 3 * MS, 9 * MS, 30 * MS, 100 * MS, SECOND] {
        let workload = workload(1, run_ns / 2, &[run_ns], 10 * MS);
        let deadline_ns = Some(10 * SECOND.max(run_ns));
        let cluster = SimulatedCluster {
            hand_over_ns: MS,
            deadline_ns,
            tells_costs: false,
            ..SimulatedCluster::weir()
        };
        let (schedule, metrics) = simulate(&workload, &cluster, PolicyKind::Lb);
        assert!(metrics.sm_util > 0.97, "{run_ns} ns: {}", metrics.sm_util);
        let mut placed: Vec<_> = schedule.placed.iter().flatten().copied().collect();
        placed.sort_unstable_by_key(|placed| placed.started_at_ns);
        let ahead_max = if run_ns >= 100 * MS { 1 } else { 10 * MS / run_ns + 3 };
        // The first runs are not known, and the first long ones are overdue.
        for (number, later) in placed.iter().enumerate().skip(5) {
            let runs = placed[..number].iter().rev().take(100);
            let ahead = 1 + runs.filter(|earlier| earlier.ended_at_ns > later.started_at_ns).count() as u64;
            assert!(ahead <= ahead_max, "{run_ns} ns: {ahead} at once");
        }
    }
}

/// Functions that wait for the network most of the time share the device. A fixed number of
/// invocations per device would leave it idle.
#[test]
fn functions_with_time_off_the_device_keep_it_busy() {
    let cases =
        [(2 * MS, 1, 0.05), (50 * MS, 1, 0.05), (20 * MS, 4, 0.05), (20 * MS, 4, 0.3), (20 * MS, 2, 0.7)];
    for (run_ns, slots, share) in cases {
        // Twice as much work arrives as the device can do.
        let every_ns = run_ns / 2 / u64::from(slots);
        let workload = workload(1, every_ns, &[run_ns], 10 * MS).with_device_shares([share]).unwrap();
        let cluster = SimulatedCluster {
            tells_costs: false,
            jitter: 0.3,
            deadline_ns: Some(2 * SECOND),
            slots,
            ..SimulatedCluster::weir()
        };
        for policy in [PolicyKind::FinishFirst, PolicyKind::Lb, PolicyKind::Lalb] {
            let (schedule, metrics) = simulate(&workload, &cluster, policy);
            let busy = metrics.sm_util / f64::from(slots);
            assert!(busy >= 0.95, "{policy}, {run_ns} ns, {slots} slots, {share}: {busy}");
            // The rest waits in the scheduler, not at the device.
            let lives =
                schedule.placed.iter().flatten().map(|placed| placed.ended_at_ns - placed.started_at_ns);
            let count = schedule.placed.iter().flatten().count() as u64;
            let stretch = (lives.sum::<u64>() / count) as f64 * share / run_ns as f64;
            assert!(stretch < 1.8, "{policy}, {run_ns} ns, {slots} slots, {share}: {stretch}");
        }
    }
}

#[test]
fn failed_and_cancelled_runs_do_not_teach_the_device_time() {
    for policy in [PolicyKind::FinishFirst, PolicyKind::Lb] {
        let runs_ns = [40 * MS, 80 * MS];
        let workload = workload(2, 30 * MS, &runs_ns, 10 * MS).with_device_shares([1.0, 0.4]).unwrap();
        let cluster = SimulatedCluster {
            faults: 0.3,
            jitter: 0.1,
            tells_costs: false,
            deadline_ns: Some(3 * SECOND),
            ..SimulatedCluster::weir()
        };
        let (schedule, metrics) = simulate(&workload, &cluster, policy);
        assert!(metrics.sm_util > 0.95 && schedule.failed > 500, "{} {}", metrics.sm_util, schedule.failed);
        for (learned_ns, true_ns) in schedule.expected_run_ns.iter().zip(runs_ns) {
            assert!(learned_ns.abs_diff(true_ns) <= true_ns / 10, "{policy}: {learned_ns}, not {true_ns}");
        }
    }
}

#[test]
fn device_share_max_holds_while_a_third_of_the_requests_fail() {
    for policy in [PolicyKind::FinishFirst, PolicyKind::Lb, PolicyKind::Lalb] {
        // Each tenant alone could keep both devices busy.
        let workload = workload(2, 20 * MS, &[40 * MS, 40 * MS], 10 * MS);
        let limits = TenantLimits { device_share_max: 0.3, ..TenantLimits::default() };
        let tenants = [(TenantId::new("tenant-0").unwrap(), limits)].into();
        let cluster = SimulatedCluster {
            faults: 0.3,
            tells_costs: false,
            deadline_ns: Some(3 * SECOND),
            settings: Settings { tenants, queue_len_max: usize::MAX, ..Settings::default() },
            ..SimulatedCluster::weir()
        };
        let (schedule, metrics) = simulate(&workload, &cluster, policy);
        let share = schedule.device_time_ns[&0] as f64 / 1e9 / (2.0 * metrics.makespan);
        assert!((0.25..=0.35).contains(&share), "{policy}: {share}");
        assert!(metrics.sm_util > 0.9, "{policy}: the other tenant uses the rest: {}", metrics.sm_util);
    }
}

/// A batch is filled from the queue at once, and each further run adds only its marginal time.
#[test]
fn waiting_inferences_join_a_batch() {
    let batching = SimulatedBatching { batch_max: 8, marginal: 0.1 };
    let cluster = SimulatedCluster { batching, deadline_ns: Some(3 * SECOND), ..SimulatedCluster::weir() };
    for policy in [PolicyKind::FinishFirst, PolicyKind::Lb, PolicyKind::Lalb, PolicyKind::Srtf] {
        // Three times as many requests arrive as single runs could serve.
        let workload = workload(1, 10 * MS, &[30 * MS], 10 * MS);
        let (schedule, metrics) = simulate(&workload, &cluster, policy);
        let served = schedule.placed.iter().flatten().count();
        assert!(served == workload.requests().len(), "{policy}: {served}");
        assert!(metrics.p99 < 0.3, "{policy}: {}", metrics.p99);
    }
}

#[test]
fn runs_proceed_while_another_model_loads() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 1, 1);
    // A cold invocation of another model loads for 3 s.
    let mut cold = arrival(0, SECOND, Some(3 * SECOND));
    cold.models[0].model.name = Name::new("cold").unwrap();
    cold.function.name = Name::new("cold").unwrap();
    assert_eq!(cluster.tell(Event::Arrived(cold)), [(0, 0, 3 * SECOND)]);
    cluster.tell(Event::Loaded {
        device: device(0),
        model: model(),
        bytes: 100 * MIB,
        load_time_ns: None,
        parts: Vec::new(),
    });
    assert_eq!(cluster.arrive(1, (SECOND, Some(3 * SECOND))), [(1, 0, 0)]);
    assert_eq!(cluster.arrive(2, (SECOND, Some(3 * SECOND))), [], "the run slot is taken");
}

/// A scheduler that takes over from another one counts the invocations that already run.
#[test]
fn adopted_invocations_occupy_their_device() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 2, 1);
    cluster.loaded(0, 0);
    let running =
        |id| Event::Running { arrival: arrival(id, SECOND, Some(0)), node: NodeId(0), device: Some(0) };
    assert_eq!(cluster.tell(running(1)), []);
    assert_eq!(cluster.tell(running(1)), []);
    assert_eq!(cluster.scheduler.corrections().arrived_twice, 1);
    assert_eq!(cluster.scheduler.view().running(), 1);
    assert_eq!(cluster.arrive(2, (SECOND, Some(0))), [(2, 1, 0)], "the first device is busy");
    assert_eq!(cluster.arrive(3, (SECOND, Some(0))), []);
    assert_eq!(cluster.finish(1, alone(SECOND)), [(3, 0, 0)]);
}

#[test]
fn paused_scheduler_places_arrivals_once_it_knows_what_runs() {
    let costs = (SECOND, Some(0));
    let mut cluster = Fixture::new(PolicyKind::Lb, 2, 1);
    cluster.loaded(0, 0);
    cluster.tell(Event::Paused);
    for id in 1..=3 {
        assert_eq!(cluster.arrive(id, costs), []);
    }
    assert_eq!(cluster.tell(Event::Cancelled { invocation: InvocationId(2), used: None }), []);
    cluster.arrive(3, costs);
    assert_eq!((cluster.scheduler.waiting(), cluster.scheduler.corrections().arrived_twice), (2, 1));
    let arrival = arrival(9, SECOND, Some(0));
    assert_eq!(cluster.tell(Event::Running { arrival, node: NodeId(0), device: Some(0) }), []);
    assert_eq!(cluster.tell(Event::Resumed), [(1, 1, 0)], "the first device is busy");
    assert_eq!(cluster.finish(9, alone(SECOND)), [(3, 0, 0)]);
}

#[test]
fn paused_scheduler_rejects_nothing_for_lack_of_devices_that_it_does_not_know_yet() {
    let mut cluster = Fixture::new(PolicyKind::FinishFirst, 1, 1);
    cluster.tell(Event::Paused);
    let mut large = arrival(1, SECOND, Some(0));
    large.models[0].bytes = 2_000 * MIB;
    cluster.tell(Event::Arrived(large));
    let (_, device) = cluster.scheduler.view().devices().next().unwrap();
    let spec = DeviceSpec { capacity_bytes: 4_000 * MIB, ..device.spec().clone() };
    assert_eq!(cluster.tell(Event::NodeUp { node: NodeId(1), devices: vec![spec] }), []);
    assert_eq!(cluster.tell(Event::Resumed), [(1, 1, 0)]);
}

/// Invocations of a new function wait for the network for 30 s before they run. Nothing is known of
/// that until one has finished, and the device is idle.
#[test]
fn overdue_invocations_hold_no_run_slots() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 1, 1);
    let costs = (10 * MS, Some(0));
    cluster.arrive(0, costs);
    cluster.loaded(0, 0);
    assert_eq!(cluster.arrive(1, costs), []);
    assert_eq!(cluster.arrive(2, costs), []);
    cluster.now_ns = 200 * MS;
    assert_eq!(cluster.tell(Event::Woken), [(1, 0, 0)]);
    cluster.now_ns = 250 * MS;
    assert_eq!(cluster.started(0), [], "it runs now");
    cluster.now_ns = 400 * MS;
    assert_eq!(cluster.tell(Event::Woken), [(2, 0, 0)]);
    cluster.now_ns = 30 * SECOND;
    let used = DeviceUse { run_time_ns: 10 * MS, device_time_ns: 10 * MS, batch_items: 1, wait_ns: 0 };
    for id in 0..3 {
        cluster.finish(id, used);
    }
    let starts: Vec<_> = (10..40).flat_map(|id| cluster.arrive(id, costs)).collect();
    assert_eq!(starts.len(), 30, "now it is known that they use the device for 0.03 % of their life");
    let committed_ns =
        cluster.scheduler.view().devices().map(|(_, device)| device.committed_ns()).sum::<u64>();
    assert_eq!(committed_ns, 30 * 10 * MS);
}

/// Work returns to zero in whatever order the events come, and with events for unknown invocations.
#[test]
fn committed_work_ends_with_its_invocations() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 2, 2);
    let committed = |cluster: &Fixture| {
        let devices = cluster.scheduler.view().devices();
        devices.map(|(_, device)| (device.committed_ns(), device.committed_load_ns())).collect::<Vec<_>>()
    };
    for id in 0..4 {
        cluster.arrive(id, (SECOND, Some(SECOND)));
    }
    assert!(committed(&cluster).iter().any(|(run_ns, _)| *run_ns > 0));
    cluster.started(2);
    cluster.finish(99, alone(1));
    cluster.tell(Event::Cancelled { invocation: InvocationId(0), used: None });
    cluster.loaded(1, SECOND);
    cluster.loaded(0, SECOND);
    cluster.tell(Event::Failed { invocation: InvocationId(1), used: Some(alone(MS)) });
    cluster.finish(1, alone(MS));
    cluster.finish(2, alone(SECOND));
    cluster.finish(3, alone(SECOND));
    assert_eq!(committed(&cluster), [(0, 0), (0, 0)]);
    cluster.arrive(5, (SECOND, Some(SECOND)));
    cluster.tell(Event::NodeDown { node: NodeId(0) });
    cluster.tell(Event::NodeDown { node: NodeId(1) });
    assert_eq!(committed(&cluster), []);
}

/// Bandwidths are learned by node and tier: a model is expected to load from where the node has it.
#[test]
fn load_estimate_follows_the_tier_of_the_bytes() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 2, 1);
    let staged = |node, tier, moved| Event::Staged {
        node: NodeId(node),
        model: model(),
        bytes: vec![(tier, 100 * MIB)],
        moved,
    };
    let other = |cluster: &mut Fixture, node: u32, name: &str, tier, load_time_ns| {
        let mut id = model();
        id.name = Name::new(name).unwrap();
        let at = NodeId(node);
        cluster.tell(Event::Staged {
            node: at,
            model: id.clone(),
            bytes: vec![(tier, 50 * MIB)],
            moved: None,
        });
        let device = device(node);
        let load_time_ns = Some(load_time_ns);
        cluster.tell(Event::Loaded { device, model: id, bytes: 50 * MIB, load_time_ns, parts: Vec::new() });
    };
    // Node 0 reads 1 GiB/s from its disk and 10 GiB/s from memory; node 1 half of that.
    other(&mut cluster, 0, "a", StorageTier::Disk, 50 * SECOND / 1024);
    other(&mut cluster, 0, "b", StorageTier::Memory, 5 * SECOND / 1024);
    other(&mut cluster, 1, "a", StorageTier::Disk, 100 * SECOND / 1024);
    other(&mut cluster, 1, "b", StorageTier::Memory, 10 * SECOND / 1024);
    let mut estimates = |node: u32, tier: StorageTier, moved: Option<MeasuredTransfer>| {
        cluster.tell(staged(node, tier, moved));
        estimate_on(&mut cluster, node)
    };
    let close = |ns: u64, expected_ns: u64| {
        assert!(ns.abs_diff(expected_ns) <= expected_ns / 1_000, "{ns}, not {expected_ns}");
    };
    let from_disk = estimates(0, StorageTier::Disk, None);
    close(from_disk.load_time_ns, 100 * SECOND / 1024);
    assert_eq!(from_disk.load_by_tier.disk_ns, from_disk.load_time_ns);
    close(estimates(1, StorageTier::Disk, None).load_time_ns, 200 * SECOND / 1024);
    close(estimates(0, StorageTier::Memory, None).load_time_ns, 10 * SECOND / 1024);
    let from_memory = estimates(1, StorageTier::Memory, None);
    close(from_memory.load_time_ns, 20 * SECOND / 1024);
    assert_eq!(from_memory.load_by_tier.memory_ns, from_memory.load_time_ns);
    // Another model's transfer from the object store took 10 s per GiB. The fetched file is in
    // memory.
    let transfer =
        MeasuredTransfer { from: StorageTier::ObjectStore, bytes: 1024 * MIB, time_ns: 10 * SECOND };
    let fetched = estimates(0, StorageTier::ObjectStore, Some(transfer));
    close(fetched.load_time_ns, 1_010 * SECOND / 1024);
    assert_eq!(fetched.load_by_tier.object_store_ns, fetched.load_time_ns);
    // Node 1 has fetched nothing yet.
    close(estimates(1, StorageTier::ObjectStore, None).load_time_ns, 1_020 * SECOND / 1024);
    // Without bytes, the model is where the node's models are unless reported.
    let unstaged =
        |node| Event::Staged { node: NodeId(node), model: model(), bytes: Vec::new(), moved: None };
    cluster.tell(unstaged(0));
    close(estimate_on(&mut cluster, 0).load_by_tier.disk_ns, 100 * SECOND / 1024);
    cluster.tell(Event::Origin { node: NodeId(0), tier: StorageTier::ObjectStore });
    close(estimate_on(&mut cluster, 0).load_by_tier.object_store_ns, 1_010 * SECOND / 1024);
    // The memory that a model takes comes from its files in proportion, whatever its size.
    let half = vec![(StorageTier::Memory, MIB), (StorageTier::Disk, MIB)];
    cluster.tell(Event::Staged { node: NodeId(0), model: model(), bytes: half, moved: None });
    let mixed = estimate_on(&mut cluster, 0).load_by_tier;
    close(mixed.memory_ns, 5 * SECOND / 1024);
    close(mixed.disk_ns, 50 * SECOND / 1024);
}

/// A model has its own part of the load time, such as for creating a session, which does not depend
/// on the tier.
#[test]
fn load_time_from_a_new_tier_is_adjusted_by_the_bandwidths() {
    let mut cluster = Fixture::new(PolicyKind::Lb, 1, 1);
    let mut load = |name: &str, tier: StorageTier, load_time_ns: u64| {
        let mut id = model();
        id.name = Name::new(name).unwrap();
        let bytes = vec![(tier, 100 * MIB)];
        cluster.tell(Event::Staged { node: NodeId(0), model: id.clone(), bytes, moved: None });
        cluster.tell(Event::Loaded {
            device: device(0),
            model: id.clone(),
            bytes: 100 * MIB,
            load_time_ns: Some(load_time_ns),
            parts: Vec::new(),
        });
        cluster.tell(Event::Evicted { device: device(0), model: id });
    };
    load("a", StorageTier::Disk, 100 * MS);
    load("b", StorageTier::Memory, 10 * MS);
    let own = model().name.to_string();
    load(&own, StorageTier::Memory, 60 * MS);
    let mut from = |bytes: Vec<(StorageTier, u64)>| {
        cluster.tell(Event::Staged { node: NodeId(0), model: model(), bytes, moved: None });
        estimate_on(&mut cluster, 0).load_time_ns
    };
    assert_eq!(from(vec![(StorageTier::Memory, 1)]), 60 * MS);
    // The bandwidth from memory now includes the load of the model itself.
    assert_eq!(from(vec![(StorageTier::Disk, 1)]), 60 * MS + (100 - 35) * MS);
    // A load from two tiers teaches neither.
    let before = from(vec![(StorageTier::Disk, 1), (StorageTier::Memory, 1)]);
    let loaded = |load_time_ns| Event::Loaded {
        device: device(0),
        model: model(),
        bytes: 100 * MIB,
        load_time_ns: Some(load_time_ns),
        parts: Vec::new(),
    };
    cluster.tell(Event::Staged {
        node: NodeId(0),
        model: model(),
        bytes: vec![(StorageTier::Disk, 1), (StorageTier::Memory, 1)],
        moved: None,
    });
    cluster.tell(loaded(10 * SECOND));
    cluster.tell(Event::Evicted { device: device(0), model: model() });
    assert_eq!(estimate_on(&mut cluster, 0).load_time_ns, before);
}

/// The estimate of an invocation on the device of a node.
fn estimate_on(cluster: &mut Fixture, node: u32) -> weir_scheduler::Estimate {
    let mut actions = Vec::new();
    cluster.scheduler.handle(cluster.now_ns, Event::Arrived(arrival(7, SECOND, None)), &mut actions);
    cluster.tell(Event::Cancelled { invocation: InvocationId(7), used: None });
    let found = actions.into_iter().find_map(|action| {
        let Action::Start { device: chosen, why, .. } = action else { return None };
        let others = why.alternatives.iter().map(|other| (other.device, other.estimate));
        let mut all = [(chosen.unwrap(), why.estimate)].into_iter().chain(others);
        all.find(|(at, _)| *at == device(node)).map(|(_, estimate)| estimate)
    });
    found.unwrap()
}

/// The scheduler learns all times, and its estimates are compared with the actual times of the
/// requests.
#[test]
fn estimates_of_placements_are_close_to_the_outcomes() {
    // Time off the device makes waits random.
    for (preset, shares, bound) in [(Preset::Trace, [1.0, 1.0], 1.2), (Preset::Overload, [1.0, 0.3], 1.35)] {
        let workload = preset.recipe(35).make(3).unwrap();
        let shares = shares.into_iter().cycle().take(35);
        let workload = workload.with_device_shares(shares).unwrap();
        let cluster = SimulatedCluster { tells_costs: false, jitter: 0.1, ..SimulatedCluster::weir() };
        let (schedule, _) = simulate(&workload, &cluster, PolicyKind::FinishFirst);
        let ratios = schedule.placed.iter().zip(&schedule.expected_end_ns).filter_map(|(placed, end_ns)| {
            let placed = (*placed)?;
            let [expected, actual] =
                [*end_ns, placed.ended_at_ns].map(|ns| (ns - placed.started_at_ns) as f64);
            Some(expected / actual)
        });
        // After a minute, costs are known.
        let mut ratios: Vec<f64> = ratios.skip(325).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let part = |part: usize| ratios[ratios.len() * part / 100];
        assert!((0.95..=1.05).contains(&part(50)), "median {}", part(50));
        assert!(part(10) > 1.0 / bound && part(90) < bound, "10 % {}, 90 % {}", part(10), part(90));
    }
}

/// Under Weir's own rule, loads overlap with runs, which helps policies with many loads most. The
/// default policy stays ahead of `lalb-o3`.
#[test]
fn finish_first_latency_is_20_percent_below_lalb_o3_under_committed_work() {
    for preset in [Preset::Trace, Preset::Overload] {
        let of = |policy| {
            let seeds = [1, 2, 3, 4, 5];
            measure(preset, 35, &SimulatedCluster::weir(), policy, &PolicyOptions::default(), &seeds).unwrap()
        };
        let own = of(PolicyKind::FinishFirst);
        let o3 = of(PolicyKind::LalbO3);
        assert!(own.avg <= 0.8 * o3.avg, "mean latency {} and {}", own.avg, o3.avg);
        assert!(own.p99 <= o3.p99, "p99 {} and {}", own.p99, o3.p99);
        assert!(own.miss <= o3.miss / 2.0, "misses {} and {}", own.miss, o3.miss);
    }
}

#[test]
fn device_rules_have_names() {
    for rule in DeviceRule::ALL {
        assert_eq!(rule.as_str().parse(), Ok(rule));
        assert_eq!(serde_json::to_string(&rule).unwrap(), format!("{:?}", rule.as_str()));
    }
    let error = "fair".parse::<DeviceRule>().unwrap_err().to_string();
    assert!(error.contains("fair") && error.contains("committed-work"), "{error}");
}
