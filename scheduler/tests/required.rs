//! Copies of models that devices keep in memory.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, Rejection, RequiredModel, Scheduler,
    Settings, TenantLimits,
};
use weir_types::{
    DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const SECOND_NS: u64 = 1_000_000_000;

fn model(name: &str) -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

fn demand(name: &str, bytes: u64) -> ModelDemand {
    let model = model(name);
    ModelDemand { model, bytes, load_time_ns: Some(1), runs_on: Platforms::ALL, parts: Vec::new() }
}

fn required(name: &str, bytes: u64, copies_min: u32) -> RequiredModel {
    RequiredModel { demand: demand(name, bytes), copies_min }
}

fn device(node: u32, ordinal: u32) -> DeviceId {
    DeviceId { node: NodeId(node), ordinal }
}

fn spec(platform: Platform) -> DeviceSpec {
    DeviceSpec {
        kind: platform.as_str().into(),
        platform,
        capacity_bytes: 100,
        slots: 1,
        invocations_max: 10,
        rule: DeviceRule::CountedInvocations,
    }
}

/// Nodes with devices of 100 bytes, of which required copies take at most 50.
struct Fixture {
    scheduler: Scheduler,
    now_ns: u64,
    invocations: u64,
}

impl Fixture {
    fn new(devices_by_node: &[usize]) -> Self {
        let mut fixture = Self { scheduler: Scheduler::new(&Settings::default()), now_ns: 0, invocations: 0 };
        for (node, devices) in (0..).zip(devices_by_node) {
            assert_eq!(fixture.node_up(node, *devices), Vec::<String>::new());
        }
        fixture
    }

    fn node_up(&mut self, node: u32, devices: usize) -> Vec<String> {
        let devices = vec![spec(Platform::Fake); devices];
        self.tell(Event::NodeUp { node: NodeId(node), devices })
    }

    /// The actions about models, as `load MODEL NODE.DEVICE -VICTIM`. Models that are to be loaded or
    /// evicted are.
    fn tell(&mut self, event: Event) -> Vec<String> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        let mut done = Vec::new();
        for action in actions {
            let (text, device, model, evict) = match action {
                Action::Load { device, model, evict } => ("load", device, model, evict),
                Action::Release { device, model } => ("release", device, model, Vec::new()),
                Action::Start { device, evict, .. } => {
                    let device = device.unwrap();
                    ("start", device, model("call"), evict)
                }
                Action::Reject { why, .. } => {
                    done.push(format!("{why:?}"));
                    continue;
                }
                Action::Reserved { .. } | Action::WakeAt(_) => continue,
            };
            let victims: String = evict.iter().map(|victim| format!(" -{}", victim.name)).collect();
            let name = &model.name;
            done.push(format!("{text} {name} {}.{}{victims}", device.node.0, device.ordinal));
            if text == "release" {
                let released = Event::Released { device, model };
                done.extend(self.tell(released));
            }
            for victim in evict {
                done.extend(self.tell(Event::Evicted { device, model: victim }));
            }
        }
        done
    }

    fn require(&mut self, models: &[RequiredModel]) -> Vec<String> {
        self.tell(Event::Required { models: models.to_vec() })
    }

    fn loaded(&mut self, device: DeviceId, name: &str, bytes: u64) {
        let model = model(name);
        let parts = Vec::new();
        let done = self.tell(Event::Loaded { device, model, bytes, load_time_ns: Some(1), parts });
        assert_eq!(done, Vec::<String>::new());
    }

    /// A call of a model, which ends if it starts.
    fn call(&mut self, name: &str, bytes: u64) -> Vec<String> {
        let done = self.arrive(name, bytes);
        if let Some(started) = done.iter().find_map(|action| action.strip_prefix("start call ")) {
            let (node, rest) = started.split_once('.').unwrap();
            let ordinal = rest.split(' ').next().unwrap();
            self.loaded(device(node.parse().unwrap(), ordinal.parse().unwrap()), name, bytes);
            self.tell(Event::Finished { invocation: InvocationId(self.invocations), used: None });
        }
        done
    }

    fn arrive(&mut self, name: &str, bytes: u64) -> Vec<String> {
        self.invocations += 1;
        let invocation = InvocationId(self.invocations);
        let ModelId { tenant, name: function, version } = model(name);
        self.tell(Event::Arrived(Arrival {
            invocation,
            function: FunctionId { tenant, name: function, version },
            models: vec![demand(name, bytes)],
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch: 1,
            run_time_ns: Some(1),
            run_times_ns: Vec::new(),
            slo: None,
            inputs: Vec::new(),
            batch_items_max: 1,
            is_splittable: false,
            steps: Vec::new(),
        }))
    }

    fn wait(&mut self, seconds: u64) -> Vec<String> {
        self.now_ns += seconds * SECOND_NS;
        self.tell(Event::Woken)
    }
}

#[test]
fn copies_are_spread_over_nodes_and_survive_other_models() {
    let mut fixture = Fixture::new(&[2, 1]);
    assert_eq!(fixture.require(&[required("m", 40, 2)]), ["load m 0.0", "load m 1.0"]);
    fixture.loaded(device(0, 0), "m", 40);
    fixture.loaded(device(1, 0), "m", 40);
    // Each call needs the room that its predecessor took, and never that of the copies.
    for name in ["a", "b", "c", "d", "e", "f"] {
        let done = fixture.call(name, 60);
        assert!(done[0].starts_with("start call ") && !done[0].contains("-m"), "{done:?}");
    }
    // The list stays the same: nothing to do.
    assert_eq!(fixture.require(&[required("m", 40, 2)]), Vec::<String>::new());
    // A third copy has to share a node.
    assert_eq!(fixture.require(&[required("m", 40, 3)]).len(), 1);
    assert!(fixture.scheduler.view().device_key(device(0, 1)).is_some_and(|key| {
        let view = fixture.scheduler.view();
        view.device(key).unwrap().holds(view.model_key(&model("m")).unwrap())
    }));
}

#[test]
fn models_in_memory_are_kept_there() {
    let mut fixture = Fixture::new(&[1, 1, 1]);
    fixture.loaded(device(2, 0), "m", 30);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 2.0"]);
}

#[test]
fn copies_make_room_on_a_full_device() {
    let mut fixture = Fixture::new(&[1]);
    fixture.loaded(device(0, 0), "old", 90);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 0.0 -old"]);
}

#[test]
fn copies_take_at_most_their_part_of_a_device() {
    let mut fixture = Fixture::new(&[1]);
    let models = [required("big", 51, 1), required("first", 30, 1), required("second", 30, 1)];
    assert_eq!(fixture.require(&models), ["load first 0.0"]);
    assert_eq!(fixture.scheduler.copies_missing(), 2);
    assert_eq!(fixture.wait(1), Vec::<String>::new());
    // More devices: at once.
    assert_eq!(fixture.node_up(1, 1), ["load second 1.0"]);
    // The device shrinks: the latest of the list goes first.
    let shrunk = Event::DeviceResized { device: device(0, 0), capacity_bytes: 50 };
    assert_eq!(fixture.tell(shrunk), ["release first 0.0"]);
}

#[test]
fn setting_of_zero_percent_requires_nothing() {
    let settings = Settings { required_percent_max: 0, ..Settings::default() };
    let mut fixture = Fixture { scheduler: Scheduler::new(&settings), now_ns: 0, invocations: 0 };
    fixture.node_up(0, 1);
    assert_eq!(fixture.require(&[required("m", 1, 1)]), Vec::<String>::new());
    assert_eq!(fixture.scheduler.copies_missing(), 0);
}

#[test]
fn call_that_fits_only_beside_no_copy_is_rejected() {
    let mut fixture = Fixture::new(&[1]);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 0.0"]);
    fixture.loaded(device(0, 0), "m", 30);
    assert_eq!(fixture.call("large", 80), [format!("{:?}", Rejection::NoCapacity)]);
    assert_eq!(fixture.call("small", 70), ["start call 0.0"]);
    assert_eq!(fixture.require(&[]), ["release m 0.0"]);
    assert_eq!(fixture.call("large", 80).len(), 1);
    // The model has become one like any other.
    let view = fixture.scheduler.view();
    assert_eq!(view.device(view.device_key(device(0, 0)).unwrap()).unwrap().held_bytes(), 80);
}

#[test]
fn lost_devices_are_replaced() {
    let mut fixture = Fixture::new(&[1, 1]);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 0.0"]);
    fixture.loaded(device(0, 0), "m", 30);
    // The node may return in a moment.
    assert_eq!(fixture.tell(Event::NodeDown { node: NodeId(0) }), Vec::<String>::new());
    assert_eq!(fixture.wait(9), Vec::<String>::new());
    assert_eq!(fixture.wait(1), ["load m 1.0"]);
    fixture.loaded(device(1, 0), "m", 30);
    assert_eq!(fixture.node_up(0, 1), Vec::<String>::new());
    assert_eq!(fixture.tell(Event::DeviceDown { device: device(1, 0) }), ["release m 1.0", "load m 0.0"]);
    assert_eq!(fixture.tell(Event::DeviceUp { device: device(1, 0) }), Vec::<String>::new());
    assert_eq!(fixture.scheduler.copies_missing(), 0);
}

#[test]
fn failed_load_is_tried_elsewhere_and_here_again_later() {
    let mut fixture = Fixture::new(&[1, 1]);
    let failed = |node| Event::LoadFailed { device: device(node, 0), model: model("m") };
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 0.0"]);
    assert_eq!(fixture.tell(failed(0)), ["load m 1.0"]);
    assert_eq!(fixture.tell(failed(0)), Vec::<String>::new(), "it is not required there");
    assert_eq!(fixture.scheduler.corrections().residency, 1);
    assert_eq!(fixture.tell(failed(1)), Vec::<String>::new());
    assert_eq!(fixture.wait(59), Vec::<String>::new());
    assert_eq!(fixture.wait(1), ["load m 0.0"]);
    // The second failure counts twice as long.
    assert_eq!(fixture.tell(failed(0)), ["load m 1.0"]);
    assert_eq!(fixture.tell(failed(1)), Vec::<String>::new());
    assert_eq!(fixture.wait(119), Vec::<String>::new());
    assert_eq!(fixture.wait(1), ["load m 0.0"]);
}

#[test]
fn copies_are_on_accelerators_if_the_model_runs_there() {
    let mut fixture = Fixture::new(&[]);
    let devices = vec![spec(Platform::Cpu), spec(Platform::Fake)];
    fixture.tell(Event::NodeUp { node: NodeId(0), devices });
    // The processor is faster to load, since the model is there already.
    fixture.loaded(device(0, 0), "m", 30);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 0.1"]);
    assert_eq!(fixture.require(&[required("m", 30, 2)]), Vec::<String>::new());
    // It turns out that the accelerator cannot run the model.
    let mut only_cpu = required("m", 30, 1);
    only_cpu.demand.runs_on = [Platform::Cpu].into_iter().collect();
    assert_eq!(fixture.require(&[only_cpu]), ["release m 0.1", "load m 0.0"]);
}

/// A model that ends its device's process is not loaded again at once.
#[test]
fn device_lost_soon_after_its_copy_gets_no_copy_for_a_while() {
    let mut fixture = Fixture::new(&[1]);
    let lose = |fixture: &mut Fixture| {
        let done = fixture.tell(Event::DeviceDown { device: device(0, 0) });
        assert_eq!(done, ["release m 0.0"]);
        fixture.tell(Event::DeviceUp { device: device(0, 0) })
    };
    assert_eq!(fixture.require(&[required("m", 30, 1)]), ["load m 0.0"]);
    fixture.loaded(device(0, 0), "m", 30);
    assert_eq!(lose(&mut fixture), Vec::<String>::new());
    assert_eq!(fixture.wait(60), ["load m 0.0"]);
    // Later, the copy is no suspect, and its earlier failure is forgotten.
    fixture.wait(60);
    assert_eq!(lose(&mut fixture), ["load m 0.0"]);
    assert_eq!(lose(&mut fixture), Vec::<String>::new());
    assert_eq!(fixture.wait(60), ["load m 0.0"]);
}

#[test]
fn copies_leave_nodes_with_several_first() {
    let mut fixture = Fixture::new(&[2, 1]);
    assert_eq!(fixture.require(&[required("m", 30, 3)]).len(), 3);
    assert_eq!(fixture.require(&[required("m", 30, 2)]), ["release m 0.1"]);
}

#[test]
fn copies_leave_room_for_a_waiting_call() {
    let mut fixture = Fixture::new(&[1]);
    // The device is busy, so the call waits.
    let busy = fixture.arrive("busy", 50);
    assert_eq!(fixture.arrive("large", 80).len(), 0);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), Vec::<String>::new());
    let finished = Event::Finished { invocation: InvocationId(1), used: None };
    assert_eq!((busy.len(), fixture.tell(finished)[0].as_str()), (1, "start call 0.0"));
    fixture.tell(Event::Finished { invocation: InvocationId(2), used: None });
    assert_eq!(fixture.wait(1), ["load m 0.0"]);
}

#[test]
fn tenants_have_a_limit_of_required_copies() {
    let limits = TenantLimits { required_bytes_max: 50, resident_bytes_max: 70, ..TenantLimits::default() };
    let settings = Settings { tenant_default: limits, ..Settings::default() };
    let mut fixture = Fixture { scheduler: Scheduler::new(&settings), now_ns: 0, invocations: 0 };
    fixture.node_up(0, 2);
    assert_eq!(fixture.require(&[required("m", 30, 2)]), ["load m 0.0"]);
    assert_eq!(fixture.scheduler.copies_missing(), 1);
    fixture.loaded(device(0, 0), "m", 30);
    // The copy counts against the tenant's memory.
    assert_eq!(fixture.call("a", 41), [format!("{:?}", Rejection::NoCapacity)]);
    assert_eq!(fixture.call("a", 40).len(), 1);
    assert_eq!(fixture.call("m", 30), ["start call 0.0"]);
}

/// A device that shrinks in steps does not give up more than it has to.
#[test]
fn repeated_shrinks_count_copies_that_are_being_released() {
    let mut fixture = Fixture::new(&[1]);
    assert_eq!(fixture.require(&[required("a", 20, 1), required("b", 20, 1)]).len(), 2);
    let mut shrink = |capacity_bytes| {
        let mut actions = Vec::new();
        let event = Event::DeviceResized { device: device(0, 0), capacity_bytes };
        fixture.scheduler.handle(0, event, &mut actions);
        actions.iter().filter(|action| matches!(action, Action::Release { .. })).count()
    };
    // The node has not confirmed the first release when it shrinks again.
    assert_eq!((shrink(60), shrink(59)), (1, 0));
}

#[test]
fn scheduler_sleeps_while_no_copy_finds_room() {
    let mut fixture = Fixture::new(&[1]);
    let models: Vec<_> = (0..40).map(|at| required(&format!("m{at}"), 60, 1)).collect();
    assert_eq!(fixture.require(&models), Vec::<String>::new());
    let mut wakes = 0;
    let mut at_ns = 0;
    while at_ns < SECOND_NS {
        let mut actions = Vec::new();
        fixture.scheduler.handle(at_ns, Event::Woken, &mut actions);
        let wake = actions.iter().find_map(|action| match action {
            Action::WakeAt(at_ns) => Some(*at_ns),
            _ => None,
        });
        at_ns = wake.unwrap();
        wakes += 1;
    }
    assert!(wakes <= 4, "{wakes} wake-ups in a second");
}

#[test]
fn paused_scheduler_requires_models_when_it_resumes() {
    let mut fixture = Fixture::new(&[1]);
    fixture.tell(Event::Paused);
    assert_eq!(fixture.require(&[required("m", 30, 1)]), Vec::<String>::new());
    assert_eq!(fixture.tell(Event::Resumed), ["load m 0.0"]);
}

#[test]
fn many_models_are_required_over_several_events() {
    let mut fixture = Fixture::new(&[1]);
    let models: Vec<_> = (0..40).map(|at| required(&format!("m{at}"), 1, 1)).collect();
    let mut loads = fixture.require(&models).len();
    assert_eq!(loads, 16);
    while fixture.scheduler.copies_missing() > 0 {
        fixture.now_ns += 10_000_000;
        loads += fixture.tell(Event::Woken).len();
    }
    assert_eq!(loads, 40);
}
