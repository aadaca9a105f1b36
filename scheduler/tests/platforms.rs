//! Different kinds of devices: where models can run, which devices are tried and chosen, and the
//! loss and return of devices.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use proptest::prelude::*;
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, PolicyKind, PolicyOptions, Rejection,
    Scheduler, Settings, Slo,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const MS: u64 = 1_000_000;

/// A node with devices of several kinds, and their loaded models. Run times depend on the kind of
/// device.
struct Fixture {
    scheduler: Scheduler,
    now_ns: u64,
    next: u64,
}

fn device(ordinal: u32) -> DeviceId {
    DeviceId { node: NodeId(0), ordinal }
}

fn spec(kind: &str, platform: Platform) -> DeviceSpec {
    let rule = DeviceRule::default();
    DeviceSpec { kind: kind.into(), platform, capacity_bytes: 10, slots: 2, invocations_max: 2, rule }
}

fn cpu() -> DeviceSpec {
    spec("cpu", Platform::Cpu)
}

fn gpu() -> DeviceSpec {
    spec("gpu", Platform::Cuda)
}

fn model(name: &str) -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

fn only(platform: Platform) -> Platforms {
    Platforms::only(platform)
}

impl Fixture {
    fn with_devices(policy: PolicyKind, devices: Vec<DeviceSpec>) -> Self {
        let policy = policy.build(&PolicyOptions::default());
        let mut cluster =
            Self { scheduler: Scheduler::with_policy(&Settings::default(), policy), now_ns: 0, next: 0 };
        cluster.tell(Event::NodeUp { node: NodeId(0), devices });
        cluster
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::WakeAt(_)));
        actions
    }

    fn arrive(&mut self, models: &[(&str, Platforms)]) -> (InvocationId, Vec<Action>) {
        self.arrive_with(models, None)
    }

    fn arrive_with(&mut self, models: &[(&str, Platforms)], slo: Option<Slo>) -> (InvocationId, Vec<Action>) {
        self.next += 1;
        let invocation = InvocationId(self.next);
        let demand = |(name, runs_on): &(&str, Platforms)| ModelDemand {
            model: model(name),
            bytes: 4,
            load_time_ns: Some(10 * MS),
            runs_on: *runs_on,
            parts: Vec::new(),
        };
        let function =
            FunctionId { tenant: TenantId::default(), name: Name::new("f").unwrap(), version: Version(1) };
        let actions = self.tell(Event::Arrived(Arrival {
            invocation,
            function,
            models: models.iter().map(demand).collect(),
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch: 1,
            run_time_ns: slo.map(|_| 10 * MS),
            run_times_ns: Vec::new(),
            slo,
            inputs: Vec::new(),
            batch_items_max: 0,
            is_splittable: false,
            steps: Vec::new(),
        }));
        (invocation, actions)
    }

    /// The device that runs the next call of a model, given the run time on each device.
    fn run(&mut self, name: &str, times_ms: &[u64]) -> u32 {
        let (invocation, actions) = self.arrive(&[(name, Platforms::ALL)]);
        let ordinal = started(&actions, invocation).unwrap();
        let load = Event::Loaded {
            device: device(ordinal),
            model: model(name),
            bytes: 4,
            load_time_ns: None,
            parts: Vec::new(),
        };
        self.tell(load);
        self.now_ns += times_ms[ordinal as usize] * MS;
        self.tell(Event::Finished { invocation, used: None });
        // Calls do not follow each other directly.
        self.now_ns += 50 * MS;
        ordinal
    }
}

fn started(actions: &[Action], wanted: InvocationId) -> Option<u32> {
    actions.iter().find_map(|action| match action {
        Action::Start { invocation, device, .. } if *invocation == wanted => Some((*device)?.ordinal),
        _ => None,
    })
}

#[test]
fn every_policy_places_models_on_supported_platforms() {
    for policy in PolicyKind::ALL {
        for devices in [vec![cpu(), gpu()], vec![gpu(), cpu()]] {
            let gpu_at = u32::from(devices[0] == cpu());
            let mut cluster = Fixture::with_devices(policy, devices);
            let (first, actions) = cluster.arrive(&[("g", only(Platform::Cuda))]);
            assert_eq!(started(&actions, first), Some(gpu_at), "{policy:?}");
            let (second, actions) = cluster.arrive(&[("c", only(Platform::Cpu))]);
            assert_eq!(started(&actions, second), Some(1 - gpu_at), "{policy:?}");
        }
    }
}

#[test]
fn models_without_a_supported_device_are_rejected_at_once() {
    let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![cpu()]);
    for models in [
        &[("g", only(Platform::Cuda))][..],
        &[("n", Platforms::NONE)],
        &[("g", only(Platform::Cuda)), ("c", only(Platform::Cpu))],
    ] {
        let (_, actions) = cluster.arrive(models);
        let is_rejected = matches!(&actions[..], [Action::Reject { why: Rejection::NoCapacity, .. }]);
        assert!(is_rejected, "{models:?}: {actions:?}");
    }
}

/// The first runs on an accelerator load the model, and compile its kernels. They must not leave the
/// accelerator slower than the CPU in the scheduler's eyes, since nothing would correct that.
#[test]
fn slow_first_runs_do_not_keep_calls_off_an_accelerator() {
    let measured_on_cpu = || {
        let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![cpu(), gpu()]);
        let (invocation, actions) = cluster.arrive(&[("c", only(Platform::Cpu))]);
        assert_eq!(started(&actions, invocation), Some(0));
        cluster.now_ns += 4 * MS;
        cluster.tell(Event::Finished { invocation, used: None });
        cluster.now_ns += 50 * MS;
        cluster
    };
    let mut cluster = measured_on_cpu();
    let loading = cluster.run("m", &[4, 100]);
    let compiling = cluster.run("m", &[4, 60]);
    assert_eq!([loading, compiling], [1, 1]);
    for _ in 0..3 {
        assert_eq!(cluster.run("m", &[4, 1]), 1);
    }
    // An accelerator that is really slower is left after its trial.
    let mut cluster = measured_on_cpu();
    let runs: Vec<u32> = (0..8).map(|_| cluster.run("m", &[4, 40])).collect();
    assert!(runs.starts_with(&[1]) && runs.ends_with(&[0, 0, 0]), "{runs:?}");
}

/// A model that cannot run on an accelerator runs on the CPU of the same node; the call's other
/// models still use the accelerator.
#[test]
fn cpu_only_model_does_not_keep_a_call_off_the_accelerator() {
    let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![cpu(), gpu()]);
    let models = [("both", Platforms::ALL), ("cpu", only(Platform::Cpu))];
    let (invocation, actions) = cluster.arrive(&models);
    assert_eq!(started(&actions, invocation), Some(1));
    let held = |cluster: &Fixture, ordinal| {
        let view = cluster.scheduler.view();
        view.device(view.device_key(device(ordinal)).unwrap()).unwrap().held_bytes()
    };
    assert_eq!((held(&cluster, 0), held(&cluster, 1)), (0, 4), "memory is promised only for what runs there");
    cluster.tell(Event::Finished { invocation, used: None });
    assert_eq!(held(&cluster, 1), 0);
    // An accelerator on a node without a CPU cannot serve the two models.
    let mut alone = Fixture::with_devices(PolicyKind::default(), vec![gpu()]);
    let (_, actions) = alone.arrive(&models);
    assert!(matches!(&actions[..], [Action::Reject { why: Rejection::NoCapacity, .. }]), "{actions:?}");
}

#[test]
fn every_kind_of_device_is_tried_and_the_fastest_is_kept() {
    let kinds = vec![cpu(), spec("fast", Platform::Cuda), spec("slow", Platform::Cuda)];
    let mut cluster = Fixture::with_devices(PolicyKind::default(), kinds);
    let ran: Vec<_> = (0..20).map(|_| cluster.run("m", &[80, 5, 30])).collect();
    assert_eq!(ran[10..], [1; 10], "{ran:?}");
    // A CPU that is faster than any accelerator is found, too.
    let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![cpu(), gpu()]);
    let ran: Vec<_> = (0..20).map(|_| cluster.run("m", &[1, 400])).collect();
    assert_eq!(ran[10..], [0; 10], "{ran:?}");
}

/// The fastest device has room for one of the two models, so each gain of one model is a loss of
/// the other.
#[test]
fn two_models_do_not_evict_each_other_from_the_faster_device() {
    for times_ms in [[3, 4], [4, 3], [30, 40], [5, 500]] {
        let room_for_one = |kind| DeviceSpec { capacity_bytes: 5, ..spec(kind, Platform::Cuda) };
        let mut cluster =
            Fixture::with_devices(PolicyKind::default(), vec![room_for_one("one"), room_for_one("other")]);
        let mut call = |name| {
            let (invocation, actions) = cluster.arrive(&[(name, Platforms::ALL)]);
            let Some(Action::Start { device: Some(on), evict, .. }) = actions.first().cloned() else {
                panic!("{actions:?}")
            };
            for model in &evict {
                cluster.tell(Event::Evicted { device: on, model: model.clone() });
            }
            let model = model(name);
            let parts = Vec::new();
            cluster.tell(Event::Loaded { device: on, model, bytes: 4, load_time_ns: None, parts });
            cluster.now_ns += times_ms[on.ordinal as usize] * MS;
            cluster.tell(Event::Finished { invocation, used: None });
            cluster.now_ns += 5 * MS;
            evict.len()
        };
        let evicted: Vec<_> = (0..60).map(|at| call(["a", "b"][at % 2])).collect();
        assert_eq!(evicted[20..], [0; 40], "{times_ms:?}: {evicted:?}");
    }
}

#[test]
fn slower_device_is_used_while_the_fastest_is_busy() {
    let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![cpu(), gpu()]);
    cluster.tell(Event::DeviceDown { device: device(1) });
    cluster.run("m", &[30, 20]);
    cluster.tell(Event::DeviceUp { device: device(1) });
    for _ in 0..10 {
        cluster.run("m", &[30, 20]);
    }
    let places: Vec<_> = (0..4)
        .map(|_| {
            let (invocation, actions) = cluster.arrive(&[("m", Platforms::ALL)]);
            started(&actions, invocation)
        })
        .collect();
    assert_eq!(places.iter().filter(|place| **place == Some(1)).count(), 2, "{places:?}");
    assert!(places.contains(&Some(0)), "nobody went to the processor: {places:?}");
}

#[test]
fn down_devices_get_no_placements_and_their_queue_moves() {
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::with_devices(policy, vec![gpu(), gpu()]);
        cluster.tell(Event::DeviceDown { device: device(0) });
        let (first, actions) = cluster.arrive(&[("a", only(Platform::Cuda))]);
        assert_eq!(started(&actions, first), Some(1), "{policy:?}");
        cluster.tell(Event::DeviceDown { device: device(1) });
        let (waits, actions) = cluster.arrive(&[("b", only(Platform::Cuda))]);
        assert_eq!(actions, [], "{policy:?}: it waits for one of them to come back");
        let actions = cluster.tell(Event::DeviceUp { device: device(0) });
        assert_eq!(started(&actions, waits), Some(0), "{policy:?}");
        assert_eq!(cluster.tell(Event::DeviceUp { device: device(0) }), [], "that is no news");
    }
}

#[test]
fn smaller_device_evicts_more_and_rejects_models_that_no_longer_fit() {
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::with_devices(policy, vec![gpu()]);
        let bytes = 4;
        let call = |cluster: &mut Fixture, name| {
            let (invocation, actions) = cluster.arrive(&[(name, only(Platform::Cuda))]);
            let evicted = actions.iter().find_map(|action| match action {
                Action::Start { evict, .. } => Some(evict.len()),
                _ => None,
            });
            if evicted.is_some() {
                let device = device(0);
                let model = model(name);
                let parts = Vec::new();
                cluster.tell(Event::Loaded { device, model, bytes, load_time_ns: None, parts });
                cluster.tell(Event::Finished { invocation, used: None });
            }
            (evicted, actions)
        };
        assert_eq!((call(&mut cluster, "a").0, call(&mut cluster, "b").0), (Some(0), Some(0)), "{policy:?}");
        // The device has room for one of the models now: the next model evicts both.
        let resized = |capacity_bytes| Event::DeviceResized { device: device(0), capacity_bytes };
        assert_eq!(cluster.tell(resized(bytes)), [], "{policy:?}");
        assert_eq!(call(&mut cluster, "c").0, Some(2), "{policy:?}");
        cluster.tell(resized(bytes - 1));
        let refused = call(&mut cluster, "d").1;
        assert!(
            matches!(refused[..], [Action::Reject { why: Rejection::NoCapacity, .. }]),
            "{policy:?}: {refused:?}"
        );
        cluster.tell(resized(bytes));
        assert!(call(&mut cluster, "d").0.is_some(), "{policy:?}: it fits again");
    }
}

#[test]
fn waiting_for_a_lost_device_does_not_block_other_invocations() {
    let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![cpu(), gpu()]);
    cluster.tell(Event::DeviceDown { device: device(1) });
    let (lost, actions) = cluster.arrive(&[("g", only(Platform::Cuda))]);
    assert_eq!(actions, []);
    for _ in 0..200 {
        let (invocation, actions) = cluster.arrive(&[("c", only(Platform::Cpu))]);
        assert_eq!(started(&actions, invocation), Some(0));
        cluster.tell(Event::Finished { invocation, used: None });
    }
    let actions = cluster.tell(Event::DeviceUp { device: device(1) });
    assert_eq!(started(&actions, lost), Some(1));
}

#[test]
fn admitted_invocations_of_a_lost_device_start_on_another() {
    for lost in [0, 1] {
        let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![gpu(), gpu()]);
        let model = [("a", only(Platform::Cuda))];
        let slo = Slo { due_at_ns: 1_000 * MS, cost_max: Cost::MAX };
        let mut running = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let (invocation, actions) = cluster.arrive_with(&model, Some(slo));
            match started(&actions, invocation) {
                Some(ordinal) => running.push((invocation, ordinal)),
                None => waiting.push(invocation),
            }
        }
        assert!(!waiting.is_empty(), "nobody waits");
        let mut actions = cluster.tell(Event::DeviceDown { device: device(lost) });
        // Ends the invocations on the lost device first, then the others, until none is left.
        running.sort_by_key(|(_, ordinal)| *ordinal != lost);
        while !running.is_empty() {
            let (invocation, _) = running.remove(0);
            actions.extend(cluster.tell(Event::Finished { invocation, used: None }));
            for action in actions.drain(..) {
                let Action::Start { invocation, device, .. } = action else { panic!("{action:?}") };
                assert_eq!(device.map(|device| device.ordinal), Some(1 - lost), "it started on what is lost");
                waiting.retain(|other| *other != invocation);
                running.push((invocation, 1 - lost));
            }
        }
        assert_eq!(waiting, [], "they never had their turn");
        // The device is no longer reserved for the invocations that waited for it.
        cluster.tell(Event::DeviceUp { device: device(lost) });
        cluster.tell(Event::DeviceDown { device: device(1 - lost) });
        let (next, actions) = cluster.arrive(&model);
        assert_eq!(started(&actions, next), Some(lost));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Under any sequence of events, an invocation starts only where all its models can run, on a
    /// device that is up.
    #[test]
    fn placements_use_devices_that_are_up_and_support_all_models(
        policy in prop::sample::select(&PolicyKind::ALL[..]),
        steps in prop::collection::vec((0_u8..4, 0_u32..3, prop::collection::vec((0_u8..4, 1_u8..8), 1..3)), 1..60),
    ) {
        let specs = [cpu(), gpu(), spec("made-up", Platform::Fake)];
        let mut cluster = Fixture::with_devices(policy, specs.to_vec());
        let mut down = [false; 3];
        let mut asked = Vec::new();
        let mut running = Vec::new();
        for (what, ordinal, models) in steps {
            let at = ordinal as usize;
            let actions = match what {
                0 => {
                    down[at] = !down[at];
                    let device = device(ordinal);
                    cluster.tell(if down[at] { Event::DeviceDown { device } } else { Event::DeviceUp { device } })
                }
                1 if !running.is_empty() => {
                    let invocation = running.remove(at % running.len());
                    cluster.tell(Event::Finished { invocation, used: None })
                }
                _ => {
                    let platforms = |bits: u8| {
                        let has = |(at, _): &(u8, Platform)| bits & (1 << at) != 0;
                        (0..).zip(Platform::ALL).filter(has).map(|(_, platform)| platform).collect::<Platforms>()
                    };
                    let mut models: Vec<_> =
                        models.iter().map(|(name, bits)| (["a", "b", "c", "d"][*name as usize], platforms(*bits))).collect();
                    models.dedup_by_key(|(name, _)| *name);
                    let (invocation, actions) = cluster.arrive(&models);
                    asked.push((invocation, models));
                    actions
                }
            };
            for action in &actions {
                let Action::Start { invocation, device, .. } = action else { continue };
                let ordinal = device.unwrap().ordinal as usize;
                let (_, models) = asked.iter().find(|(asked, _)| asked == invocation).unwrap();
                let platform = specs[ordinal].platform;
                prop_assert!(!down[ordinal], "{invocation:?} started on a device that is down");
                prop_assert!(models.iter().any(|(_, runs_on)| runs_on.contains(platform)));
                let is_served = |runs_on: &Platforms| {
                    runs_on.contains(platform) || runs_on.contains(Platform::Cpu)
                };
                prop_assert!(models.iter().all(|(_, runs_on)| is_served(runs_on)));
                running.push(*invocation);
            }
        }
    }
}

/// On devices that overlap computation with loads, a cold run takes less than load and run time
/// together, so the time beyond the load is no estimate of the run time.
#[test]
fn cold_gpu_runs_do_not_count_as_warm_run_times() {
    let mut cluster = Fixture::with_devices(PolicyKind::default(), vec![gpu()]);
    let mut run = |time_ms: u64| {
        let (invocation, actions) = cluster.arrive(&[("m", Platforms::ALL)]);
        let Some(Action::Start { why, .. }) = actions.first() else { panic!("{actions:?}") };
        let expected_ns = why.estimate.run_time_ns;
        cluster.now_ns += time_ms * MS;
        let load_time_ns = Some(90 * MS);
        let parts = Vec::new();
        cluster.tell(Event::Loaded { device: device(0), model: model("m"), bytes: 4, load_time_ns, parts });
        cluster.tell(Event::Finished { invocation, used: None });
        cluster.tell(Event::Evicted { device: device(0), model: model("m") });
        expected_ns
    };
    let assumed_ns = run(100);
    for _ in 0..5 {
        assert_eq!(run(91), assumed_ns, "a millisecond beyond the load is not how long it runs");
    }
}
