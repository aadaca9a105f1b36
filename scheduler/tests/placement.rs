//! Behavior of the scheduler of one node, case by case.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::{
    Action, Arrival, Corrections, DeviceRule, DeviceSpec, Event, ModelDemand, Part, PartId, Rejection,
    Scheduler, Settings, Slo, SloSettings,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const NODE: NodeId = NodeId(0);
const CPU: DeviceId = DeviceId { node: NODE, ordinal: 0 };
const GPU: DeviceId = DeviceId { node: NODE, ordinal: 1 };
const FAR_NS: u64 = 1_000_000;

struct Fixture {
    scheduler: Scheduler,
    now_ns: u64,
}

impl Fixture {
    /// A node with these devices.
    fn with_capacities(capacities: &[u64]) -> Self {
        let mut cluster = Self {
            scheduler: Scheduler::new(&Settings { queue_len_max: 3, ..Settings::default() }),
            now_ns: 0,
        };
        assert_eq!(cluster.tell(up(capacities)), []);
        cluster
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::WakeAt(_)));
        actions
    }

    fn arrive(&mut self, id: u64, models: &[(&str, u64)]) -> Vec<Action> {
        self.tell(arrival(id, models, FAR_NS))
    }

    fn load(&mut self, device: DeviceId, name: &str, bytes: u64) {
        let loaded =
            Event::Loaded { device, model: model(name), bytes, load_time_ns: Some(bytes), parts: Vec::new() };
        assert_eq!(self.tell(loaded), []);
    }

    fn finish(&mut self, id: u64) -> Vec<Action> {
        self.tell(Event::Finished { invocation: InvocationId(id), used: None })
    }
}

fn up(capacities: &[u64]) -> Event {
    let device = |capacity_bytes: &u64| DeviceSpec {
        kind: "cpu".into(),
        platform: Platform::Cpu,
        capacity_bytes: *capacity_bytes,
        slots: 1,
        invocations_max: 100,
        rule: DeviceRule::default(),
    };
    Event::NodeUp { node: NODE, devices: capacities.iter().map(device).collect() }
}

fn arrival(id: u64, models: &[(&str, u64)], deadline_at_ns: u64) -> Event {
    let name = Name::new("f").unwrap();
    let function = FunctionId { tenant: TenantId::default(), name, version: Version(1) };
    let demand = |(name, bytes): &(&str, u64)| ModelDemand {
        model: model(name),
        bytes: *bytes,
        load_time_ns: None,
        runs_on: Platforms::ALL,
        parts: Vec::new(),
    };
    let models = models.iter().map(demand).collect();
    let invocation = InvocationId(id);
    Event::Arrived(Arrival {
        invocation,
        function,
        models,
        deadline_at_ns,
        priority: 0,
        batch: 1,
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 0,
        is_splittable: false,
        steps: Vec::new(),
    })
}

fn model(name: &str) -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

/// Abbreviated actions: `1@0 -a -b` starts 1 on device 0 and gives up a and b; `1!QueueFull`
/// rejects 1.
fn short(actions: &[Action]) -> Vec<String> {
    let tell = |action: &Action| match action {
        Action::Start { invocation, device, evict, .. } => {
            let device = device.map_or("node".to_owned(), |device| device.ordinal.to_string());
            let victims: String = evict.iter().map(|victim| format!(" -{}", victim.name)).collect();
            format!("{}@{device}{victims}", invocation.0)
        }
        Action::Reject { invocation, why, .. } => format!("{}!{why:?}", invocation.0),
        Action::Reserved { invocation, .. } => format!("{} reserved", invocation.0),
        Action::Load { model, .. } => format!("load {}", model.name),
        Action::Release { model, .. } => format!("release {}", model.name),
        Action::WakeAt(at_ns) => format!("wake {at_ns}"),
    };
    actions.iter().map(tell).collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn functions_without_models_start_at_once_on_full_devices() {
    let mut cluster = Fixture::with_capacities(&[10]);
    assert_eq!(short(&cluster.arrive(1, &[("a", 10)])), ["1@0"]);
    assert_eq!(short(&cluster.arrive(2, &[("b", 10)])), NOTHING);
    assert_eq!(short(&cluster.arrive(3, &[])), ["3@node"]);
    assert_eq!(cluster.scheduler.view().node(NODE).unwrap().running(), 2);
}

#[test]
fn holder_of_the_model_is_chosen_and_alternatives_are_listed() {
    let mut cluster = Fixture::with_capacities(&[10, 10]);
    cluster.load(GPU, "a", 4);
    let actions = cluster.arrive(1, &[("a", 4)]);
    let Action::Start { device, why, .. } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(*device, Some(GPU));
    assert_eq!((why.estimate.missing_bytes, why.estimate.load_time_ns), (0, 0));
    assert_eq!(why.alternatives.len(), 1);
    assert_eq!((why.alternatives[0].device, why.alternatives[0].estimate.missing_bytes), (CPU, 4));
}

#[test]
fn second_device_is_used_when_it_is_ready_sooner() {
    let mut cluster = Fixture::with_capacities(&[10, 10]);
    cluster.load(CPU, "a", 4);
    // A run takes 1,000 ns and a load of `a` takes 4 ns: loading it again is faster than waiting
    // for the slot.
    assert_eq!(short(&cluster.arrive(1, &[("a", 4)])), ["1@0"]);
    cluster.now_ns = 1_000;
    cluster.finish(1);
    assert_eq!(short(&cluster.arrive(2, &[("a", 4)])), ["2@0"]);
    assert_eq!(short(&cluster.arrive(3, &[("a", 4)])), ["3@1"]);
}

#[test]
fn least_recently_used_models_are_evicted_and_granted_models_are_not() {
    let mut cluster = Fixture::with_capacities(&[10]);
    for (id, name) in [(1, "a"), (2, "b"), (3, "c")] {
        assert_eq!(short(&cluster.arrive(id, &[(name, 3)])), [format!("{id}@0")]);
        cluster.load(CPU, name, 3);
        cluster.finish(id);
    }
    assert_eq!(short(&cluster.arrive(4, &[("a", 3)])), ["4@0"]);
    // `a` is granted; `b` is the least recently used of the others.
    assert_eq!(short(&cluster.arrive(5, &[("d", 3)])), ["5@0 -b"]);
    assert_eq!(short(&cluster.arrive(6, &[("e", 3)])), ["6@0 -c"]);
    assert_eq!(short(&cluster.arrive(7, &[("f", 3)])), NOTHING, "all else is granted or promised");
    cluster.finish(4);
    assert_eq!(short(&cluster.arrive(8, &[("d", 3)])), ["8@0"]);
}

#[test]
fn promised_bytes_count_before_models_are_loaded() {
    let mut cluster = Fixture::with_capacities(&[10]);
    assert_eq!(short(&cluster.arrive(1, &[("a", 6)])), ["1@0"]);
    assert_eq!(short(&cluster.arrive(2, &[("a", 6)])), ["2@0"], "the same promise serves both");
    assert_eq!(short(&cluster.arrive(3, &[("b", 6)])), NOTHING);
    assert_eq!(short(&cluster.finish(1)), NOTHING);
    assert_eq!(short(&cluster.finish(2)), ["3@0"], "a promise that nobody used is free again");
}

#[test]
fn waiting_invocations_start_in_order_and_report_their_wait() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.arrive(1, &[("a", 10)]);
    cluster.now_ns = 5;
    assert_eq!(short(&cluster.arrive(2, &[("b", 5)])), NOTHING);
    assert_eq!(short(&cluster.arrive(3, &[("c", 5)])), NOTHING);
    cluster.now_ns = 30;
    let actions = cluster.finish(1);
    assert_eq!(short(&actions), ["2@0", "3@0"]);
    let Action::Start { why, .. } = &actions[0] else { panic!() };
    assert_eq!(why.queued_ns, 25);
}

#[test]
fn small_models_overtake_a_large_one_at_most_64_times() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.arrive(0, &[("small", 1)]);
    assert_eq!(short(&cluster.arrive(1, &[("large", 10)])), NOTHING);
    let mut passed = 0;
    // An invocation with `small` runs at any time, so that `large` never fits unless starts are
    // held back.
    let mut last = 0;
    for id in 2..200 {
        if short(&cluster.arrive(id, &[("small", 1)])) == [format!("{id}@0")] {
            passed += 1;
            cluster.finish(last);
            last = id;
        }
    }
    assert_eq!(passed, 64);
    assert_eq!(short(&cluster.finish(last))[0], "1@0");
}

#[test]
fn full_queue_rejects_with_an_estimate() {
    let mut cluster = Fixture::with_capacities(&[10]);
    let no_capacity = cluster.arrive(7, &[("a", 11)]);
    assert!(matches!(&no_capacity[..], [Action::Reject { alternatives, .. }] if alternatives.is_empty()));
    cluster.arrive(0, &[("a", 10)]);
    cluster.now_ns = 1_000;
    cluster.finish(0);
    cluster.arrive(1, &[("a", 10)]);
    for id in 2..5 {
        assert_eq!(short(&cluster.arrive(id, &[("b", 10)])), NOTHING);
    }
    let actions = cluster.arrive(5, &[("b", 10)]);
    let Action::Reject { why: Rejection::QueueFull, estimate, alternatives, .. } = &actions[0] else {
        panic!("{actions:?}")
    };
    assert!(matches!(alternatives[..], [closest] if closest.estimate == *estimate), "{alternatives:?}");
    assert_eq!(estimate.missing_bytes, 10);
    assert_eq!(estimate.wait_ns, 4_000, "one runs and three wait, 1,000 ns each");
    assert_eq!(short(&cluster.arrive(6, &[("a", 10)])), ["6@0"], "what can start does not need the queue");
}

#[test]
fn models_larger_than_every_device_are_rejected_at_once() {
    let mut cluster = Fixture::with_capacities(&[10, 8]);
    assert_eq!(short(&cluster.arrive(1, &[("a", 11)])), ["1!NoCapacity"]);
    assert_eq!(short(&cluster.arrive(2, &[("a", 6), ("b", 6)])), ["2!NoCapacity"]);
    assert_eq!(short(&cluster.arrive(3, &[("a", u64::MAX), ("b", u64::MAX)])), ["3!NoCapacity"]);
    assert_eq!(short(&cluster.arrive(4, &[("a", 6), ("a", 6)])), ["4@1"], "named twice is needed once");
    assert_eq!(cluster.scheduler.corrections(), Corrections { named_twice: 1, ..Corrections::default() });
}

#[test]
fn deadlines_wake_the_scheduler_and_reject_waiting_invocations() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.arrive(1, &[("a", 10)]);
    let mut actions = Vec::new();
    cluster.scheduler.handle(0, arrival(2, &[("b", 1)], 100), &mut actions);
    cluster.scheduler.handle(0, arrival(3, &[("b", 1)], 200), &mut actions);
    cluster.scheduler.handle(0, arrival(4, &[("b", 1)], 50), &mut actions);
    assert_eq!(short(&actions), ["wake 100", "wake 50"]);
    actions.clear();
    cluster.scheduler.handle(100, Event::Woken, &mut actions);
    assert_eq!(short(&actions), ["4!Deadline", "2!Deadline", "wake 200"]);
    actions.clear();
    cluster.scheduler.handle(200, Event::Finished { invocation: InvocationId(1), used: None }, &mut actions);
    assert_eq!(short(&actions), ["3!Deadline"], "a deadline that has come goes before a place that is free");
    assert_eq!(short(&cluster.tell(arrival(5, &[], 200))), ["5!Deadline"]);
}

#[test]
fn cancellation_releases_waiting_and_running_invocations() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.arrive(1, &[("a", 10)]);
    cluster.arrive(2, &[("b", 10)]);
    cluster.arrive(3, &[("c", 10)]);
    assert_eq!(cluster.tell(Event::Cancelled { invocation: InvocationId(2), used: None }), []);
    assert_eq!(short(&cluster.tell(Event::Cancelled { invocation: InvocationId(1), used: None })), ["3@0"]);
    assert_eq!(cluster.finish(1), []);
    assert_eq!(
        cluster.scheduler.corrections(),
        Corrections { unknown_invocation: 1, ..Corrections::default() }
    );
}

#[test]
fn node_loss_rejects_its_invocations_and_the_queue_waits_for_the_next_node() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.arrive(1, &[("a", 10)]);
    cluster.arrive(2, &[]);
    cluster.arrive(3, &[("b", 10)]);
    let down = cluster.tell(Event::NodeDown { node: NODE });
    assert_eq!(short(&down), ["1!NodeLost", "2!NodeLost"]);
    assert_eq!(short(&cluster.arrive(4, &[])), NOTHING);
    assert_eq!(short(&cluster.tell(up(&[10]))), ["4@node", "3@0"]);
    assert_eq!(short(&cluster.tell(up(&[10]))), ["3!NodeLost", "4!NodeLost"]);
    assert_eq!(cluster.scheduler.corrections(), Corrections { node_up_twice: 1, ..Corrections::default() });
}

#[test]
fn invocations_max_of_one_serializes_a_device() {
    let mut cluster = Fixture::with_capacities(&[]);
    let spec = DeviceSpec {
        kind: "gpu".into(),
        platform: Platform::Cpu,
        capacity_bytes: 10,
        slots: 1,
        invocations_max: 1,
        rule: DeviceRule::default(),
    };
    cluster.tell(Event::NodeUp { node: NODE, devices: vec![spec] });
    assert_eq!(short(&cluster.arrive(1, &[("a", 1)])), ["1@0"]);
    assert_eq!(short(&cluster.arrive(2, &[("a", 1)])), NOTHING);
    assert_eq!(short(&cluster.finish(1)), ["2@0"]);
}

#[test]
fn invalid_events_are_counted_and_ignored() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.now_ns = 100;
    let nowhere = DeviceId { node: NODE, ordinal: u32::MAX };
    cluster.arrive(1, &[("a", 1)]);
    assert_eq!(cluster.arrive(1, &[("b", 1)]), []);
    for event in [
        Event::Finished { invocation: InvocationId(9), used: None },
        Event::Started { invocation: InvocationId(9) },
        Event::Loaded { device: nowhere, model: model("a"), bytes: 1, load_time_ns: None, parts: Vec::new() },
        Event::Evicted { device: nowhere, model: model("a") },
        Event::Evicted { device: CPU, model: model("never-there") },
        Event::NodeDown { node: NodeId(7) },
    ] {
        assert_eq!(cluster.tell(event), []);
    }
    cluster.now_ns = 50;
    assert_eq!(short(&cluster.arrive(2, &[])), ["2@node"]);
    let expected = Corrections {
        unknown_invocation: 2,
        unknown_device: 3,
        arrived_twice: 1,
        residency: 1,
        clock_went_back: 1,
        ..Corrections::default()
    };
    assert_eq!(cluster.scheduler.corrections(), expected);
}

#[test]
fn model_larger_than_announced_evicts_others() {
    let mut cluster = Fixture::with_capacities(&[10]);
    cluster.arrive(1, &[("a", 1)]);
    cluster.load(CPU, "a", u64::MAX);
    assert_eq!(short(&cluster.arrive(2, &[("b", 1)])), NOTHING, "there is no room beside it");
    assert_eq!(short(&cluster.finish(1)), ["2@0 -a"]);
    assert_eq!(cluster.tell(Event::Evicted { device: CPU, model: model("a") }), []);
    assert_eq!(
        {
            let view = cluster.scheduler.view();
            view.device(view.device_key(CPU).unwrap()).unwrap().held_bytes()
        },
        1
    );
}

/// A model of 10 bytes, 9 of which are the backbone shared by all variants.
fn variant(name: &str) -> ModelDemand {
    let parts = vec![Part { id: PartId(1), bytes: 9 }];
    ModelDemand { model: model(name), bytes: 10, load_time_ns: None, runs_on: Platforms::ALL, parts }
}

impl Fixture {
    /// A call that needs this model, which is loaded before the call ends.
    fn call_variant(&mut self, id: u64, name: &str) -> Vec<String> {
        let mut arrival = arrival(id, &[], FAR_NS);
        let demand = variant(name);
        if let Event::Arrived(arrival) = &mut arrival {
            arrival.models = vec![demand.clone()];
        }
        let actions = self.tell(arrival);
        if let [Action::Start { device: Some(device), evict, .. }] = &actions[..] {
            for model in evict.clone() {
                self.tell(Event::Evicted { device: *device, model });
            }
            let ModelDemand { model, bytes, parts, .. } = demand;
            self.tell(Event::Loaded { device: *device, model, bytes, load_time_ns: Some(10), parts });
        }
        self.finish(id);
        short(&actions)
    }
}

#[test]
fn shared_parts_of_variants_take_memory_once() {
    // The backbone and five variants fit.
    let mut cluster = Fixture::with_capacities(&[14]);
    for (id, name) in (0..).zip(["a", "b", "c", "d", "e"]) {
        assert_eq!(cluster.call_variant(id, name), [format!("{id}@0")]);
    }
    let held_bytes = |cluster: &Fixture| cluster.scheduler.view().devices().next().unwrap().1.held_bytes();
    assert_eq!(held_bytes(&cluster), 14);
    // Another variant replaces one variant; the backbone stays.
    let [start] = &cluster.call_variant(5, "f")[..] else { panic!() };
    assert_eq!(start.matches(" -").count(), 1, "{start}");
    assert_eq!(held_bytes(&cluster), 14);
    // Another model replaces all variants, since the backbone is freed with the last of them.
    let [start] = &short(&cluster.arrive(6, &[("other", 10)]))[..] else { panic!() };
    assert_eq!(start.matches(" -").count(), 5, "{start}");
}

#[test]
fn device_with_a_shared_backbone_is_preferred() {
    let mut cluster = Fixture::with_capacities(&[20, 20]);
    let demand = variant("a");
    let model = demand.model;
    let parts = demand.parts;
    cluster.tell(Event::Loaded { device: GPU, model, bytes: 10, load_time_ns: Some(10), parts });
    let mut arrival = arrival(1, &[], FAR_NS);
    if let Event::Arrived(arrival) = &mut arrival {
        arrival.models = vec![variant("b")];
    }
    let actions = cluster.tell(arrival);
    let [Action::Start { device, why, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((*device, why.estimate.missing_bytes), (Some(GPU), 1));
    assert_eq!((why.alternatives[0].device, why.alternatives[0].estimate.missing_bytes), (CPU, 10));
    assert!(why.estimate.load_time_ns < why.alternatives[0].estimate.load_time_ns);
}

/// A model on two devices, and one on the first of them, which admits the first invocation of each
/// kind. The second one would be late there, and moves the waiting one to the other device.
#[test]
fn waiting_invocation_moves_where_an_arrival_needs_its_place() {
    const RUN_NS: u64 = 100;
    let slo = SloSettings { margin: 0.0, ..SloSettings::default() };
    let mut cluster =
        Fixture { scheduler: Scheduler::new(&Settings { slo, ..Settings::default() }), now_ns: 0 };
    assert_eq!(cluster.tell(up(&[20, 20])), []);
    cluster.load(CPU, "both", 10);
    cluster.load(CPU, "one", 10);
    cluster.load(GPU, "both", 10);
    let mut arrive = |id, name, due_at_ns| {
        let Event::Arrived(arrival) = arrival(id, &[(name, 10)], FAR_NS) else { unreachable!() };
        let slo = Some(Slo { due_at_ns, cost_max: Cost::MAX });
        short(&cluster.tell(Event::Arrived(Arrival { slo, run_time_ns: Some(RUN_NS), ..arrival })))
    };
    assert_eq!(arrive(0, "both", RUN_NS), ["0@0"]);
    assert_eq!(arrive(1, "both", RUN_NS), ["1@1"]);
    assert_eq!(arrive(2, "both", 2 * RUN_NS), [""; 0]);
    assert_eq!(arrive(3, "one", 2 * RUN_NS), [""; 0]);
    assert_eq!(arrive(4, "both", 2 * RUN_NS), ["4!Slo"], "both devices are promised");
    cluster.now_ns = RUN_NS;
    assert_eq!(short(&cluster.finish(0)), ["3@0"]);
    assert_eq!(short(&cluster.finish(1)), ["2@1"]);
}
