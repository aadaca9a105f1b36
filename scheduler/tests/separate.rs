//! Workflows with an SLO whose steps are placed separately.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use weir_scheduler::{
    Action, Arrival, Corrections, DeviceRule, DeviceSpec, Event, ModelDemand, PlannedStep, Rejection,
    Scheduler, Settings, Slo, SloSettings,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const NODE: NodeId = NodeId(0);
const FIRST: DeviceId = DeviceId { node: NODE, ordinal: 0 };
const SECOND: DeviceId = DeviceId { node: NODE, ordinal: 1 };
const RUN_NS: u64 = 100;
/// Later than any time of a test.
const FAR_NS: u64 = 1 << 40;
/// The workflow, and the invocations of its steps.
const WORKFLOW: u64 = 100;
const STEP_A: u64 = 101;
const STEP_B: u64 = 102;

/// Two devices, each with room for one of the models `a` and `b`.
struct Fixture {
    scheduler: Scheduler,
    now_ns: u64,
}

impl Fixture {
    /// The first device holds `a`, the second `b`.
    fn warm() -> Self {
        let mut cluster = Self::cold();
        cluster.load(FIRST, "a");
        cluster.load(SECOND, "b");
        cluster
    }

    fn cold() -> Self {
        let slo = SloSettings { margin: 0.0, ..SloSettings::default() };
        Self::with_devices(slo, &[("cpu", 10), ("cpu", 10)])
    }

    fn with_devices(slo: SloSettings, devices: &[(&str, u64)]) -> Self {
        let scheduler = Scheduler::new(&Settings { slo, ..Settings::default() });
        let mut cluster = Self { scheduler, now_ns: 0 };
        let device = |(kind, capacity_bytes): &(&str, u64)| DeviceSpec {
            kind: (*kind).into(),
            platform: Platform::Cpu,
            capacity_bytes: *capacity_bytes,
            slots: 1,
            invocations_max: 100,
            rule: DeviceRule::default(),
        };
        let devices = devices.iter().map(device).collect();
        assert_eq!(cluster.tell(Event::NodeUp { node: NODE, devices }), NOTHING);
        cluster
    }

    /// The actions of an event, shortened: `101@0` starts 101 on the first device, `100/` reserves
    /// places for the steps of 100, and `100!Slo` rejects it.
    fn tell(&mut self, event: Event) -> Vec<String> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        assert_eq!(self.scheduler.corrections(), Corrections::default());
        let short = |action| match action {
            Action::Start { invocation, device, .. } => {
                Some(format!("{}@{}", invocation.0, device.unwrap().ordinal))
            }
            Action::Reserved { invocation, .. } => Some(format!("{}/", invocation.0)),
            Action::Reject { invocation, why, .. } => Some(format!("{}!{why:?}", invocation.0)),
            Action::WakeAt(_) => None,
            other => Some(format!("{other:?}")),
        };
        actions.into_iter().filter_map(short).collect()
    }

    fn load(&mut self, device: DeviceId, name: &str) {
        let loaded =
            Event::Loaded { device, model: model(name), bytes: 10, load_time_ns: None, parts: Vec::new() };
        assert_eq!(self.tell(loaded), NOTHING);
    }

    /// The workflow `a` then `b`.
    fn call_workflow(&mut self, due_at_ns: u64) -> Vec<String> {
        self.tell(Event::Arrived(workflow(due_at_ns)))
    }

    fn call(&mut self, id: u64, name: &str, run_time_ns: u64, due_at_ns: Option<u64>) -> Vec<String> {
        let slo = due_at_ns.map(|due_at_ns| Slo { due_at_ns, cost_max: Cost::MAX });
        self.tell(Event::Arrived(Arrival { slo, run_time_ns: Some(run_time_ns), ..arrival(id, &[name]) }))
    }

    fn finish(&mut self, id: u64) -> Vec<String> {
        self.tell(Event::Finished { invocation: InvocationId(id), used: None })
    }

    fn cancel(&mut self, id: u64) -> Vec<String> {
        self.tell(Event::Cancelled { invocation: InvocationId(id), used: None })
    }

    fn wake(&mut self, now_ns: u64) -> Vec<String> {
        self.now_ns = now_ns;
        self.tell(Event::Woken)
    }
}

const NOTHING: [String; 0] = [];

fn model(name: &str) -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

fn function(name: &str) -> FunctionId {
    FunctionId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

fn demand(name: &&str) -> ModelDemand {
    ModelDemand {
        model: model(name),
        bytes: 10,
        load_time_ns: Some(10 * RUN_NS),
        runs_on: Platforms::ALL,
        parts: Vec::new(),
    }
}

fn arrival(id: u64, models: &[&str]) -> Arrival {
    Arrival {
        invocation: InvocationId(id),
        function: function(models.first().unwrap()),
        models: models.iter().map(demand).collect(),
        deadline_at_ns: FAR_NS,
        priority: 0,
        batch: 1,
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 1,
        is_splittable: false,
        steps: Vec::new(),
    }
}

fn step(id: u64, name: &str, after: &[u32], run_times_ns: &[(&str, u64)]) -> PlannedStep {
    PlannedStep {
        invocation: InvocationId(id),
        function: function(name),
        models: vec![demand(&name)],
        after: after.to_vec(),
        batch: 1,
        run_times_ns: run_times_ns.iter().map(|(kind, time_ns)| ((*kind).into(), *time_ns)).collect(),
    }
}

fn workflow(due_at_ns: u64) -> Arrival {
    Arrival {
        function: function("w"),
        slo: Some(Slo { due_at_ns, cost_max: Cost::MAX }),
        steps: vec![step(STEP_A, "a", &[], &[("cpu", RUN_NS)]), step(STEP_B, "b", &[0], &[("cpu", RUN_NS)])],
        ..arrival(WORKFLOW, &["a", "b"])
    }
}

#[test]
fn steps_run_on_their_reserved_devices() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
    cluster.now_ns = RUN_NS;
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), ["102@1"]);
    cluster.now_ns = 2 * RUN_NS;
    assert_eq!(cluster.finish(STEP_B), NOTHING);
    assert_eq!(cluster.cancel(WORKFLOW), NOTHING);
    assert_eq!(cluster.scheduler.waiting(), 0);
}

#[test]
fn workflow_that_would_end_late_is_rejected_on_arrival() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(2 * RUN_NS - 1), ["100/"], "estimates are tried once a minute");
    assert_eq!(cluster.cancel(WORKFLOW), NOTHING);
    assert_eq!(cluster.call_workflow(2 * RUN_NS - 1), ["100!Slo"], "too short for its steps");
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call(1, "b", 3 * RUN_NS, Some(3 * RUN_NS)), ["1@1"]);
    assert_eq!(cluster.call_workflow(3 * RUN_NS), ["100!Slo"], "the device of the second step is busy");
    assert_eq!(cluster.call_workflow(4 * RUN_NS), ["100/"]);
}

#[test]
fn later_arrivals_do_not_delay_reserved_steps() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
    cluster.now_ns = RUN_NS / 2;
    assert_eq!(cluster.call(1, "b", RUN_NS, Some(5 * RUN_NS / 2)), ["1!Slo"], "it ends after the step");
    assert_eq!(cluster.call(2, "b", RUN_NS, None), NOTHING);
    assert_eq!(cluster.call(3, "b", RUN_NS, Some(4 * RUN_NS)), NOTHING, "it would delay the step");
    assert_eq!(cluster.call(4, "b", RUN_NS / 4, Some(4 * RUN_NS)), ["4@1"], "it ends before the step begins");
    cluster.now_ns = 3 * RUN_NS / 4;
    assert_eq!(cluster.finish(4), NOTHING);
    cluster.now_ns = RUN_NS;
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), ["102@1"]);
    cluster.now_ns = 2 * RUN_NS;
    assert_eq!(cluster.finish(STEP_B), ["3@1"]);
    cluster.now_ns = 3 * RUN_NS;
    assert_eq!(cluster.finish(3), ["2@1"]);
}

#[test]
fn end_of_the_workflow_releases_its_reservations() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(1, "b", RUN_NS, None), NOTHING);
    assert_eq!(cluster.cancel(WORKFLOW), ["1@1"]);
    assert_eq!(cluster.finish(1), NOTHING);
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"], "the ids of the steps are free again");
}

/// The model of the reserved step stays in memory, and the call that would evict it waits.
#[test]
fn calls_before_a_reserved_step_keep_its_model_in_memory() {
    let mut cluster = Fixture::warm();
    cluster.tell(Event::DeviceDown { device: FIRST });
    cluster.tell(Event::DeviceUp { device: FIRST });
    let mut arrival = workflow(60 * RUN_NS);
    arrival.steps[0].run_times_ns = vec![("cpu".into(), 50 * RUN_NS)];
    assert_eq!(cluster.tell(Event::Arrived(arrival)), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", 50 * RUN_NS, None), ["101@0"]);
    assert_eq!(cluster.call(1, "c", RUN_NS, Some(200 * RUN_NS)), NOTHING, "it would evict b");
    assert_eq!(cluster.call(2, "b", RUN_NS, Some(200 * RUN_NS)), ["2@1"]);
    cluster.now_ns = RUN_NS;
    assert_eq!(cluster.finish(2), NOTHING);
    cluster.now_ns = 50 * RUN_NS;
    assert_eq!(cluster.finish(STEP_A), ["1@0"]);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), ["102@1"]);
}

/// A call that waits behind a reservation starts as soon as the reservation is given up.
#[test]
fn released_reservation_lets_the_next_call_start() {
    for ends_workflow in [false, true] {
        let mut cluster = Fixture::warm();
        assert_eq!(cluster.call_workflow(100 * RUN_NS), ["100/"]);
        assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
        assert_eq!(cluster.call(1, "b", 2 * RUN_NS, Some(5 * RUN_NS)), NOTHING);
        let released = if ends_workflow { WORKFLOW } else { STEP_B };
        assert_eq!(cluster.cancel(released), ["1@1"]);
    }
}

#[test]
fn long_overdue_step_gives_way_without_another_event() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(100 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
    assert_eq!(cluster.call(1, "b", 2 * RUN_NS, Some(5 * RUN_NS)), NOTHING);
    assert_eq!(cluster.wake(RUN_NS), NOTHING);
    assert_eq!(cluster.wake(RUN_NS + RUN_NS / 4 + 1), ["1@1"]);
}

#[test]
fn calls_without_slo_use_a_device_until_its_step_is_near() {
    let mut cluster = Fixture::warm();
    let mut arrival = workflow(60 * RUN_NS);
    arrival.steps[0].run_times_ns = vec![("cpu".into(), 50 * RUN_NS)];
    assert_eq!(cluster.tell(Event::Arrived(arrival)), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", 50 * RUN_NS, None), ["101@0"]);
    assert_eq!(cluster.call(1, "b", RUN_NS, None), ["1@1"]);
    cluster.now_ns = RUN_NS;
    assert_eq!(cluster.finish(1), NOTHING);
    assert_eq!(cluster.wake(49 * RUN_NS), NOTHING);
    assert_eq!(cluster.call(2, "b", RUN_NS, None), NOTHING, "the step is near");
}

/// The memory of a device changes with each load. Reservations stay, and a step that has arrived is
/// not rejected.
#[test]
fn resized_device_keeps_its_steps() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
    let resized = |capacity_bytes| Event::DeviceResized { device: SECOND, capacity_bytes };
    assert_eq!(cluster.tell(resized(11)), NOTHING);
    assert_eq!(cluster.call(1, "b", RUN_NS, Some(5 * RUN_NS / 2)), ["1!Slo"], "the place is still reserved");
    assert_eq!(cluster.call(2, "b", RUN_NS / 2, Some(10 * RUN_NS)), ["2@1"]);
    cluster.now_ns = RUN_NS / 4;
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), NOTHING, "it arrives early and waits");
    cluster.now_ns = 3 * RUN_NS / 2;
    assert_eq!(cluster.tell(resized(12)), ["102@0"], "it is late, and continues without an SLO");
}

#[test]
fn reservation_of_a_late_step_lapses() {
    let mut cluster = Fixture::warm();
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
    assert_eq!(cluster.call(1, "b", RUN_NS, None), NOTHING);
    assert_eq!(cluster.wake(RUN_NS), NOTHING, "the second step could still end in time");
    assert_eq!(cluster.wake(RUN_NS + 1), ["1@1"]);
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), NOTHING, "the step continues without an SLO");
    assert_eq!(cluster.finish(1), ["102@1"]);
}

#[test]
fn step_on_a_lost_device_is_admitted_to_another() {
    let slo = SloSettings { margin: 0.0, ..SloSettings::default() };
    let mut cluster = Fixture::with_devices(slo, &[("cpu", 10), ("cpu", 10), ("cpu", 10)]);
    cluster.load(FIRST, "a");
    cluster.load(SECOND, "b");
    let third = DeviceId { ordinal: 2, ..FIRST };
    cluster.load(third, "b");
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@0"]);
    assert_eq!(cluster.tell(Event::DeviceDown { device: SECOND }), NOTHING);
    cluster.now_ns = RUN_NS;
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), ["102@2"]);
}

#[test]
fn workflow_that_loads_take_too_long_runs_once() {
    let mut cluster = Fixture::cold();
    assert_eq!(cluster.call_workflow(2 * RUN_NS), ["100/"], "its models are loaded nowhere");
    let again = |arrival: Arrival| Arrival {
        invocation: InvocationId(200),
        steps: arrival
            .steps
            .into_iter()
            .map(|step| PlannedStep { invocation: InvocationId(step.invocation.0 + 100), ..step })
            .collect(),
        ..arrival
    };
    assert_eq!(cluster.tell(Event::Arrived(again(workflow(2 * RUN_NS)))), ["200!Slo"], "one is enough");
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@1"]);
    cluster.load(SECOND, "a");
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), ["102@0"]);
    cluster.load(FIRST, "b");
    assert_eq!(cluster.finish(STEP_B), NOTHING);
    assert_eq!(cluster.cancel(WORKFLOW), NOTHING);
    assert_eq!(cluster.tell(Event::Arrived(again(workflow(2 * RUN_NS)))), ["200/"]);
}

/// As a whole, the workflow is too slow on the CPU and too expensive on the GPU.
#[test]
fn steps_use_several_kinds_of_devices_to_meet_both_objectives() {
    let prices = BTreeMap::from([("gpu".into(), Cost::from_nanos(10_000_000_000))]);
    let slo = SloSettings { margin: 0.0, prices, ..SloSettings::default() };
    let mut cluster = Fixture::with_devices(slo, &[("cpu", 20), ("gpu", 20)]);
    for device in [FIRST, SECOND] {
        cluster.load(device, "a");
        cluster.load(device, "b");
    }
    let run_times_ns = [("cpu", 11 * RUN_NS), ("gpu", 11 * RUN_NS / 10)];
    let arrived = |id, now_ns, steps| Arrival {
        function: function("w"),
        slo: Some(Slo { due_at_ns: now_ns + 2 * RUN_NS, cost_max: Cost::from_nanos(3 * RUN_NS) }),
        run_times_ns: run_times_ns.map(|(kind, time_ns)| (kind.into(), time_ns)).to_vec(),
        steps,
        ..arrival(id, &["a", "b"])
    };
    assert_eq!(cluster.tell(Event::Arrived(arrived(1, 0, Vec::new()))), ["1@1"], "the whole is tried");
    cluster.now_ns = 11 * RUN_NS / 10;
    assert_eq!(cluster.finish(1), NOTHING);
    let steps = vec![
        step(STEP_A, "a", &[], &[("cpu", 10 * RUN_NS), ("gpu", RUN_NS / 10)]),
        step(STEP_B, "b", &[0], &[("cpu", RUN_NS), ("gpu", RUN_NS)]),
    ];
    let now_ns = cluster.now_ns;
    assert_eq!(cluster.tell(Event::Arrived(arrived(WORKFLOW, now_ns, steps))), ["100/"]);
    assert_eq!(cluster.call(STEP_A, "a", RUN_NS, None), ["101@1"]);
    cluster.now_ns += RUN_NS / 10;
    assert_eq!(cluster.finish(STEP_A), NOTHING);
    assert_eq!(cluster.call(STEP_B, "b", RUN_NS, None), ["102@0"]);
}

#[test]
fn unsound_steps_get_no_reservations() {
    let cases: [fn(&mut Vec<PlannedStep>); 5] = [
        Vec::clear,
        |steps| steps[1].invocation = steps[0].invocation,
        |steps| steps[0].after = vec![1],
        |steps| steps[0].after = vec![u32::MAX],
        |steps| steps[1].invocation = InvocationId(WORKFLOW),
    ];
    for change in cases {
        let mut cluster = Fixture::warm();
        let mut arrival = workflow(FAR_NS);
        change(&mut arrival.steps);
        assert_eq!(cluster.tell(Event::Arrived(arrival)), [format!("100!{:?}", Rejection::NoCapacity)]);
    }
}
