//! Invocations that arrive or wait while the cluster has no device.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, PlannedStep, Scheduler, Settings, Slo,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const MS: u64 = 1_000_000;
const WAIT_MS: u64 = 1_000;
const ACTIVATOR: NodeId = NodeId(0);

struct Fixture {
    scheduler: Scheduler,
    now_ns: u64,
    wake_at_ns: Option<u64>,
}

impl Fixture {
    /// A cluster of one node without devices.
    fn new() -> Self {
        let settings = Settings {
            queue_len_max: 3,
            device_wait_ms: u32::try_from(WAIT_MS).unwrap(),
            ..Settings::default()
        };
        let mut fixture = Self { scheduler: Scheduler::new(&settings), now_ns: 0, wake_at_ns: None };
        assert_eq!(fixture.up(ACTIVATOR, &[]), [""; 0]);
        fixture
    }

    /// Abbreviated actions: `1@2` starts invocation 1 on node 2, and `1!NoDevice` rejects it.
    fn tell(&mut self, event: Event) -> Vec<String> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        let mut short = Vec::new();
        for action in actions {
            match action {
                Action::Start { invocation, node, .. } => short.push(format!("{}@{}", invocation.0, node.0)),
                Action::Reject { invocation, why, .. } => short.push(format!("{}!{why:?}", invocation.0)),
                Action::WakeAt(at_ns) => self.wake_at_ns = Some(at_ns),
                other => short.push(format!("{other:?}")),
            }
        }
        short
    }

    fn up(&mut self, node: NodeId, capacities: &[u64]) -> Vec<String> {
        let device = |capacity_bytes: &u64| DeviceSpec {
            kind: "cpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: *capacity_bytes,
            slots: 4,
            invocations_max: 100,
            rule: DeviceRule::default(),
        };
        self.tell(Event::NodeUp { node, devices: capacities.iter().map(device).collect() })
    }

    fn down(&mut self, node: u32) -> Vec<String> {
        self.tell(Event::NodeDown { node: NodeId(node) })
    }

    fn arrive(&mut self, id: u64, bytes: Option<u64>) -> Vec<String> {
        self.arrive_with(id, bytes, 100_000 * MS, None)
    }

    /// The arrival of an invocation, with a model of this size if it has one.
    fn arrive_with(
        &mut self,
        id: u64,
        bytes: Option<u64>,
        deadline_at_ns: u64,
        slo: Option<Slo>,
    ) -> Vec<String> {
        let models = bytes.map(demand).into_iter().collect();
        self.tell(Event::Arrived(Arrival { deadline_at_ns, slo, ..arrival(id, models) }))
    }

    /// Moves the clock to the time that the scheduler asked to be woken at, not beyond `to_ms`.
    fn advance(&mut self, to_ms: u64) -> Vec<String> {
        let mut short = Vec::new();
        while let Some(at_ns) = self.wake_at_ns.filter(|at_ns| *at_ns <= to_ms * MS) {
            self.wake_at_ns = None;
            self.now_ns = self.now_ns.max(at_ns);
            short.extend(self.tell(Event::Woken));
        }
        self.now_ns = to_ms * MS;
        short
    }
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// A model of this size, whose load takes no time.
fn demand(bytes: u64) -> ModelDemand {
    let model =
        ModelId { tenant: TenantId::default(), name: name(&format!("m{bytes}")), version: Version(1) };
    ModelDemand { model, bytes, load_time_ns: Some(0), runs_on: Platforms::ALL, parts: Vec::new() }
}

fn arrival(id: u64, models: Vec<ModelDemand>) -> Arrival {
    Arrival {
        invocation: InvocationId(id),
        function: FunctionId { tenant: TenantId::default(), name: name("f"), version: Version(1) },
        models,
        deadline_at_ns: 100_000 * MS,
        priority: 0,
        batch: 1,
        run_time_ns: Some(MS),
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 0,
        is_splittable: false,
        steps: Vec::new(),
    }
}

/// A workflow of two steps with models of 60 and 70 bytes.
fn workflow(id: u64, slo: Option<Slo>) -> Arrival {
    let step = |(at, bytes): (u64, u64)| PlannedStep {
        invocation: InvocationId(10 * id + at),
        function: FunctionId { tenant: TenantId::default(), name: name("step"), version: Version(1) },
        models: vec![demand(bytes)],
        after: (0..u32::try_from(at).unwrap()).collect(),
        batch: 1,
        run_times_ns: vec![("cpu".into(), MS)],
    };
    let steps = slo.iter().flat_map(|_| [(0, 60), (1, 70)]).map(step).collect();
    Arrival { slo, is_splittable: true, steps, ..arrival(id, vec![demand(60), demand(70)]) }
}

fn due_at_ms(due_at_ms: u64) -> Option<Slo> {
    Some(Slo { due_at_ns: due_at_ms * MS, cost_max: Cost::MAX })
}

#[test]
fn invocations_wait_for_the_first_device_and_start_there() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.arrive(1, Some(10)), [""; 0]);
    assert_eq!(cluster.arrive(2, None), [""; 0], "a node without devices runs no function");
    assert_eq!(cluster.up(NodeId(1), &[]), [""; 0], "nor does another one");
    assert_eq!(cluster.advance(WAIT_MS - 1), [""; 0]);
    let mut started = cluster.up(NodeId(2), &[100]);
    started.sort();
    assert_eq!(started, ["1@2", "2@2"]);
    assert_eq!(cluster.advance(10 * WAIT_MS), [""; 0]);
    assert_eq!(cluster.arrive(3, None), ["3@2"], "although the other nodes run fewer invocations");
}

#[test]
fn invocations_are_rejected_once_they_have_waited_for_too_long() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.arrive(1, Some(10)), [""; 0]);
    assert_eq!(cluster.advance(600), [""; 0]);
    assert_eq!(cluster.arrive(2, None), [""; 0]);
    assert_eq!(cluster.arrive_with(3, None, 700 * MS, None), [""; 0]);
    assert_eq!(cluster.advance(700), ["3!NoDevice"], "a little before its deadline");
    assert_eq!(cluster.advance(WAIT_MS), ["1!NoDevice"]);
    assert_eq!(cluster.advance(2 * WAIT_MS), ["2!NoDevice"]);
    assert_eq!(cluster.scheduler.waiting(), 0);
}

#[test]
fn arrivals_without_a_device_are_limited() {
    let mut cluster = Fixture::new();
    for id in 0..3 {
        assert_eq!(cluster.arrive(id, Some(10)), [""; 0]);
    }
    assert_eq!(cluster.arrive(3, None), ["3!QueueFull"]);
}

#[test]
fn wait_begins_when_the_last_device_leaves() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.up(NodeId(1), &[10]), [""; 0]);
    assert_eq!(cluster.arrive(1, Some(10)), ["1@1"]);
    let mut held_back = Fixture::new();
    assert_eq!(held_back.up(NodeId(1), &[10]), [""; 0]);
    assert_eq!(
        held_back.tell(Event::DeviceDown { device: DeviceId { node: NodeId(1), ordinal: 0 } }),
        [""; 0]
    );
    assert_eq!(held_back.arrive(2, Some(10)), [""; 0]);
    assert_eq!(held_back.advance(5 * WAIT_MS), [""; 0], "the device may come back");
    assert_eq!(held_back.down(1), [""; 0]);
    assert_eq!(held_back.advance(6 * WAIT_MS - 1), [""; 0]);
    assert_eq!(held_back.up(NodeId(2), &[10]), ["2@2"]);
    assert_eq!(cluster.down(1), ["1!NodeLost"]);
    assert_eq!(cluster.arrive(3, Some(10)), [""; 0]);
    assert_eq!(cluster.advance(WAIT_MS), ["3!NoDevice"]);
}

#[test]
fn invocation_that_is_too_large_for_the_first_device_waits_for_a_larger_one() {
    let mut cluster = Fixture::new();
    assert_eq!((cluster.arrive(1, Some(100)), cluster.arrive(2, Some(10))), (vec![], vec![]));
    assert_eq!(cluster.up(NodeId(1), &[50]), ["2@1"]);
    assert_eq!(cluster.advance(WAIT_MS - 1), [""; 0]);
    assert_eq!(cluster.up(NodeId(2), &[200]), ["1@2"]);
    let mut small = Fixture::new();
    assert_eq!(small.arrive(1, Some(100)), [""; 0]);
    assert_eq!(small.up(NodeId(1), &[50]), [""; 0]);
    assert_eq!(small.advance(WAIT_MS), ["1!NoCapacity"]);
}

#[test]
fn objectives_are_judged_once_a_device_is_known() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.arrive_with(1, Some(10), 100_000 * MS, due_at_ms(500)), [""; 0]);
    assert_eq!(cluster.advance(400), [""; 0]);
    assert_eq!(cluster.up(NodeId(1), &[100]), ["1@1"]);
    let mut late = Fixture::new();
    assert_eq!(late.arrive_with(1, Some(10), 100_000 * MS, due_at_ms(500)), [""; 0]);
    assert_eq!(late.arrive_with(2, Some(10), 100_000 * MS, due_at_ms(5_000)), [""; 0]);
    // A run of a millisecond cannot end in time from then on.
    assert_eq!(late.advance(498), [""; 0]);
    assert_eq!(late.advance(499), ["1!Slo"]);
    assert_eq!(late.advance(WAIT_MS), ["2!NoDevice"]);
}

#[test]
fn objectives_are_judged_after_the_reports_of_the_first_node() {
    let mut cluster = Fixture::new();
    let own = ModelDemand { load_time_ns: Some(2_000 * MS), ..demand(10) };
    let slo = due_at_ms(500);
    // Two, since admission tries one that it would refuse.
    for id in [1, 2] {
        let arrived = Arrival { slo, ..arrival(id, vec![own.clone()]) };
        assert_eq!(cluster.tell(Event::Arrived(arrived)), [""; 0]);
    }
    assert_eq!(cluster.tell(Event::Paused), [""; 0]);
    assert_eq!(cluster.up(NodeId(1), &[100]), [""; 0]);
    // In memory already, so that no load delays the invocation.
    let device = DeviceId { node: NodeId(1), ordinal: 0 };
    let loaded = Event::Loaded { device, model: own.model, bytes: 10, load_time_ns: None, parts: Vec::new() };
    assert_eq!(cluster.tell(loaded), [""; 0]);
    assert_eq!(cluster.tell(Event::Resumed), ["1@1", "2@1"]);
}

#[test]
fn workflows_too_large_for_the_first_devices_run_in_separate_steps() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.tell(Event::Arrived(workflow(1, None))), [""; 0]);
    assert_eq!(cluster.tell(Event::Arrived(workflow(2, due_at_ms(900)))), [""; 0]);
    // Not a workflow: a larger device may follow.
    assert_eq!(cluster.arrive(3, Some(130)), [""; 0]);
    let decided = cluster.up(NodeId(1), &[100]);
    assert!(
        matches!(&decided[..], [first, second] if first.starts_with("Reserved") && second == "1!NoCapacity"),
        "{decided:?}"
    );
    assert_eq!(cluster.up(NodeId(2), &[200]), ["3@2"]);
    assert_eq!(cluster.scheduler.corrections(), weir_scheduler::Corrections::default());
}

#[test]
fn devices_that_grow_end_the_wait() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.arrive(1, Some(100)), [""; 0]);
    assert_eq!(cluster.up(NodeId(1), &[50]), [""; 0]);
    let device = DeviceId { node: NodeId(1), ordinal: 0 };
    let grown = cluster.tell(Event::DeviceResized { device, capacity_bytes: 200 });
    assert_eq!([grown, cluster.advance(10 * WAIT_MS)].concat(), ["1@1"]);
}

#[test]
fn invocations_without_time_to_wait_are_rejected_at_once() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.advance(600), [""; 0]);
    assert_eq!(cluster.arrive_with(1, Some(10), 100_000 * MS, due_at_ms(500)), ["1!Slo"]);
    let settings = Settings { device_wait_ms: 0, ..Settings::default() };
    cluster.scheduler = Scheduler::new(&settings);
    assert_eq!(cluster.up(ACTIVATOR, &[]), [""; 0]);
    assert_eq!(cluster.arrive(2, Some(10)), ["2!NoDevice"]);
}

#[test]
fn cancelled_invocations_leave_no_trace() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.arrive(1, Some(10)), [""; 0]);
    assert_eq!(cluster.arrive_with(2, Some(10), 100_000 * MS, due_at_ms(500)), [""; 0]);
    for id in [1, 2] {
        assert_eq!(cluster.tell(Event::Cancelled { invocation: InvocationId(id), used: None }), [""; 0]);
    }
    assert_eq!(cluster.up(NodeId(1), &[100]), [""; 0]);
    assert_eq!(cluster.advance(10 * WAIT_MS), [""; 0]);
    assert_eq!(cluster.scheduler.corrections(), weir_scheduler::Corrections::default());
}

#[test]
fn backlog_counts_invocations_that_wait_for_a_first_device() {
    let mut cluster = Fixture::new();
    assert_eq!(cluster.scheduler.backlog().waiting_ns, 0);
    assert_eq!(cluster.arrive(1, None), [""; 0]);
    let one = cluster.scheduler.backlog();
    assert_eq!(one.waiting, 1);
    assert!(one.waiting_ns > 0, "nothing was learned about the invocation, but it needs a device");
    assert_eq!(cluster.arrive(2, Some(10)), [""; 0]);
    let two = cluster.scheduler.backlog();
    assert_eq!(two.waiting, 2);
    assert!(two.waiting_ns > one.waiting_ns);
    assert_eq!(cluster.up(NodeId(1), &[100]).len(), 2);
    assert_eq!((cluster.scheduler.backlog().waiting, cluster.scheduler.backlog().waiting_ns), (0, 0));
}
